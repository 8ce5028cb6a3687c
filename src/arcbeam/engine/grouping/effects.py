"""The effects of a grouping: values that its caller carries out.

Owns their shapes. Holds and timers are identified by key and window (and domain); setting one replaces the previous
one.
Effects that every window has are named tuples: creating a frozen dataclass takes four times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import PaneInfo, Window


class DropReason(Enum):
    """Why an element was dropped."""

    EXPIRED = "its window had expired: the watermark had passed its end and the allowed lateness"
    CLOSED = "the trigger of its window had finished"


class SetHold(NamedTuple):
    """The output watermark must not pass that time, because of the window."""

    key: bytes
    window: Window
    at: Timestamp


class ClearHold(NamedTuple):
    """Release the window's hold."""

    key: bytes
    window: Window


class SetTimer(NamedTuple):
    """Request a call of `Grouping.fire`. In event time: when the input watermark is *greater* than that time. In
    processing time: when the clock has reached it, after the elements that had arrived by then.
    """

    key: bytes
    window: Window
    domain: TimeDomain
    at: Timestamp


class ClearTimer(NamedTuple):
    """Clear the window's timer in that domain."""

    key: bytes
    window: Window
    domain: TimeDomain


class EmitPane(NamedTuple):
    """Emit a pane.

    Attributes:
        contents: `engine.grouping.contents.EncodedPaneValues`, or the combiner's output.
        timestamp: the pane's timestamp as an element.
        pane: its place among the panes of its window.
    """

    key: bytes
    window: Window
    contents: Any
    timestamp: Timestamp
    pane: PaneInfo


class DropLate(NamedTuple):
    """An element was dropped in one of its windows.

    Attributes:
        value: the element's value.
        timestamp: the element's timestamp.
        watermark: the input watermark when it arrived.
    """

    key: bytes
    window: Window
    value: Any
    timestamp: Timestamp
    watermark: Timestamp
    reason: DropReason


@dataclass(frozen=True, slots=True)
class DropHeld:
    """The contents of a window were dropped: it was merged with a window whose trigger had finished.

    Attributes:
        contents: as of a pane.
        count: the number of elements that had not been in a pane.
        watermark: the input watermark at that time.
    """

    key: bytes
    window: Window
    contents: Any
    count: int
    watermark: Timestamp


@dataclass(frozen=True, slots=True)
class DropCombined:
    """Elements were dropped with accumulators into which they were combined before the exchange.

    Attributes:
        count: by how many they exceed the accumulators, each of which is a drop of its own.
    """

    count: int


Effect = SetHold | ClearHold | SetTimer | ClearTimer | EmitPane | DropLate | DropHeld
