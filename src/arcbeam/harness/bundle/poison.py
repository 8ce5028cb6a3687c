"""Which element user code was called with when it failed, as far as the error's own traceback tells.

Owns what is known of the frames between a transform and its function. What fails costs something when it fails, and
nothing before: no transform keeps the element that it is at.
"""

from __future__ import annotations

import re
from types import FrameType
from typing import Any, NamedTuple

from apache_beam.transforms import core

from arcbeam.harness.transforms import chains, values


class Poison(NamedTuple):
    """An element that user code does not like; or what that has made of the variable which was the element."""

    element: Any


_NOT_THE_USERS = re.compile(r"(^|/)(arcbeam/|apache_beam/)")


def poison_of(error: BaseException) -> Poison | None:
    """The element; None if it is not known.

    Args:
        error: what user code has raised, with the frames in which it was called.
    """
    found: Poison | None = None
    outer: FrameType | None = None
    link = error.__traceback__
    while link is not None:
        frame = link.tb_frame
        # The innermost: what is put out may be handed on by whoever has put it out.
        found = _passed_by(frame, link.tb_lineno) or _passed_to(frame, outer) or found
        outer, link = frame, link.tb_next
    return found


def _passed_by(frame: FrameType, line: int) -> Poison | None:
    """What a frame of ours, or of the SDK's wrappers, calls user code with."""
    code = frame.f_code
    if code.co_filename == core.__file__:
        name = "x" if code.co_name == "<lambda>" else ""
    elif code.co_filename == values.__file__:
        name = "value"
    else:
        name = chains.input_at(code, line)
    given = frame.f_locals if name else {}
    return Poison(given[name]) if name in given else None


def _passed_to(frame: FrameType, outer: FrameType | None) -> Poison | None:
    """What user code was called with: by its method `process`, or by a function that an operation of ours calls."""
    code, given = frame.f_code, frame.f_locals
    names = [name for name in code.co_varnames[: code.co_argcount] if name in given]
    if isinstance(given.get("self"), core.DoFn):
        return Poison(given[names[1]]) if code.co_name == "process" and len(names) > 1 else None
    called_by_us = outer is not None and outer.f_code.co_filename == values.__file__
    if not called_by_us or _NOT_THE_USERS.search(code.co_filename):
        return None
    assert outer is not None
    names = names[1:] if names[:1] == ["self"] else names
    if "_map_tuple" in outer.f_code.co_qualname:
        return Poison(tuple(given[name] for name in names))
    return Poison(given[names[0]]) if names else None
