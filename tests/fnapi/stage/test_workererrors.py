"""Texts of SDK workers as errors of the user."""

from __future__ import annotations

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
    error = error_in(_PYTHON, "first")
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
    error = error_in(_GO, "first")
    assert (error.step, error.error) == ("Wrong/main.fail", "no three\nin two lines")
    assert "4: ParDo[main.fail]" in error.traceback


def test_text_without_traceback_is_the_error() -> None:
    error = error_in("process failed\ncaused by: boom", "first")
    assert (error.step, error.error, error.traceback) == ("first", "process failed\ncaused by: boom", "")


def test_empty_text_is_an_error() -> None:
    assert error_in("", "first").step == "first"
