"""The open windows of one key that may become one.

Owns which of them do when a window comes, and which have to be known for that. Must not know what hangs on windows:
it says what becomes what (`engine.grouping.groupings` moves elements, triggers, holds and timers).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, Timestamp
from arcbeam.model.windows import CustomWindow, IntervalWindow, Window


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


class OpenWindows(Protocol):
    """The windows of a key: those that are open, and those that have come."""

    def insert(self, window: Window) -> Sequence[Merge]:
        """A window has come, or comes again; returns what becomes one thereby, in order."""
        ...


_window_of = itemgetter(2)
_end_of = itemgetter(1)

Scan = Callable[[bytes], Iterator[tuple[bytes, bytes]]]


class Joined(NamedTuple):
    """Elements whose windows become one whatever else there is.

    Attributes:
        window: what they become.
        values: of the elements.
        times: of the elements.
    """

    window: Window
    values: Sequence[Any]
    times: Sequence[Timestamp]


class Merging(Protocol):
    """How windows become one."""

    def join(self, came: Sequence[tuple[Any, Timestamp, Window]], watermark: Timestamp) -> list[Joined] | None:
        """Elements together that are certain to be; None if one after the other has to be looked at.

        Args:
            came: elements, each in one window; one at least.
            watermark: the end of none of what is returned is behind it.
        """
        ...

    def near(self, windows: Iterable[Window], scan: Scan) -> Iterator[tuple[Window, bytes]]:
        """The open windows that may become one with these; ascending, each with its record.

        Args:
            windows: one at least.
            scan: the bytes of open windows from some bytes on, each with its record.
        """
        ...

    def open(self, windows: Iterable[Window]) -> OpenWindows:
        """The windows of a key, of which those are open; ascending."""
        ...


@dataclass(frozen=True, slots=True)
class SessionMerging:
    """Intervals that overlap become one; no more than those that do are looked at."""

    def join(self, came: Sequence[tuple[Any, Timestamp, Window]], watermark: Timestamp) -> list[Joined] | None:
        """See `Merging`; sorted by window."""
        # SUBTLE: beyond the end of the global window every window has ended, whatever its bounds.
        if watermark > END_OF_GLOBAL_WINDOW or min(map(_end_of, map(_window_of, came))) <= watermark:
            return None
        joined: list[Joined] = []
        values: list[Any] = []
        times: list[Timestamp] = []
        ordered: Any = sorted(came, key=_window_of)
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

    def near(self, windows: Iterable[Window], scan: Scan) -> Iterator[tuple[Window, bytes]]:
        """See `Merging`."""
        intervals = [window for window in windows if isinstance(window, IntervalWindow)]
        end = max(interval.end for interval in intervals)
        # Sessions that are open do not overlap: in the order of their ends they are in that of their starts.
        for ordered, record in scan(IntervalWindow.behind(min(interval.start for interval in intervals))):
            window = IntervalWindow.from_ordered(ordered)
            if window.start >= end:
                break
            yield window, record

    def open(self, windows: Iterable[Window]) -> OpenWindows:
        """See `Merging`."""
        return _Sessions([window for window in windows if isinstance(window, IntervalWindow)])


class _Sessions:
    """Invariant: session i is from `_starts[i]` to `_ends[i]`; both ascend; none reaches into the next."""

    def __init__(self, sessions: list[IntervalWindow]) -> None:
        self._sessions = sessions
        self._starts = [session.start for session in sessions]
        self._ends = [session.end for session in sessions]

    def insert(self, window: Window) -> Sequence[Merge]:
        assert isinstance(window, IntervalWindow)
        start, end = window
        # Sessions that only touch stay two.
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
class CustomMerging:
    """Windows become one as a function of the user's says.

    Attributes:
        fn: that function.
        intervals: its windows are intervals, not its own.
    """

    fn: MergingFn
    intervals: bool = False

    def join(self, came: Sequence[tuple[Any, Timestamp, Window]], watermark: Timestamp) -> list[Joined] | None:
        """See `Merging`: what the function makes of them may depend on the order."""
        return None

    def near(self, windows: Iterable[Window], scan: Scan) -> Iterator[tuple[Window, bytes]]:
        """See `Merging`: all of them may."""
        decode = IntervalWindow.from_ordered if self.intervals else CustomWindow.from_ordered
        for ordered, record in scan(b""):
            yield decode(ordered), record

    def open(self, windows: Iterable[Window]) -> OpenWindows:
        """See `Merging`."""
        return _Custom(self.fn, windows)


class _Custom:
    """Invariant: `_windows` is what the function has made of all windows that are open and that came; in order."""

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
                        f"{type(self._fn).__name__}.merge merges {merged}, which is not open, or not any more:"
                        " it may merge each window once, and only those that it is given"
                    )
                del self._windows[merged]
        self._windows.update((merge.result, None) for merge in merges)
        return merges
