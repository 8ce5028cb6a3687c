"""Texts of SDK workers as errors of the user."""

from __future__ import annotations

import pytest

from arcbeam.fnapi.stage.workererrors import error_in

_PYTHON = """Traceback (most recent call last):
  File "a.py", line 1, in process
ValueError: no
  such thing

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in invoke
ValueError: no
  such thing [while running 'Read/It']
"""


def test_python_text_is_divided() -> None:
    error = error_in(_PYTHON, "first", {})
    assert error.step == "Read/It"
    assert error.error == "ValueError: no\n  such thing"
    assert error.traceback.endswith('File "b.py", line 2, in invoke')
    assert 'File "a.py", line 1, in process' in error.traceback


_GO = """process bundle failed for instruction 1 using plan p : while executing Process for Plan[p]:
4: ParDo[main.fail] Out:[3]
	caused by:
DoFn[UID:4, PID:Wrong/main.fail, Name: main.fail] failed:
no three
in two lines"""


def test_go_text_names_the_transform() -> None:
    error = error_in(_GO, "first", {})
    assert (error.step, error.error) == ("Wrong/main.fail", "no three\nin two lines")
    assert "4: ParDo[main.fail]" in error.traceback


def test_text_without_traceback_is_the_error() -> None:
    error = error_in("process failed\ncaused by: boom", "first", {})
    assert (error.step, error.error, error.traceback) == ("first", "process failed\ncaused by: boom", "")


def test_empty_text_is_an_error() -> None:
    assert error_in("", "first", {}).step == "first"


_PANIC = """process bundle failed for instruction 1 using plan p : panic: no index
of four
Full error:
while executing Process for Plan[p]:
4: ParDo[main.wrongFn] Out:[3]
\tcaused by:
panic: no index
of four goroutine 55 [running]:
runtime/debug.Stack()
\t/go/src/runtime/debug/stack.go:26 +0x5e
panic({0xd0?, 0xc0?})
\t/go/src/runtime/panic.go:860 +0x132
main.check(...)
\t/home/me/main.go:3
example.org/me/kinds.(*wrongFn).ProcessElement(0xc0, 0x3)
\t/home/me/kinds.go:7 +0x1
main.outer(0x1)
\t/home/me/main.go:9 +0x1
"""


@pytest.mark.parametrize(
    ("transforms", "step"),
    [
        (["Read", "main.outer", "A/kinds.wrongFn'1/Process"], "A/kinds.wrongFn'1/Process"),
        (["B/kinds.wrongFn", "A/kinds.wrongFn", "kinds.other"], "A/kinds.wrongFn or B/kinds.wrongFn"),
        (["Read"], "first"),
    ],
)
def test_go_panic_names_the_transform_of_its_stack(transforms: list[str], step: str) -> None:
    error = error_in(_PANIC, "first", {str(n): name for n, name in enumerate(transforms)})
    assert (error.step, error.error) == (step, "panic: no index\nof four")
    assert "4: ParDo[main.wrongFn]" in error.traceback
    assert "/home/me/kinds.go:7" in error.traceback


def test_go_transform_is_named_by_its_id() -> None:
    assert error_in(_GO, "first", {"Wrong/main.fail": "Outer/Wrong"}).step == "Outer/Wrong"
