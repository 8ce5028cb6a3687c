"""The windowings of simulated jobs: Beam's (`testing.windowfns`, `testing.calendars`), and some as a user might write.

Owns their names, what each is to the engine, and the user's functions. What they must give is told once more, without
the engine, in `assigning`. Must not know stages.
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
"""Of all fixed windows."""
LEAP_MONTH: Final = 2
"""In which windows of years begin."""


@dataclass(frozen=True)
class Windowing:
    """Windows.

    Attributes:
        name: see `WINDOWINGS`.
        size: in microseconds; of the calendar's: how many days, months or years.
        zone: of the calendar's.
        day: of the month, on which windows of months and years begin.
    """

    name: str = "fixed"
    size: int = 10
    zone: str = "UTC"
    day: int = 1

    @cached_property
    def fn(self) -> WindowFn:
        """What assigns them: the engine's, or the user's."""
        return WINDOWINGS[self.name](self)

    @property
    def merging(self) -> Merging | None:
        """What the engine is told of how they become one; None if they do not."""
        fn = self.fn
        if isinstance(fn, Sessions):
            return SessionMerging()
        return CustomMerging(fn, fn.intervals) if isinstance(fn, (Gaps, Clusters)) else None

    @property
    def merges(self) -> bool:
        """Whether windows of a key become one."""
        return self.name in MERGING

    @property
    def decode(self) -> Decode:
        """Makes a window of its bytes."""
        match self.name:
            case "global":
                return lambda data: GLOBAL_WINDOW
            case "lanes" | "clusters":
                return CustomWindow.from_ordered
            case _:
                return IntervalWindow.from_ordered


@dataclass(frozen=True)
class Lanes(WindowFn):
    """A user's windows that do not merge, and that only their bytes tell apart: two of each span, and the second one
    has every other moment only.
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
    """A user's sessions, as intervals: those of odd moments are twice as long."""

    size: int
    intervals: bool = True

    @override
    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        return (IntervalWindow(timestamp, Timestamp(timestamp + self.size * (1 + timestamp % 2))),)

    def merge(self, windows: Collection[Window]) -> Iterator[Merge]:
        """See `MergingFn`: what overlaps."""
        ordered = sorted(window for window in windows if isinstance(window, IntervalWindow))
        for together in overlapping(ordered):
            if len(together) > 1:
                yield Merge(tuple(together), hull(together))


@dataclass(frozen=True)
class Clusters(MergingFn, WindowFn):
    """A user's windows of its own type: all moments of a span become one, of the first and last of them. All windows of
    a span end with it.
    """

    size: int
    intervals: bool = False

    def of(self, first: int, last: int) -> CustomWindow:
        """The window of such moments, both of one span."""
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
    """Intervals in the order of their starts, those that overlap together."""
    together: list[IntervalWindow] = []
    for interval in ordered:
        if together and interval.start >= max(each.end for each in together):
            yield together
            together = []
        together.append(interval)
    if together:
        yield together


def hull(together: Collection[IntervalWindow]) -> IntervalWindow:
    """What intervals become."""
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
"""The windowings by name."""
TENS: Final = Windowing("fixed", 10)
