"""The owner of a frame's code does not depend on its file's folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from arcbeam.model.frames import harness_files

BEGIN_ALIKE = ("arcbeam.sparkling", "arcbeam.harnessed.a", "apache_beam.transforms.cores", "threadings")
_TEXT = "def call(function):\n    return function()\n"


def code_of(module: Any, file: str) -> Callable[[Callable[[], Any]], Any]:
    """A function of a module in a file; it calls another."""
    names: dict[str, Any] = {"__name__": module}
    exec(compile(_TEXT, file, "exec"), names)
    call: Callable[[Callable[[], Any]], Any] = names["call"]
    return call


def fail() -> None:
    raise ValueError


def error_in(*calls: Callable[[Callable[[], Any]], Any]) -> BaseException:
    function: Callable[[], Any] = fail
    for call in reversed(calls):
        function = lambda call=call, inner=function: call(inner)  # noqa: E731
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        function()
    return caught.value


@pytest.mark.parametrize(
    "module", ["__main__", "flights", "arcbeams.harness", "apache_beam.runners.some_test", None, 7, *BEGIN_ALIKE]
)
@pytest.mark.parametrize("folder", ["arcbeam/harness", "arcbeam/spark", "apache_beam/runners"])
def test_user_code_in_folder_named_like_harness_is_kept(module: Any, folder: str) -> None:
    assert not harness_files(error_in(code_of(module, f"/home/me/{folder}/threading.py")))


@pytest.mark.parametrize(
    "module",
    ["arcbeam.harness.bundle.processor", "arcbeam.spark", "apache_beam.runners.common", "apache_beam.transforms.core"],
)
@pytest.mark.parametrize("file", ["/x/site-packages/a.py", "/x/libraries.zip/a.py", "apache_beam/runners/common.py"])
def test_harness_is_found_in_any_installation(module: str, file: str) -> None:
    users = code_of("__main__", "/home/me/arcbeam/spark/flights.py")
    assert harness_files(error_in(code_of(module, file), users)) == {file}


def test_harness_is_found_in_causes_and_contexts() -> None:
    cause, context, error = (error_in(code_of("arcbeam.spark.tasks.task", name)) for name in ("a", "b", "c"))
    error.__cause__ = cause
    cause.__context__ = context
    context.__context__ = error
    assert harness_files(error) == {"a", "b", "c"}
