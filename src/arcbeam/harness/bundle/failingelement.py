"""The element with which user code was called when it failed, read from the error's traceback.

Owns the knowledge about the frames between a transform and its function. This costs time only after a failure: no
transform records its current element.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from inspect import getclosurevars, isfunction, ismethod
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from apache_beam.transforms import core

from arcbeam.harness.transforms import chains, values


class FailingElement(NamedTuple):
    """The element with which user code failed, or the value that user code has assigned to that variable."""

    element: Any


_WRAPPERS_MAX = 10


def failing_element_of(error: BaseException) -> FailingElement | None:
    """Return the failing element; None if it is unknown.

    Args:
        error: the error that user code has raised, with the frames of the call.
    """
    found: FailingElement | None = None
    outer: FrameType | None = None
    link = error.__traceback__
    while link is not None:
        frame = link.tb_frame
        # The innermost one: an emitted output may be passed on to other transforms within the same call.
        found = _passed_by(frame, link.tb_lineno) or _passed_to(frame, outer) or found
        outer, link = frame, link.tb_next
    return found


def _passed_by(frame: FrameType, line: int) -> FailingElement | None:
    """Return the element that a frame of arcbeam or of the SDK's wrappers passes to user code."""
    code = frame.f_code
    if _is_of(core, frame.f_globals):
        name = "x" if code.co_name == "<lambda>" else ""
    elif _is_of(values, frame.f_globals):
        name = "value"
    else:
        name = chains.input_at(code, line)
    given = frame.f_locals if name else {}
    return FailingElement(given[name]) if name in given else None


def _passed_to(frame: FrameType, outer: FrameType | None) -> FailingElement | None:
    """Return the argument of user code: of its `process` method, or of a function that our operation calls."""
    code, given = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount]
    if code.co_name == "process" and names and isinstance(given.get(names[0]), core.DoFn):
        place = 1
    elif outer is not None and _is_of(values, outer.f_globals) and "value" not in outer.f_locals:
        place = _place(outer.f_locals.get("self"), code)
    else:
        return None
    return FailingElement(given[names[place]]) if 0 <= place < len(names) and names[place] in given else None


def _place(op: Any, code: CodeType) -> int:
    """Return which parameter of the code takes the element; -1 if the operation does not call this code.

    Generators and iterators that such code returns have frames of their own. These do not contain the element.
    """
    called: Any = getattr(op, "user", None)
    place = 0
    for _ in range(_WRAPPERS_MAX):
        if isinstance(called, partial):
            called, place = called.func, place + len(called.args)
        elif ismethod(called):
            called, place = called.__func__, place + 1
        elif not isfunction(called):
            called = getattr(called, "__call__", None)  # noqa: B004  # bound to the object, as a method
        elif called.__code__ is code:
            return place
        elif _is_of(core, called.__globals__):
            # The SDK's wrapper of a callable object.
            called = getclosurevars(called).nonlocals.get("fn")
        else:
            called = getattr(called, "__wrapped__", None)
    return -1


def _is_of(module: ModuleType, names: Mapping[str, Any]) -> bool:
    """Return whether these are a module's globals: its own, or those of a copy that came with a pickled function."""
    return names.get("__name__") == module.__name__
