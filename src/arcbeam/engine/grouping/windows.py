"""Window functions: which windows a moment is in, and which windows become one.

Owns Beam's own kinds but for the calendar's (`engine.grouping.calendars`), and what a kind of the user's must offer.
Exact to the microsecond, before 1970 as after it. Must not know keys, state or triggers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, IntervalWindow, Window


class WindowFn(Protocol):
    """Assigns windows to elements by their timestamps."""

    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        """The windows of an element with that timestamp. Equal calls may give the same object."""
        ...


class Merge(NamedTuple):
    """Windows that become one.

    Attributes:
        windows: what is no more, but for `result` if it is among them.
        result: what they have become.
    """

    windows: tuple[Window, ...]
    result: Window


class MergingFn(Protocol):
    """Says which windows of one key become one, for window functions of the user's."""

    def merge(self, windows: Collection[Window]) -> Iterable[Merge]:
        """What becomes one among the windows that are open; each window is in one merge at most."""
        ...


def _positive(name: str, what: Duration) -> None:
    if what <= 0:
        raise ValueError(f"{name} must be longer than nothing, not {what} microseconds")


@dataclass(frozen=True, slots=True)
class GlobalWindows:
    """Everything is in one window."""

    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        """See `WindowFn`."""
        return _GLOBAL


_GLOBAL = (GLOBAL_WINDOW,)


@dataclass(frozen=True, slots=True)
class FixedWindows:
    """Windows of one size, one after the other; one of them begins at `offset`."""

    size: Duration
    offset: Duration

    def __post_init__(self) -> None:
        _positive("the size of fixed windows", self.size)

    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        """See `WindowFn`."""
        start = timestamp - (timestamp - self.offset) % self.size
        return (IntervalWindow(Timestamp(start), Timestamp(start + self.size)),)


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows of one size, one of which begins at `offset` and every `period` before and after that.

    A period that is longer than the size leaves moments that are in no window.
    """

    size: Duration
    period: Duration
    offset: Duration

    def __post_init__(self) -> None:
        _positive("the size of sliding windows", self.size)
        _positive("the period of sliding windows", self.period)

    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        """See `WindowFn`. The latest comes first."""
        size = self.size
        last = timestamp - (timestamp - self.offset) % self.period
        return tuple(
            IntervalWindow(Timestamp(start), Timestamp(start + size))
            for start in range(last, timestamp - size, -self.period)
        )


@dataclass(frozen=True, slots=True)
class Sessions:
    """A window of `gap` from each element on; those that overlap become one. Those that only touch stay two."""

    gap: Duration

    def __post_init__(self) -> None:
        _positive("the gap of sessions", self.gap)

    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        """See `WindowFn`."""
        return (IntervalWindow(timestamp, Timestamp(timestamp + self.gap)),)
