"""Texts of SDK workers as errors of the user."""

from __future__ import annotations

import pytest
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.fnapi.descriptors import SOURCE
from arcbeam.fnapi.stage.workererrors import Named, error_in, names_in

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
        (["kinds.wrongFn/kinds.other"], "first"),
        (["Read"], "first"),
    ],
)
def test_go_panic_names_the_transform_of_its_stack(transforms: list[str], step: str) -> None:
    error = error_in(_PANIC, "first", {str(n): Named(name) for n, name in enumerate(transforms)})
    assert (error.step, error.error) == (step, "panic: no index\nof four")
    assert "4: ParDo[main.wrongFn]" in error.traceback
    assert "/home/me/kinds.go:7" in error.traceback


def test_go_transform_is_named_by_its_id() -> None:
    assert error_in(_GO, "first", {"Wrong/main.fail": Named("Outer/Wrong")}).step == "Outer/Wrong"


def _java(*calls: str) -> str:
    """Return Java's text of an error in DoFns that call each other, innermost first."""
    frames = "".join(
        f"\tat a.{each.partition('.')[0]}$DoFnInvoker$1f.{each.partition('.')[2]}(Unknown Source)\n"
        "\tat org.apache.beam.fn.harness.FnApiDoFnRunner.processElementForParDo(FnApiDoFnRunner.java:1)\n"
        for each in calls
    )
    return (
        "org.apache.beam.sdk.util.UserCodeException: java.lang.IllegalStateException: no\n  such thing\n"
        f"\tat org.apache.beam.sdk.util.UserCodeException.wrap(UserCodeException.java:39)\n{frames}"
        "\tat java.base/java.lang.Thread.run(Thread.java:840)\n"
        "Caused by: java.lang.IllegalStateException: no\n  such thing\n"
        "\tat a.Main$Fail.process(Main.java:7)\n\t... 26 more\n"
        "Caused by: java.io.IOException: file\n\tat a.Main.read(Main.java:9)\n\t... 27 more\n"
    )


def _stage(*transforms: tuple[str, str, str, str]) -> dict[str, Named]:
    """Return a stage's transforms from their name, class of a DoFn, input, and output; with the source of "a"."""
    made = fn_pb.ProcessBundleDescriptor()
    made.transforms[SOURCE].outputs["out"] = "a"
    for name, dofn, input, output in transforms:
        transform = made.transforms[name]
        transform.unique_name, transform.inputs["in"], transform.outputs["out"] = name, input, output
        if dofn:
            shown = runner_pb.LabelledPayload(key="fn", string_value=dofn)
            transform.display_data.add(urn="beam:display_data:labelled:v1", payload=shown.SerializeToString())
    return names_in(made)


def test_java_text_is_divided() -> None:
    text = _java("Fail.invokeProcessElement")
    error = error_in(text, "first", _stage(("Wrong", "a.Fail", "a", "b"), ("Other", "a.Other", "b", "c")))
    assert (error.step, error.error) == ("Wrong", "java.lang.IllegalStateException: no\n  such thing")
    assert error.traceback == text.strip()


def test_java_text_without_dofn_names_the_stage() -> None:
    text = "java.lang.OutOfMemoryError: heap\n\tat a.B.c(B.java:1)\n"
    error = error_in(text, "first", _stage(("Right", "a.Other", "a", "b")))
    assert (error.step, error.error) == ("first", "java.lang.OutOfMemoryError: heap")


_ALIKE = (("1", "a.Map", "a", "b"), ("2", "", "b", "c"), ("3", "a.Map", "c", "d"), ("4", "a.Map", "d", "e"))


@pytest.mark.parametrize(
    ("calls", "step"),
    [
        (["Map.invokeProcessElement"], "1"),
        (["Map.invokeProcessElement"] * 2, "3"),
        (["Map.invokeProcessElement"] * 3, "4"),
        (["Map.invokeFinishBundle"], "1 or 3 or 4"),
        (["Map.invokeProcessElement"] * 4, "1 or 3 or 4"),
    ],
)
def test_java_dofns_of_a_class_are_distinguished_by_the_stack(calls: list[str], step: str) -> None:
    assert error_in(_java(*calls), "first", _stage(*_ALIKE)).step == step


def test_java_in_a_python_text_is_not_taken_for_a_java_text() -> None:
    text = f"Traceback (most recent call last):\n  File 'a.py', line 1\nPy4JError: {_java('Map.invokeProcessElement')}"
    assert error_in(text, "first", _stage(*_ALIKE)).step == "first"
