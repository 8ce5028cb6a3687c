"""What a grouping asks for: values that its caller carries out.

Owns their shapes. Holds and timers are named by key and window (and domain); setting one replaces what was set before.
Those that every window has are named tuples: a frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import PaneInfo, Window


class DropReason(Enum):
    """Why an element came to nothing."""

    EXPIRED = "its window had expired: the watermark had passed its end and the allowed lateness"
    CLOSED = "the trigger of its window had finished"


class SetHold(NamedTuple):
    """The output watermark may not pass that time on account of the window."""

    key: bytes
    window: Window
    at: Timestamp


class ClearHold(NamedTuple):
    """The window holds nothing back any more."""

    key: bytes
    window: Window


class SetTimer(NamedTuple):
    """`Grouping.fire` is to be called: in event time when the input watermark is *behind* that time (greater than it),
    in processing time when the clock has reached it, after the elements that had come by then.
    """

    key: bytes
    window: Window
    domain: TimeDomain
    at: Timestamp


class ClearTimer(NamedTuple):
    """The window waits for nothing in that domain any more."""

    key: bytes
    window: Window
    domain: TimeDomain


class EmitPane(NamedTuple):
    """A pane goes out.

    Attributes:
        contents: `engine.grouping.contents.Values`, or what the combiner has extracted.
        timestamp: of the pane, as an element.
        pane: its place among the panes of its window.
    """

    key: bytes
    window: Window
    contents: Any
    timestamp: Timestamp
    pane: PaneInfo


class DropLate(NamedTuple):
    """An element came to nothing in one of its windows.

    Attributes:
        value: of the element.
        timestamp: of the element.
        watermark: the input watermark when it came.
    """

    key: bytes
    window: Window
    value: Any
    timestamp: Timestamp
    watermark: Timestamp
    reason: DropReason


@dataclass(frozen=True, slots=True)
class DropHeld:
    """What a window had not put out yet came to nothing: it became one with a window whose trigger had finished.

    Attributes:
        contents: as of a pane.
        count: of the elements that had not been in a pane.
        watermark: the input watermark when that happened.
    """

    key: bytes
    window: Window
    contents: Any
    count: int
    watermark: Timestamp


Effect = SetHold | ClearHold | SetTimer | ClearTimer | EmitPane | DropLate | DropHeld
