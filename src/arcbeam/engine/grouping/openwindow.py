"""One open window of one key: its contents, its trigger, its panes, its hold and its timers.

Owns the life of a window: elements arrive, the watermark passes its end, it expires. In between, its trigger fires, and
it grows and absorbs other windows. Must not know the key's other windows, nor how it is stored
(`engine.grouping.record`, `engine.grouping.contents`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from arcbeam.engine.grouping.contents import Accumulated, Contents, WindowBag
from arcbeam.engine.grouping.effects import DropHeld, DropLate, DropReason, Effect, EmitPane
from arcbeam.engine.grouping.record import Record
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.grouping.triggers import UNLIMITED, Moment, Trigger
from arcbeam.engine.grouping.triggerstate import dump, load
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import PaneInfo, Timing, Window
from arcbeam.sizes import cache_size


class Clocks(NamedTuple):
    """The current times.

    Attributes:
        now: processing time.
        input_watermark: the input watermark of the grouping.
        output_watermark: the output watermark of the grouping; not ahead of the input watermark.
    """

    now: Timestamp
    input_watermark: Timestamp
    output_watermark: Timestamp

    def at_most(self, watermark: Timestamp) -> Clocks:
        """Return these times with both watermarks limited to `watermark`."""
        return Clocks(self.now, min(watermark, self.input_watermark), min(watermark, self.output_watermark))


class Wakeups(NamedTuple):
    """The hold and the timers that a window requests; None for none.

    Attributes:
        hold: the timestamp that the output watermark must not pass.
        event: the time of its next event timer.
        next_timer: the time of its next processing-time timer.
    """

    hold: Timestamp | None = None
    event: Timestamp | None = None
    next_timer: Timestamp | None = None


class Bounds(NamedTuple):
    """The properties of a window under a strategy.

    Attributes:
        end: its last timestamp.
        expiry: it has expired when the input watermark is greater than this.
        ordered: its bytes in keys.
    """

    end: Timestamp
    expiry: Timestamp
    ordered: bytes


class Rules:
    """The rules derived from a strategy, computed once.

    Attributes:
        timed: whether the trigger may depend on processing time.
        first_until_ready: `elements_until_ready` of a trigger in its first state, before the watermark has passed.
        gathers: whether only the watermark's passing of a window's end makes a pane, at a timestamp that does not
            depend on elements. Before that, elements need no processing.
    """

    _KNOWN_MAX = cache_size(10_000)

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.trigger = strategy.trigger.fresh()
        self.timed = self.trigger.timed()
        self.combine_times = strategy.combine_times
        self.output_time = strategy.output_time
        self.awaits_end = strategy.awaits_end
        self.empty_last = strategy.empty_last
        self.accumulating = strategy.accumulating
        # If an on-time pane is always due, it has the timestamps of all elements, so panes before it keep the hold.
        self.keeps_hold = strategy.accumulating and strategy.trigger.on_time()
        self.first_until_ready = elements_until_ready(self.trigger, Moment(Timestamp(0)))
        apart = self.combine_times is None and strategy.merging is None and strategy.combiner is None
        self.gathers = apart and self.first_until_ready == UNLIMITED
        self._bounds: dict[Window, Bounds] = {}

    def expiry(self, window: Window) -> Timestamp:
        """Return the time after which the input watermark makes the window expire."""
        # Most windows that merge belong to one key: they are not worth caching.
        return self.bounds(window).expiry if self.strategy.merging is None else self.strategy.expiry(window)

    def bounds(self, window: Window) -> Bounds:
        """Return the bounds of a window. They are cached, because most windows belong to many keys."""
        bounds = self._bounds.get(window)
        if bounds is None:
            if len(self._bounds) >= self._KNOWN_MAX:
                self._bounds.clear()
            bounds = Bounds(window.max_timestamp, self.strategy.expiry(window), window.ordered())
            self._bounds[window] = bounds
        return bounds


def elements_until_ready(trigger: Trigger, at: Moment) -> int:
    """Return the number of elements that may arrive before the trigger must be checked."""
    return 1 if trigger.eager() else max(1, trigger.elements_until_ready(at))


_new = tuple.__new__
"""Makes a named tuple without the Python call of its class."""
_EARLY, _ON_TIME, _LATE = Timing.EARLY, Timing.ON_TIME, Timing.LATE


C = TypeVar("C", bound=Contents)
Stored = WindowBag | Accumulated
"""Contents that can be stored."""


class OpenWindow(Generic[C]):
    """See the module.

    Args:
        rules: the rules of the grouping.
        key: the key of the window.
        window: the window.
        record: the state of the window; changed in place.
        contents: the contents of the window.
        out: the list that receives effects.
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

    # Events of a window.

    def begin(self, clocks: Clocks) -> None:
        """Start a new window."""
        if clocks.input_watermark > self.end:
            self.record.passed = True
            self._rearm(clocks)

    def add(self, values: Sequence[Any], times: Sequence[Timestamp], clocks: Clocks) -> None:
        """Add elements, in order. The contents of panes do not depend on how elements were cut into calls.

        Call `look` with these times first.
        """
        record, count = self.record, len(values)
        if count < record.until_ready and not record.closed:
            self._put(values, times, clocks)
            return
        start = 0
        while start < count and not record.closed:
            end = start + record.until_ready
            self._put(values[start:end], times[start:end], clocks)
            start = min(end, count)
            if not record.until_ready:
                self._check_trigger(clocks)
        if start < count:
            key, window, watermark, reason = self._key, self.window, clocks.input_watermark, DropReason.CLOSED
            late = zip(values[start:], times[start:], strict=True)
            self._out += [_new(DropLate, (key, window, value, time, watermark, reason)) for value, time in late]

    def adopt(self: OpenWindow[Stored], contents: Iterable[bytes], count: int) -> None:
        """Add elements to a new window, as the contents of a pane; their number does not matter to its trigger."""
        assert isinstance(self.contents, WindowBag)
        self.contents.adopt(contents)
        self.record.until_ready -= count
        self.record.unseen += count
        self.record.fresh += count

    def look(self, clocks: Clocks, ticked: bool = False) -> None:
        """Fire everything that is due.

        Args:
            clocks: the current times.
            ticked: all elements that arrived by now are added, so an alarm at exactly this time is also due.
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
        next_timer = record.next_timer
        if (
            next_timer is not None
            and not expired
            and (clocks.now > next_timer or (ticked and clocks.now == next_timer))
        ):
            self._check_trigger(clocks, ticked=True)

    def wakeups(self) -> Wakeups:
        """Return the hold and the timers that the window requests."""
        record, rules = self.record, self._rules
        if record.closed:
            return Wakeups(None, self._expiry)
        hold: Timestamp | None = None
        if record.passed and not record.on_time:
            # Late elements come out before they would be too late for consumers.
            hold = self._expiry if record.fresh or rules.empty_last else None
        elif record.hold is not None:
            hold = record.hold
        elif record.fresh or (rules.awaits_end and not record.passed):
            hold = self.end
        elif rules.empty_last:
            hold = self._expiry
        return Wakeups(hold, self._expiry if record.passed else self.end, record.next_timer)

    def grow(self, window: Window, clocks: Clocks) -> None:
        """Grow into another window, which has had no panes yet."""
        record = self.record
        self._become(window)
        record.index = record.nonspeculative = 0
        if record.passed and clocks.input_watermark <= self.end:
            self._update_trigger(clocks)
            self._machine().rewind()
            record.passed = record.on_time = False
            self._settle(clocks)

    def absorb(self, other: OpenWindow[C], clocks: Clocks) -> None:
        """Merge another window into this one; the other is not used again. Call `look` on both first."""
        mine, theirs, combine = self.record, other.record, self._rules.combine_times
        self._update_trigger(clocks)
        other._update_trigger(clocks)
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
        """Return the bytes of its record."""
        record, contents = self.record, self.contents
        if self._trigger is not None:
            record.trigger = dump(self._trigger)
        record.contents = contents.store()
        record.entries, record.address = contents.entries, contents.address
        return record.pack(self._rules.first_until_ready)

    # Elements.

    def _put(self, values: Sequence[Any], times: Sequence[Timestamp], clocks: Clocks) -> None:
        record, count = self.record, len(values)
        self.contents.add(values)
        record.until_ready -= count
        record.unseen += count
        record.fresh += count
        combine = self._rules.combine_times
        if combine is not None and not record.passed:
            shift = self._rules.output_time
            if shift is not None:
                times = [shift(self.window, time) for time in times]
            # An element before the output watermark cannot hold it. Alone, it gets the window's end as timestamp.
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

    def _update_trigger(self, clocks: Clocks) -> None:
        record = self.record
        if record.unseen:
            self._machine().add(record.unseen, clocks.now)
            record.unseen = 0

    def _moment(self, clocks: Clocks, ticked: bool = False) -> Moment:
        return Moment(clocks.now, self.record.passed, ticked)

    def _rearm(self, clocks: Clocks, ticked: bool = False) -> None:
        record, at, machine = self.record, self._moment(clocks, ticked), self._machine()
        if self._rules.timed:
            record.until_ready, record.next_timer = elements_until_ready(machine, at), machine.next_timer(at)
        else:
            record.until_ready = max(1, machine.elements_until_ready(at))

    def _check_trigger(self, clocks: Clocks, ticked: bool = False) -> None:
        self._update_trigger(clocks)
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
        """Handle that the watermark has passed the window's end."""
        record, rules = self.record, self._rules
        if expired and record.fresh:
            # The on-time pane and the closing pane are the same pane.
            record.on_time = True
            self._emit(last=True)
            return
        self._update_trigger(clocks)
        at, machine = self._moment(clocks), self._machine()
        fires = machine.ready(at)
        wanted = record.fresh > 0 or (fires and rules.awaits_end)
        # An empty closing pane alone is late, unless the window closes at its end.
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
        """Apply the state of the trigger after a merge."""
        if self._machine().finished():
            if self.record.fresh:
                count, contents = self.record.fresh, self.contents.take(keep=False, lend=False)
                self._out.append(DropHeld(self._key, self.window, contents, count, clocks.input_watermark))
            self._close()
        else:
            self.record.closed = False
            self._rearm(clocks)

    def _close(self) -> None:
        record = self.record
        record.closed, record.on_time, record.fresh, record.unseen = True, False, 0, 0
        record.hold = record.next_timer = None
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
