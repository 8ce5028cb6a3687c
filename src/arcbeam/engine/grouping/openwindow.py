"""One open window of one key: what it holds, its trigger, its panes, and what it waits for.

Owns the life of a window: elements come, the watermark passes its end, it expires; its trigger fires in between; it
grows and swallows others. Must not know the key's other windows, nor how it is stored (`engine.grouping.record`,
`engine.grouping.contents`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from arcbeam.engine.grouping.contents import Accumulated, Bag, Contents
from arcbeam.engine.grouping.effects import DropHeld, DropLate, DropReason, Effect, EmitPane
from arcbeam.engine.grouping.record import Record
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.grouping.triggers import UNLIMITED, Moment, Trigger
from arcbeam.engine.grouping.triggerstate import dump, load
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import PaneInfo, Timing, Window
from arcbeam.sizes import cache_size


class Clocks(NamedTuple):
    """What time it is.

    Attributes:
        now: processing time.
        input_watermark: of the grouping.
        output_watermark: of the grouping; not ahead of its input's.
    """

    now: Timestamp
    input_watermark: Timestamp
    output_watermark: Timestamp

    def at_most(self, watermark: Timestamp) -> Clocks:
        """The same, but when the input watermark was no further than that."""
        return Clocks(self.now, min(watermark, self.input_watermark), min(watermark, self.output_watermark))


class Wakeups(NamedTuple):
    """What a window asks its surroundings for; None for nothing.

    Attributes:
        hold: where the output watermark may not pass.
        event: when it is to be looked at in event time.
        alarm: the same in processing time.
    """

    hold: Timestamp | None = None
    event: Timestamp | None = None
    alarm: Timestamp | None = None


class Bounds(NamedTuple):
    """What a window is to a strategy.

    Attributes:
        end: the last moment in it.
        expiry: it has expired when the input watermark is behind that.
        ordered: its bytes in keys.
    """

    end: Timestamp
    expiry: Timestamp
    ordered: bytes


class Rules:
    """What a strategy comes to, worked out once.

    Attributes:
        timed: whether the trigger ever follows the clock.
        first_room: of a trigger in its first state, before the watermark has passed.
        gathers: whether nothing but the watermark's passing the end of a window makes a pane of what is in it, at a
            time that no element decides on. Up to there nothing need be known of what comes.
    """

    _MOST_KNOWN = cache_size(10_000)

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.trigger = strategy.trigger.fresh()
        self.timed = self.trigger.timed()
        self.combine_times = strategy.combine_times
        self.output_time = strategy.output_time
        self.awaits_end = strategy.awaits_end
        self.empty_last = strategy.empty_last
        self.accumulating = strategy.accumulating
        # Where the end is waited for anyway, the pane that comes then has the times of all its elements.
        self.keeps_hold = strategy.accumulating and strategy.trigger.on_time()
        self.first_room = room_of(self.trigger, Moment(Timestamp(0)))
        apart = self.combine_times is None and strategy.merging is None and strategy.combiner is None
        self.gathers = apart and self.first_room == UNLIMITED
        self._bounds: dict[Window, Bounds] = {}

    def expiry(self, window: Window) -> Timestamp:
        """Return the time after which the input watermark makes the window expire."""
        # Most windows that merge belong to one key: they are not worth caching.
        return self.bounds(window).expiry if self.strategy.merging is None else self.strategy.expiry(window)

    def bounds(self, window: Window) -> Bounds:
        """What the window is; most are those of many keys."""
        bounds = self._bounds.get(window)
        if bounds is None:
            if len(self._bounds) >= self._MOST_KNOWN:
                self._bounds.clear()
            bounds = Bounds(window.max_timestamp, self.strategy.expiry(window), window.ordered())
            self._bounds[window] = bounds
        return bounds


def room_of(trigger: Trigger, at: Moment) -> int:
    """How many elements may come before a trigger is told and asked."""
    return 1 if trigger.eager() else max(1, trigger.room(at))


_new = tuple.__new__
"""Makes a named tuple without the Python call of its class."""
_EARLY, _ON_TIME, _LATE = Timing.EARLY, Timing.ON_TIME, Timing.LATE


C = TypeVar("C", bound=Contents)
Stored = Bag | Accumulated
"""Contents that can be stored."""


class OpenWindow(Generic[C]):
    """See the module.

    Args:
        rules: of the grouping.
        key: of the grouping.
        window: which one.
        record: what is known of it; changed in place.
        contents: what it holds.
        out: where effects go.
    """

    __slots__ = (
        "_expires", "_key", "_out", "_rules", "_trigger", "contents", "end", "expired", "record", "window",
    )  # fmt: skip

    def __init__(
        self,
        rules: Rules,
        key: bytes,
        window: Window,
        record: Record,
        contents: C,
        out: list[Effect],
    ) -> None:
        self._rules = rules
        self._key = key
        self._out = out
        self._trigger: Trigger | None = None
        self._expires: Timestamp | None
        self.record = record
        self.contents = contents
        self.expired = False
        self._become(window)

    def _become(self, window: Window) -> None:
        self.window = window
        self.end = window.max_timestamp
        self._expires = None

    @property
    def _expiry(self) -> Timestamp:
        if self._expires is None:
            self._expires = self._rules.expiry(self.window)
        return self._expires

    # What happens to it.

    def begin(self, clocks: Clocks) -> None:
        """It is new."""
        if clocks.input_watermark > self.end:
            self.record.passed = True
            self._rearm(clocks)

    def add(self, values: Sequence[Any], times: Sequence[Timestamp], clocks: Clocks) -> None:
        """Elements come, in order; what panes hold does not depend on how they were cut.

        The window has seen what time it is (`look`).
        """
        record, count = self.record, len(values)
        if count < record.room and not record.closed:
            self._put(values, times, clocks)
            return
        start = 0
        while start < count and not record.closed:
            end = start + record.room
            self._put(values[start:end], times[start:end], clocks)
            start = min(end, count)
            if not record.room:
                self._ask(clocks)
        if start < count:
            key, window, watermark, reason = self._key, self.window, clocks.input_watermark, DropReason.CLOSED
            late = zip(values[start:], times[start:], strict=True)
            self._out += [_new(DropLate, (key, window, value, time, watermark, reason)) for value, time in late]

    def look(self, clocks: Clocks, ticked: bool = False) -> None:
        """Time has gone by: what was due happens.

        Args:
            clocks: what time it is.
            ticked: all elements that had come by now are there: what is due now is due.
        """
        record, rules = self.record, self._rules
        expired = clocks.input_watermark > self._expiry
        if not record.passed and clocks.input_watermark > self.end:
            record.passed = True
            if not record.closed:
                self._pass(clocks, expired)
        elif expired and not record.closed and (record.fresh or rules.empty_last):
            self._emit(last=True)
        self.expired = expired
        alarm = record.alarm
        if alarm is not None and not expired and (clocks.now > alarm or (ticked and clocks.now == alarm)):
            self._ask(clocks, ticked=True)

    def wakeups(self) -> Wakeups:
        """What it waits for."""
        record, rules = self.record, self._rules
        if record.closed:
            return Wakeups(None, self._expiry)
        hold: Timestamp | None = None
        if record.passed and not record.on_time:
            # What is late goes out before it would be too late for who reads it.
            hold = self._expiry if record.fresh or rules.empty_last else None
        elif record.hold is not None:
            hold = record.hold
        elif record.fresh or (rules.awaits_end and not record.passed):
            hold = self.end
        elif rules.empty_last:
            hold = self._expiry
        return Wakeups(hold, self._expiry if record.passed else self.end, record.alarm)

    def grow(self, window: Window, clocks: Clocks) -> None:
        """It becomes another window, and is of none of its panes so far."""
        record = self.record
        self._become(window)
        record.index = record.nonspeculative = 0
        if record.passed and clocks.input_watermark <= self.end:
            self._tell(clocks)
            self._machine().rewind()
            record.passed = record.on_time = False
            self._settle(clocks)

    def absorb(self, other: OpenWindow[C], clocks: Clocks) -> None:
        """Another has become one with it; that one is used up. Both have seen what time it is."""
        mine, theirs, combine = self.record, other.record, self._rules.combine_times
        self._tell(clocks)
        other._tell(clocks)
        self._machine().merge(other._machine())
        if not mine.passed:
            self._machine().rewind()
        self.contents.absorb(other.contents)
        mine.fresh += theirs.fresh
        mine.on_time = mine.passed and (mine.on_time or theirs.on_time)
        if combine is not None and theirs.hold is not None:
            mine.hold = theirs.hold if mine.hold is None else combine([mine.hold, theirs.hold])
        self._settle(clocks)

    def pack(self: OpenWindow[Stored]) -> bytes:
        """Its record."""
        record, contents = self.record, self.contents
        if self._trigger is not None:
            record.trigger = dump(self._trigger)
        record.contents = contents.store()
        record.entries, record.address = contents.entries, contents.address
        return record.pack(self._rules.first_room)

    # Elements.

    def _put(self, values: Sequence[Any], times: Sequence[Timestamp], clocks: Clocks) -> None:
        record, count = self.record, len(values)
        self.contents.add(values)
        record.room -= count
        record.untold += count
        record.fresh += count
        combine = self._rules.combine_times
        if combine is not None and not record.passed:
            shift = self._rules.output_time
            if shift is not None:
                times = [shift(self.window, time) for time in times]
            # What is behind the output watermark cannot hold it, and is put out at the end of the window if alone.
            least = clocks.output_watermark
            held = [time for time in times if time >= least]
            if held:
                if record.hold is not None:
                    held.append(record.hold)
                record.hold = combine(held)

    # The trigger.

    def _machine(self) -> Trigger:
        if self._trigger is None:
            self._trigger = load(self._rules.trigger, self.record.trigger)
        return self._trigger

    def _tell(self, clocks: Clocks) -> None:
        record = self.record
        if record.untold:
            self._machine().add(record.untold, clocks.now)
            record.untold = 0

    def _moment(self, clocks: Clocks, ticked: bool = False) -> Moment:
        return Moment(clocks.now, self.record.passed, ticked)

    def _rearm(self, clocks: Clocks, ticked: bool = False) -> None:
        record, at, machine = self.record, self._moment(clocks, ticked), self._machine()
        if self._rules.timed:
            record.room, record.alarm = room_of(machine, at), machine.alarm(at)
        else:
            record.room = max(1, machine.room(at))

    def _ask(self, clocks: Clocks, ticked: bool = False) -> None:
        self._tell(clocks)
        at, machine = self._moment(clocks, ticked), self._machine()
        if machine.ready(at):
            finished = machine.fire(at)
            if self.record.fresh or (finished and self._rules.empty_last):
                self._emit(last=finished)
            if finished:
                self._close()
                return
        self._rearm(clocks, ticked)

    def _pass(self, clocks: Clocks, expired: bool) -> None:
        """The watermark has passed its end."""
        record, rules = self.record, self._rules
        if expired and record.fresh:
            # The pane of the watermark and that of the closing are one.
            record.on_time = True
            self._emit(last=True)
            return
        self._tell(clocks)
        at, machine = self._moment(clocks), self._machine()
        fires = machine.ready(at)
        wanted = record.fresh > 0 or (fires and rules.awaits_end)
        # An empty pane of the closing alone is late, unless a window closes at its end.
        record.on_time = wanted or self.end == self._expiry
        if expired:
            if wanted or rules.empty_last:
                self._emit(last=True)
        elif fires:
            finished = machine.fire(at)
            if wanted or (finished and rules.empty_last):
                self._emit(last=finished)
            if finished:
                self._close()
                return
        record.on_time = record.fresh > 0
        self._rearm(clocks)

    def _settle(self, clocks: Clocks) -> None:
        """Its trigger has changed because it has become one with others."""
        if self._machine().finished():
            if self.record.fresh:
                count, contents = self.record.fresh, self.contents.take(keep=False)
                self._out.append(DropHeld(self._key, self.window, contents, count, clocks.input_watermark))
            self._close()
        else:
            self.record.closed = False
            self._rearm(clocks)

    def _close(self) -> None:
        record = self.record
        record.closed, record.on_time, record.fresh, record.untold = True, False, 0, 0
        record.hold = record.alarm = None
        self.contents.clear()

    # Panes.

    def _emit(self, *, last: bool) -> None:
        record, rules = self.record, self._rules
        index, nonspeculative, timing = record.index, -1, _EARLY
        record.index += 1
        if record.passed:
            nonspeculative = record.nonspeculative
            record.nonspeculative += 1
            timing = _ON_TIME if record.on_time and not nonspeculative else _LATE
        keep = rules.accumulating and not last
        contents = self.contents.take(keep)
        timestamp = self.end if record.hold is None else record.hold
        info = _new(PaneInfo, (index, nonspeculative, timing, not index, last))
        self._out.append(_new(EmitPane, (self._key, self.window, contents, timestamp, info)))
        record.fresh = 0
        record.on_time = False
        if record.passed or not rules.keeps_hold:
            record.hold = None
