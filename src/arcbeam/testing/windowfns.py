"""Window functions for tests: assign windows to times.

Owns Beam's own kinds except those of the calendar (`testing.calendars`), without the SDK, whose functions assign
windows in pipelines. Exact to the microsecond, also before 1970. Must not know keys, state or triggers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, IntervalWindow, Window


class WindowFn(Protocol):
    """Assigns windows to elements by their timestamps."""

    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        """Return the windows of an element with a timestamp. Equal calls may return the same object."""
        ...


def _positive(name: str, what: Duration) -> None:
    if what <= 0:
        raise ValueError(f"{name} must be positive, not {what} microseconds")


@dataclass(frozen=True, slots=True)
class GlobalWindows(WindowFn):
    """All elements are in one window."""

    @override
    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        return _GLOBAL


_GLOBAL = (GLOBAL_WINDOW,)


@dataclass(frozen=True, slots=True)
class FixedWindows(WindowFn):
    """Consecutive windows of one size; one of them begins at `offset`."""

    size: Duration
    offset: Duration

    def __post_init__(self) -> None:
        _positive("the size of fixed windows", self.size)

    @override
    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        start = timestamp - (timestamp - self.offset) % self.size
        return (IntervalWindow(Timestamp(start), Timestamp(start + self.size)),)


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows of one size. One begins at `offset`, others every `period` before and after it.

    If the period is longer than the size, some times are in no window.
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
class Sessions(WindowFn):
    """A window of `gap` from each element on. Overlapping windows merge; those that only touch do not."""

    gap: Duration

    def __post_init__(self) -> None:
        _positive("the gap of sessions", self.gap)

    @override
    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        return (IntervalWindow(timestamp, Timestamp(timestamp + self.gap)),)
