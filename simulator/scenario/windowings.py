"""The windowings of simulated jobs: Beam's (`testing.windowfns`, `testing.calendars`), and some custom ones.

Owns their names, their translation for the engine, and the custom functions. `assigning` computes their windows a
second time, without the engine. Must not know stages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from typing_extensions import override

from arcbeam.engine.grouping.merging import CustomMerging, Merge, Merging, MergingFn, SessionMerging
from arcbeam.engine.protocol.stagekinds import Decode
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, Duration, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, CustomWindow, IntervalWindow, Window
from arcbeam.testing.calendars import Days, Months, Years
from arcbeam.testing.windowfns import FixedWindows, GlobalWindows, Sessions, SlidingWindows, WindowFn

FIXED_OFFSET: Final = 3
"""The offset of all fixed windows."""
LEAP_MONTH: Final = 2
"""The month in which windows of years begin."""


@dataclass(frozen=True)
class Windowing:
    """A windowing.

    Attributes:
        name: see `WINDOWINGS`.
        size: the size in microseconds; for calendar windows, the number of days, months or years.
        zone: the time zone of calendar windows.
        day: the day of the month on which windows of months and years begin.
    """

    name: str = "fixed"
    size: int = 10
    zone: str = "UTC"
    day: int = 1

    @cached_property
    def fn(self) -> WindowFn:
        """Return the function that assigns the windows: the engine's, or a custom one."""
        return WINDOWINGS[self.name](self)

    @property
    def merging(self) -> Merging | None:
        """Return how the engine merges the windows; None if they do not merge."""
        fn = self.fn
        if isinstance(fn, Sessions):
            return SessionMerging()
        return CustomMerging(fn, fn.intervals) if isinstance(fn, (Gaps, Clusters)) else None

    @property
    def merges(self) -> bool:
        """Return whether windows of a key merge."""
        return self.name in MERGING

    @property
    def decode(self) -> Decode:
        """Return the function that decodes a window from its bytes."""
        match self.name:
            case "global":
                return lambda data: GLOBAL_WINDOW
            case "lanes" | "clusters":
                return CustomWindow.from_ordered
            case _:
                return IntervalWindow.from_ordered


@dataclass(frozen=True)
class Lanes(WindowFn):
    """Custom windows that do not merge, and differ only in their bytes.

    Each span has two windows; the second one has only odd timestamps.
    """

    size: int

    @override
    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        start = timestamp // self.size * self.size
        last = Timestamp(min(start + self.size - 1, END_OF_GLOBAL_WINDOW))
        lanes = (b"left", b"right") if timestamp % 2 else (b"left",)
        return tuple(CustomWindow(b"%b lane of %d" % (lane, start), last) for lane in lanes)


@dataclass(frozen=True)
class Gaps(WindowFn):
    """Custom sessions, as intervals: those of odd timestamps are twice as long."""

    size: int
    intervals: bool = True

    @override
    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        return (IntervalWindow(timestamp, Timestamp(timestamp + self.size * (1 + timestamp % 2))),)

    def merge(self, windows: Collection[Window]) -> Iterator[Merge]:
        """See `MergingFn`: overlapping windows merge."""
        ordered = sorted(window for window in windows if isinstance(window, IntervalWindow))
        for together in overlapping(ordered):
            if len(together) > 1:
                yield Merge(tuple(together), hull(together))


@dataclass(frozen=True)
class Clusters(MergingFn, WindowFn):
    """Windows of a custom type. All windows of a span merge into one, from the first to the last timestamp.

    All windows of a span end with it.
    """

    size: int
    intervals: bool = False

    def of(self, first: int, last: int) -> CustomWindow:
        """Return the window from a first to a last timestamp of the same span."""
        end = (first // self.size + 1) * self.size - 1
        return CustomWindow(b"%d to %d" % (first, last), Timestamp(min(end, END_OF_GLOBAL_WINDOW)))

    @override
    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        return (self.of(timestamp, timestamp),)

    @override
    def merge(self, windows: Collection[Window]) -> Iterator[Merge]:
        spans: dict[int, list[tuple[int, int, Window]]] = {}
        for window in windows:
            assert isinstance(window, CustomWindow)
            first, last = map(int, window.encoded.split(b" to "))
            spans.setdefault(first // self.size, []).append((first, last, window))
        for span in spans.values():
            if len(span) > 1:
                whole = self.of(min(first for first, _, _ in span), max(last for _, last, _ in span))
                yield Merge(tuple(window for _, _, window in span), whole)


def overlapping(ordered: Iterable[IntervalWindow]) -> Iterator[list[IntervalWindow]]:
    """Yield groups of overlapping intervals; the intervals are ordered by their starts."""
    together: list[IntervalWindow] = []
    for interval in ordered:
        if together and interval.start >= max(each.end for each in together):
            yield together
            together = []
        together.append(interval)
    if together:
        yield together


def hull(together: Collection[IntervalWindow]) -> IntervalWindow:
    """Return the interval that covers all these intervals."""
    return IntervalWindow(min(each.start for each in together), max(each.end for each in together))


MERGING: Final = frozenset({"sessions", "gaps", "clusters"})
CALENDAR: Final = ("days", "months", "years")
WINDOWINGS: Final[Mapping[str, Callable[[Windowing], WindowFn]]] = {
    "global": lambda of: GlobalWindows(),
    "fixed": lambda of: FixedWindows(Duration(of.size), Duration(FIXED_OFFSET)),
    "sliding": lambda of: SlidingWindows(Duration(of.size), Duration(max(of.size // 2, 1)), Duration(0)),
    "sessions": lambda of: Sessions(Duration(of.size)),
    "days": lambda of: Days(of.size, zone=of.zone),
    "months": lambda of: Months(of.size, of.day, zone=of.zone),
    "years": lambda of: Years(of.size, LEAP_MONTH, of.day, zone=of.zone),
    "lanes": lambda of: Lanes(of.size),
    "gaps": lambda of: Gaps(of.size),
    "clusters": lambda of: Clusters(of.size),
}
"""The window function of each windowing, by name."""
TENS: Final = Windowing("fixed", 10)
