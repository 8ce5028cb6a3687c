"""Panes: what a grouping by key puts out when its trigger may fire more than once.

Owns the open windows of one key: merging them, what has come into each since its last pane, and each pane's place in
the sequence of its window. Must not know how elements arrive nor where panes go.

On a bounded input all elements of a key come while the watermark is at the beginning of time, then `finish` lets it
pass everything; `advance` stops it on the way.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from apache_beam.coders.coders import IntervalWindowCoder
from apache_beam.transforms.window import IntervalWindow, Sessions, WindowFn
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming

from arcbeam.engine.grouping.triggers import Moment, Trigger
from arcbeam.harness.encoding.frames import Chunks
from arcbeam.model import timestamps as model

_ENDLESS = 1 << 63
"""A watermark behind every window, microseconds."""
_AT_ONCE = model.Timestamp(0)
"""The processing time of a trigger that does not look at it."""
_EARLY, _ON_TIME, _LATE = PaneInfoTiming.EARLY, PaneInfoTiming.ON_TIME, PaneInfoTiming.LATE


class Strategy:
    """How elements are grouped.

    Args:
        windowfn: the SDK's window function; asked only to merge.
        trigger: in its first state.
        accumulating: a pane has all elements of its window so far, not only those since the last pane.
        timestamp: `min` or `max`: a pane's timestamp is the earliest or latest of its elements; None: the window's end.
        lateness: how long after its end a window is open, microseconds.
        empty_on_time: a trigger that fires when the watermark passes makes a pane even if nothing came since the last.
        empty_last: so does the closing of a window.
    """

    def __init__(
        self,
        windowfn: WindowFn,
        trigger: Trigger,
        *,
        accumulating: bool = False,
        timestamp: Callable[[int, int], int] | None = None,
        lateness: int = 0,
        empty_on_time: bool = True,
        empty_last: bool = False,
    ) -> None:
        self.windowfn = windowfn
        self.merging: bool = windowfn.is_merging()
        self.intervals = type(windowfn.get_window_coder()) is IntervalWindowCoder
        self.trigger = trigger
        self.timed = trigger.timed()
        self.accumulating = accumulating
        self.timestamp = timestamp
        self.lateness = lateness
        self.empty_on_time = empty_on_time and trigger.on_time()
        # Where the end is waited for, the pane that comes then has the time of all its elements: see
        # docs/developers/engine.md.
        self.keeps_hold = accumulating and trigger.on_time()
        self.empty_last = empty_last


class Pane(NamedTuple):
    """One firing of a window.

    Attributes:
        window: whose pane it is.
        values: the latest of its values.
        spilled: what `Panes.spill` has put away of the values before those; None for nothing.
        timestamp: of the pane, as an element.
        info: its place among the window's panes.
    """

    window: Any
    values: list[Any]
    spilled: Chunks | None
    timestamp: Timestamp
    info: PaneInfo


class Dropped(NamedTuple):
    """Elements that came to nothing in a window.

    Attributes:
        window: in which.
        values: of them.
        spilled: as of a `Pane`.
        micros: their event time; of what the window held when it was closed, the last moment of the window.
        watermark: when they were dropped, microseconds.
        expired: the window had; else its trigger had finished.
    """

    window: Any
    values: list[Any]
    spilled: Chunks | None
    micros: int
    watermark: int
    expired: bool


class _Cell:
    """An open window of the key.

    Attributes:
        id: of the window, see `Panes`.
        end: of the window, microseconds.
        trigger: knows of all elements but the last `told - room`.
        room: how many more elements may come before the trigger is asked.
        told: what `room` was when the trigger was asked last.
        fresh: elements since the last pane that were told to the trigger.
        hold: the timestamp of the next pane, microseconds, if any of its elements counts for it.
        closed: the trigger is finished: nothing comes out any more.
        passed: the watermark has passed its end.
    """

    __slots__ = (
        "closed", "end", "fresh", "hold", "id", "index", "nonspeculative", "passed", "room", "spilled", "timed", "told",
        "trigger", "values", "window",
    )  # fmt: skip

    def __init__(self, id: Any, window: Any, trigger: Trigger, timed: bool, watermark: int) -> None:
        self.trigger, self.timed = trigger, timed
        self.values: list[Any] = []
        self.spilled: Chunks | None = None
        self.fresh = 0
        self.hold: int | None = None
        self.closed = False
        self.become(id, window, watermark)
        self.rearm()

    def become(self, id: Any, window: Any, watermark: int) -> None:
        """It is of that window now, and of none of its panes so far."""
        self.id, self.window = id, window
        self.end: int = window.end.micros
        self.passed = self.end <= watermark
        self.index = self.nonspeculative = 0

    def tell(self, now: int) -> None:
        """The trigger catches up with the elements."""
        count = self.told - self.room
        if count:
            self.trigger.add(count, model.Timestamp(now))
            self.fresh += count
        self.rearm()

    def rearm(self) -> None:
        """The trigger has changed: when is it asked next?"""
        # SUBTLE: what follows the clock must know when an element came, not only that it did.
        self.room = self.told = 1 if self.timed else max(1, self.trigger.room(Moment(_AT_ONCE, self.passed)))

    def absorb(self, other: _Cell, timestamp: Callable[[int, int], int] | None) -> None:
        """The window of `other` became one with this one; triggers of both know of all elements."""
        self.trigger.merge(other.trigger)
        self.values += other.values
        if self.spilled is None:
            self.spilled = other.spilled
        elif other.spilled is not None:
            self.spilled.extend(other.spilled)
        self.fresh += other.fresh
        if timestamp is not None and other.hold is not None:
            self.hold = other.hold if self.hold is None else timestamp(self.hold, other.hold)
        self.closed = self.closed or other.closed
        self.rearm()

    def close(self) -> None:
        """Its trigger has finished."""
        self.closed = True
        self.fresh = 0
        self.values, self.spilled, self.hold = [], None, None


class Panes:
    """The open windows of one key.

    Invariant: `_cells` are the windows that are open, merged, by id: an interval's (start, end), as hashing the SDK's
    object takes longer than all the rest; other windows are their own id.

    Args:
        strategy: how to group.
        keeps_dropped: whether what is dropped is wanted.

    Attributes:
        out: panes that are due; the caller takes them away.
        dropped: what was dropped, in order; the caller takes it away. None if it is not wanted.
        dropped_closed: elements that came to nothing as the trigger of their window had finished, once per window.
        dropped_late: those whose window had expired.
    """

    def __init__(self, strategy: Strategy, keeps_dropped: bool = False) -> None:
        self.dropped: list[Dropped] | None = [] if keeps_dropped else None
        self._strategy = strategy
        self._cells: dict[Any, _Cell] = {}
        self._intervals = strategy.intervals
        self._timestamp = strategy.timestamp
        self._watermark: int = MIN_TIMESTAMP.micros
        self._merging: _Merging | None = None
        if strategy.merging:
            # SUBTLE: not for subclasses, which may merge otherwise.
            sessions = type(strategy.windowfn) is Sessions and strategy.intervals
            self._merging = _Sessions() if sessions else _Merging(strategy.windowfn)
        self.out: list[Pane] = []
        self.dropped_closed = self.dropped_late = 0

    def add(self, elements: Iterable[Any], now: int) -> None:
        """Takes windowed values, one after the other: what a pane holds does not depend on how they were cut.

        What comes when its window has expired, or when its trigger has finished, is dropped and counted.

        Args:
            elements: in order of arrival; the key is not in their values.
            now: processing time, microseconds.
        """
        cells, intervals, timestamp, watermark = self._cells, self._intervals, self._timestamp, self._watermark
        for element in elements:
            value = element.value
            for window in element.windows:
                id = (window._start_micros, window._end_micros) if intervals else window
                cell = cells.get(id) or self._open(id, window, now)
                if cell is None:
                    self.dropped_late += 1
                    self._drop(window, [value], None, element.timestamp_micros, expired=True)
                    continue
                if cell.closed:
                    self.dropped_closed += 1
                    self._drop(cell.window, [value], None, element.timestamp_micros)
                    continue
                cell.values.append(value)
                if timestamp is not None:
                    micros = element.timestamp_micros
                    if micros >= watermark:
                        hold = cell.hold
                        cell.hold = micros if hold is None else timestamp(hold, micros)
                cell.room -= 1
                if not cell.room:
                    cell.tell(now)
                    self._ask(cell, now)

    def tick(self, now: int) -> None:
        """Time has gone by: fires what waits for the clock."""
        if self._strategy.timed:
            for cell in self._cells.values():
                if not cell.closed:
                    self._ask(cell, now)

    def advance(self, watermark: Timestamp, now: int) -> None:
        """The watermark has come to that time: windows that it has passed fire, those that have expired close."""
        self._advance(watermark.micros, now)

    def finish(self, now: int) -> None:
        """The watermark has passed everything: what is left in a window is its last pane."""
        self._advance(_ENDLESS, now)

    def spill(self, put_away: Callable[[Chunks | None, list[Any]], Chunks]) -> None:
        """Gives the values of all windows away.

        Args:
            put_away: adds values to what was put away before, and returns it.
        """
        for cell in self._cells.values():
            if cell.values:
                cell.spilled = put_away(cell.spilled, cell.values)
                cell.values = []

    def _advance(self, watermark: int, now: int) -> None:
        self._watermark = watermark
        for cell in sorted(self._cells.values(), key=lambda cell: cell.end):
            if watermark < cell.end:
                break
            newly, cell.passed = not cell.passed, True
            cell.tell(now)
            expired = self._expired(cell.end)
            if not cell.closed:
                self._pass(cell, Moment(model.Timestamp(now), True), newly, expired)
            if expired:
                del self._cells[cell.id]
                if self._merging is not None:
                    self._merging.remove(cell.window)

    def _pass(self, cell: _Cell, at: Moment, newly: bool, expired: bool) -> None:
        """The watermark has passed the end of the window, just now or before."""
        trigger = cell.trigger
        fires = newly and trigger.ready(at)
        wanted = cell.fresh > 0 or (fires and self._strategy.empty_on_time)
        if expired:
            # The pane of the watermark and that of the closing are one.
            if wanted or self._strategy.empty_last:
                # As in the engine: an empty pane of the closing alone is late, unless a window closes at its end.
                self._emit(cell, last=True, on_time=wanted or self._expiry(cell.end) < cell.end)
        elif fires:
            finished = trigger.fire(at)
            cell.rearm()
            if wanted:
                self._emit(cell, last=finished, on_time=True)
            if finished:
                cell.close()

    def _expired(self, end: int) -> bool:
        return self._watermark > self._expiry(end)

    def _expiry(self, end: int) -> int:
        """The moment with which a window expires, once it is passed; as in the engine, not after the global window."""
        return min(end - 1 + self._strategy.lateness, model.END_OF_GLOBAL_WINDOW)

    def _ask(self, cell: _Cell, now: int) -> None:
        at, trigger = Moment(model.Timestamp(now), cell.passed), cell.trigger
        if trigger.ready(at):
            finished = trigger.fire(at)
            cell.rearm()
            self._emit(cell, last=finished, on_time=False)
            if finished:
                cell.close()

    def _emit(self, cell: _Cell, *, last: bool, on_time: bool) -> None:
        index, nonspeculative, timing = cell.index, -1, _EARLY
        cell.index += 1
        if cell.passed:
            nonspeculative = cell.nonspeculative
            cell.nonspeculative += 1
            timing = _ON_TIME if on_time and not nonspeculative else _LATE
        hold, window, spilled = cell.hold, cell.window, cell.spilled
        # A session at the end of time ends behind it, where no timestamp can be.
        timestamp = min(window.max_timestamp(), MAX_TIMESTAMP) if hold is None else Timestamp(micros=hold)
        info = PaneInfo(not index, last, timing, index, nonspeculative)
        self.out.append(Pane(window, cell.values, spilled, timestamp, info))
        cell.fresh = 0
        if self._strategy.accumulating:
            # SUBTLE: the pane has the list; what comes next must not be in it.
            cell.values = cell.values.copy()
            if spilled is not None:
                cell.spilled = Chunks()
                cell.spilled.extend(spilled)
        else:
            cell.values, cell.spilled = [], None
        if cell.passed or not self._strategy.keeps_hold:
            cell.hold = None

    def _open(self, id: Any, window: Any, now: int) -> _Cell | None:
        """The cell of a window that has none, or of the one it becomes part of; None if that has expired."""
        # Without a watermark yet nothing has expired, and a look at the window's end takes time.
        if self._watermark > MIN_TIMESTAMP.micros and self._expired(window.end.micros):
            return None
        if self._merging is not None:
            for merge in self._merging.insert(window):
                self._merge(merge, now)
                if window in merge.windows:
                    window = merge.result
            id = self._id(window)
        cell = self._cells.get(id)
        if cell is None:
            cell = self._cells[id] = self._cell(id, window)
        return cell

    def _id(self, window: Any) -> Any:
        return (window._start_micros, window._end_micros) if self._intervals else window

    def _cell(self, id: Any, window: Any) -> _Cell:
        return _Cell(id, window, self._strategy.trigger.fresh(), self._strategy.timed, self._watermark)

    def _merge(self, merge: _Merge, now: int) -> None:
        cells, result = self._cells, self._id(merge.result)
        merged = [cells.pop(id) for id in map(self._id, merge.windows) if id in cells]
        # The panes of a window that is no more do not count for the one it becomes part of.
        kept = next((cell for cell in merged if cell.id == result), None) or cells.get(result)
        if kept is None:
            if not merged:
                return
            kept = merged[0]
            kept.become(result, merge.result, self._watermark)
        cells[result] = kept
        kept.tell(now)
        for cell in merged:
            if cell is not kept:
                cell.tell(now)
                kept.absorb(cell, self._timestamp)
        if kept.closed:
            # A trigger that has finished in one of them has finished in all of them together.
            self.dropped_closed += kept.fresh
            if kept.fresh:
                self._drop(
                    kept.window, kept.values, kept.spilled, min(kept.window.max_timestamp(), MAX_TIMESTAMP).micros
                )
            kept.close()

    def _drop(
        self, window: Any, values: list[Any], spilled: Chunks | None, micros: int, *, expired: bool = False
    ) -> None:
        if self.dropped is not None:
            self.dropped.append(Dropped(window, values, spilled, micros, self._watermark, expired))


class _Merge(NamedTuple):
    """Windows that become one."""

    windows: tuple[Any, ...]
    result: Any


class _Merging:
    """The windows of a key under a window function that merges them.

    Invariant: `_windows` is what the function has made of all windows that came.
    """

    def __init__(self, windowfn: WindowFn) -> None:
        self._windowfn = windowfn
        self._windows: set[Any] = set()

    def insert(self, window: Any) -> list[_Merge]:
        """A window has come; returns what becomes one thereby."""
        merges: list[_Merge] = []

        class Context(WindowFn.MergeContext):  # type: ignore[misc]  # Beam is untyped
            def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
                merges.append(_Merge(tuple(to_be_merged), merge_result))

        self._windows.add(window)
        self._windowfn.merge(Context(self._windows))
        for merge in merges:
            self._windows.difference_update(merge.windows)
            self._windows.add(merge.result)
        return merges

    def remove(self, window: Any) -> None:
        """The window has expired."""
        self._windows.discard(window)


class _Sessions(_Merging):
    """The same for the SDK's sessions, without looking at every window of the key each time.

    Invariant: `_starts` is sorted; session i is from `_starts[i]` to `_ends[i]`; none reaches into the next.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._sessions: list[Any] = []

    def insert(self, window: Any) -> list[_Merge]:
        """See `_Merging`."""
        start, end = window._start_micros, window._end_micros
        # Sessions that only touch stay two.
        first, behind = bisect_right(self._ends, start), bisect_left(self._starts, end)
        near = self._sessions[first:behind]
        result = window
        if near:
            start, end = min(start, self._starts[first]), max(end, self._ends[behind - 1])
            if len(near) == 1 and start == self._starts[first] and end == self._ends[first]:
                return [_Merge((window,), near[0])]
            result = IntervalWindow(Timestamp(micros=start), Timestamp(micros=end))
        self._starts[first:behind], self._ends[first:behind], self._sessions[first:behind] = [start], [end], [result]
        return [_Merge((window, *near), result)] if near else []

    def remove(self, window: Any) -> None:
        """See `_Merging`."""
        index = bisect_left(self._starts, window._start_micros)
        del self._starts[index], self._ends[index], self._sessions[index]
