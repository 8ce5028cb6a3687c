"""The open windows of one key, and their merging.

Owns which windows merge when a window arrives, and which have to be known for that. Must not know what belongs to
windows: it returns the merges (`engine.grouping.groupings` moves elements, triggers, holds and timers).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from typing_extensions import override

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, Timestamp
from arcbeam.model.windows import CustomWindow, IntervalWindow, Window


class Merge(NamedTuple):
    """Windows that are merged.

    Attributes:
        windows: the windows that disappear, except for `result` if it is among them.
        result: the merged window.
    """

    windows: tuple[Window, ...]
    result: Window


class MergingFn(Protocol):
    """Decides which windows of one key merge, for custom window functions."""

    def merge(self, windows: Collection[Window]) -> Iterable[Merge]:
        """Return the merges among the open windows; each window is in at most one merge."""
        ...


class OpenWindows(Protocol):
    """The windows of a key: open ones, and arriving ones."""

    def insert(self, window: Window) -> Sequence[Merge]:
        """Add an arriving window, or one that arrives again; return the resulting merges, in order."""
        ...


_window_of = itemgetter(2)
_end_of = itemgetter(1)

Scan = Callable[[bytes], Iterator[tuple[bytes, bytes]]]


class Joined(NamedTuple):
    """Elements whose windows merge, whatever other windows there are.

    Attributes:
        window: the merged window.
        values: the values of the elements.
        times: the times of the elements.
    """

    window: Window
    values: Sequence[Any]
    times: Sequence[Timestamp]


class Merging(Protocol):
    """How windows merge."""

    def join(self, arrived: Sequence[tuple[Any, Timestamp, Window]], watermark: Timestamp) -> list[Joined] | None:
        """Return the elements together whose windows certainly merge; None if they must be handled one by one.

        Args:
            arrived: elements, each in one window; at least one.
            watermark: it has not passed the end of any returned window.
        """
        ...

    def near(self, windows: Iterable[Window], scan: Scan) -> Iterator[tuple[Window, bytes]]:
        """Yield the open windows that may merge with these; ascending, each with its record.

        Args:
            windows: at least one.
            scan: the bytes of open windows from some bytes on, each with its record.
        """
        ...

    def open(self, windows: Iterable[Window]) -> OpenWindows:
        """Return the windows of a key, with these open ones; ascending."""
        ...


@dataclass(frozen=True, slots=True)
class SessionMerging(Merging):
    """Overlapping intervals merge; only intervals that overlap are read."""

    def join(self, arrived: Sequence[tuple[Any, Timestamp, Window]], watermark: Timestamp) -> list[Joined] | None:
        """See `Merging`; sorted by window."""
        # SUBTLE: after the end of the global window every window has ended, whatever its bounds.
        if watermark > END_OF_GLOBAL_WINDOW or min(map(_end_of, map(_window_of, arrived))) <= watermark:
            return None
        joined: list[Joined] = []
        values: list[Any] = []
        times: list[Timestamp] = []
        ordered: Any = sorted(arrived, key=_window_of)
        first, end = ordered[0][2]
        for value, time, (start, behind) in ordered:
            if start >= end:
                joined.append(Joined(IntervalWindow(first, end), values, times))
                first, end, values, times = start, behind, [], []
            elif behind > end:
                end = behind
            values.append(value)
            times.append(time)
        joined.append(Joined(IntervalWindow(first, end), values, times))
        return joined

    @override
    def near(self, windows: Iterable[Window], scan: Scan) -> Iterator[tuple[Window, bytes]]:
        intervals = [window for window in windows if isinstance(window, IntervalWindow)]
        end = max(interval.end for interval in intervals)
        # Open sessions do not overlap, so the order of their ends is that of their starts.
        for ordered, record in scan(IntervalWindow.behind(min(interval.start for interval in intervals))):
            window = IntervalWindow.from_ordered(ordered)
            if window.start >= end:
                break
            yield window, record

    @override
    def open(self, windows: Iterable[Window]) -> OpenWindows:
        return _Sessions([window for window in windows if isinstance(window, IntervalWindow)])


class _Sessions:
    """Invariant: session i is from `_starts[i]` to `_ends[i]`; both ascend; sessions do not overlap."""

    def __init__(self, sessions: list[IntervalWindow]) -> None:
        self._sessions = sessions
        self._starts = [session.start for session in sessions]
        self._ends = [session.end for session in sessions]

    def insert(self, window: Window) -> Sequence[Merge]:
        assert isinstance(window, IntervalWindow)
        start, end = window
        # Sessions that only touch are not merged.
        first, behind = bisect_right(self._ends, start), bisect_left(self._starts, end)
        near = self._sessions[first:behind]
        result = window
        if near:
            start, end = min(start, near[0].start), max(end, near[-1].end)
            if len(near) == 1 and start == near[0].start and end == near[0].end:
                return () if window == near[0] else (Merge((window,), near[0]),)
            result = IntervalWindow(start, end)
        self._starts[first:behind], self._ends[first:behind], self._sessions[first:behind] = [start], [end], [result]
        return (Merge((window, *near), result),) if near else ()


@dataclass(frozen=True, slots=True)
class CustomMerging(Merging):
    """A function of the user decides how windows merge.

    Attributes:
        fn: that function.
        intervals: its windows are intervals, not a type of its own.
    """

    fn: MergingFn
    intervals: bool = False

    def join(self, arrived: Sequence[tuple[Any, Timestamp, Window]], watermark: Timestamp) -> list[Joined] | None:
        """See `Merging`: the function's result may depend on the order."""
        return None

    def near(self, windows: Iterable[Window], scan: Scan) -> Iterator[tuple[Window, bytes]]:
        """See `Merging`: all open windows may merge."""
        decode = IntervalWindow.from_ordered if self.intervals else CustomWindow.from_ordered
        for ordered, record in scan(b""):
            yield decode(ordered), record

    @override
    def open(self, windows: Iterable[Window]) -> OpenWindows:
        return _Custom(self.fn, windows)


class _Custom:
    """Invariant: `_windows` is the function's result for all open and arrived windows; in order."""

    def __init__(self, fn: MergingFn, windows: Iterable[Window]) -> None:
        self._fn = fn
        self._windows: dict[Window, None] = dict.fromkeys(windows)

    def insert(self, window: Window) -> Sequence[Merge]:
        if window in self._windows:
            return ()
        self._windows[window] = None
        merges = [merge for merge in self._fn.merge(tuple(self._windows)) if set(merge.windows) != {merge.result}]
        for merge in merges:
            for merged in merge.windows:
                if merged not in self._windows:
                    raise ValueError(
                        f"{type(self._fn).__name__}.merge merges {merged}, which is not open (any more):"
                        " it may merge each window once, and only the windows that it receives"
                    )
                del self._windows[merged]
        self._windows.update((merge.result, None) for merge in merges)
        return merges
