"""A stateful stage in a shard: elements, timers and ends of windows, in the order of each key.

Owns when state is dropped, and which elements are late. Must not know the state of user code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from typing_extensions import override

from arcbeam.engine.grouping.effects import DropLate, DropReason
from arcbeam.engine.grouping.groupings import KeyElements, UniformElements, WindowedElement
from arcbeam.engine.protocol.microbatchplan import Handover, MicroBatchPlan
from arcbeam.engine.protocol.reports import Restrictions
from arcbeam.engine.protocol.stagekinds import Stateful
from arcbeam.engine.rows.keyspace import NAME_LIMIT, RowKind, Section, after, part, prefix
from arcbeam.engine.state.keyqueue import Element, KeyQueue, Late, SortedInput
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.engine.state.timers import EXPIRATION, Fired, Timers, within
from arcbeam.engine.task.bundles import BundleResult, CallResult, TimerCleared, TimerSet
from arcbeam.engine.task.stagecontext import StageContext, StageLogic
from arcbeam.engine.watermarks.comparison import passed
from arcbeam.engine.watermarks.holds import Holds
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import GlobalWindow, Window


class StatefulLogic(StageLogic):
    """Elements of a key are processed one after another, with its state and timers.

    Args:
        place: the stage's context.
        kind: the kind of the stage.
    """

    def __init__(self, place: StageContext, kind: Stateful) -> None:
        number = place.placed.number
        self._place = place
        self._kind = kind
        # In order of time, an element may precede what the timer before it sets.
        self._together = 1 if kind.in_order is not None else place.runner.together
        self._in_batches = place.runner.together != 1
        self._timers = Timers(place.view, number, kind.families)
        self._ordered = None if kind.in_order is None else SortedInput(place.view, number, kind.in_order)
        self._queue = KeyQueue(self._timers, self._ordered)
        self._keyed = prefix(RowKind.KEYED, number)
        self._holds = Holds(place.view, number)
        # All event-time timers have fired by the end of their window. After the global window, which ends with the
        # input, no code can read cells: they stay, since removing them would take two more rows for each key.
        self._ends_global = kind.at_expiration or TimeDomain.PROCESSING in kind.families.values()
        self._ends = kind.cells or self._ends_global
        # Most timers have the same window as the one before.
        self._window: Window | None = None
        self._encoded, self._expires = b"", MIN_TIMESTAMP
        # The timer that fires, and the work that follows the timers that fire together.
        self._origin: Timestamp | None = None
        self._drains = self._is_over = False
        self._following: Element | Fired | None = None

    @override
    def begin(self, plan: MicroBatchPlan, moves: Sequence[Handover], upstream: Timestamp) -> None:
        self._drains = plan.drain
        if self._ordered is None:
            self._timers.expect(self._place.clock.ahead(upstream))

    def deliver(self, key: bytes, elements: KeyElements) -> None:
        """See `StageLogic`; each element in each of its windows, unless the window has expired."""
        if self._ordered is not None:
            watermark = self._late_at()
            for value, time, windows, pane in elements:
                for window in windows:
                    late = self._ordered.add(Element(key, window.ordered(), time, value, pane), watermark)
                    if late is not None:
                        self._place.drop(late)
            return
        if live := self.timely(key, elements):
            if self._ends:
                if isinstance(live, UniformElements) and live.window is not None:
                    self._await_end(key, live.window)
                else:
                    for window in dict.fromkeys(window for _, _, windows, _ in live for window in windows):
                        self._await_end(key, window)
            self._record(self._place.runner.process(key, live), None)

    def timely(self, key: bytes, elements: KeyElements) -> KeyElements:
        """See `StageLogic`: late elements come after their window's expiration or, in order of time, after their
        time.
        """
        watermark = self._late_at()
        known = elements.window if isinstance(elements, UniformElements) and self._ordered is None else None
        if known is not None and not passed(watermark, self._expiry(known)):
            return elements
        over: dict[Window, bool] = {}
        live: list[WindowedElement] = []
        for value, time, windows, pane in elements:
            kept: list[Window] = []
            for window in windows:
                late: DropLate | Late | None = None
                if self._ordered is not None:
                    late = self._ordered.late(Element(key, window.ordered(), time, value, pane), watermark)
                else:
                    if window not in over:
                        over[window] = passed(watermark, self._kind.expires(window))
                    if over[window]:
                        late = DropLate(key, window, value, time, watermark, DropReason.EXPIRED)
                if late is None:
                    kept.append(window)
                else:
                    self._place.drop(late)
            if kept:
                live.append((value, time, tuple(kept), pane))
        return live

    def _late_at(self) -> Timestamp:
        return max(self._place.clock.input, self._place.late_until)

    @override
    def resume(self) -> bool:
        self._settle()
        return False

    def _settle(self) -> None:
        if self._in_batches:
            self._record(self._place.runner.settle(), None)

    @override
    def fire(self, watermark: Timestamp) -> bool:
        place, queue = self._place, self._queue
        self._is_over = watermark == MAX_TIMESTAMP
        next = queue.next(watermark, self._now())
        while next is not None:
            if isinstance(next, Element):
                self._process(next, watermark)
            elif self._in_batches:
                next = self._fire_batch(next, watermark)
                continue
            elif next.family == EXPIRATION:
                self._expire(next)
            else:
                self._following = None
                place.runner.fire(self._due(next, watermark), self._record_fired)
                next = self._following
                continue
            next = self._next(watermark)
        self._timers.settle()
        return queue.is_due(watermark, self._now())

    def _now(self) -> Timestamp:
        """Return the clock; at the end of a drain its end, too, so that the job does not wait for timers."""
        return MAX_TIMESTAMP if self._is_over and self._drains else self._place.now

    @override
    def next_event(self) -> Timestamp | None:
        waiting = [] if self._ordered is None else [self._ordered.next()]
        timer = self._timers.next_event()
        if self._queue.waits_for_the_clock(timer):
            # No watermark fires that timer.
            timer = None
        times = [time for time in (*waiting, timer) if time is not None]
        return min(times, default=None)

    @override
    def next_due(self) -> Timestamp | None:
        return self._timers.next_processing()

    @override
    def restrictions(self) -> Restrictions:
        return Restrictions()

    @override
    def kept(self, closed: BundleResult) -> StateMetrics:
        timers, ordered = self._timers, self._ordered
        return StateMetrics(
            timers.more_ends,
            # If the global window is waited for, its keys are among those.
            {} if self._ends_global else closed.cells,
            timers.more_event,
            timers.more_clock,
            ordered=0 if ordered is None else ordered.more,
            waiting_bytes=0 if ordered is None else ordered.size,
        )

    def _process(self, element: Element, watermark: Timestamp) -> None:
        """Process an element that has waited in order of time."""
        window = self._kind.decode(element.window)
        if self._expiry(window) < element.time:
            self._place.drop(Late(element, watermark, "its time is after the end of its window"))
            return
        if self._ends:
            self._await_end(element.key, window)
        self._record(
            self._place.runner.process(element.key, [(element.value, element.time, (window,), element.pane)]), None
        )
        self._settle()

    def _next(self, watermark: Timestamp) -> Element | Fired | None:
        """Return the next work; None also if the rest should be left for the next micro-batch."""
        return None if self._place.budget.exhausted() else self._queue.next(watermark, self._now())

    def _due(self, first: Fired, watermark: Timestamp) -> Iterator[Fired]:
        """Yield timers, until the next work is not a user's timer, or the budget ends."""
        place, families = self._place, self._kind.families
        tally, exhausted = place.tally, place.budget.exhausted
        next: Element | Fired | None = first
        while type(next) is Fired and next.family != EXPIRATION:
            tally.fired += 1
            self._origin = next.fire_at if families[next.family] is TimeDomain.EVENT else None
            yield next
            if exhausted():
                next = None
                break
            # There are none if elements wait in order of time (see `begin`), so no element comes between them.
            for soon in self._timers.take_imminent(watermark):
                tally.fired += 1
                self._origin = soon.fire_at
                yield soon
                if exhausted():
                    self._following = None
                    return
            next = self._queue.next(watermark, self._now())
        self._following = next

    def _fire_batch(self, first: Fired, watermark: Timestamp) -> Element | Fired | None:
        """Fire timers and expirations together, each of another key; return the next work, as `_next`.

        SUBTLE: what a callback sets or clears decides which timer of its key is next. So a batch ends at a key in it.
        """
        batch: dict[bytes, Fired] = {}
        next: Element | Fired | None = first
        while type(next) is Fired and next.key not in batch:
            if next.family == EXPIRATION and (self._waits_for_clock(next) or not self._kind.at_expiration):
                self._expire(next)
            else:
                batch[next.key] = next
                if len(batch) == self._together:
                    next = None
                    break
            next = self._next(watermark)
        if not batch:
            return next
        if type(next) is Fired:
            self._timers.put_back(next)
        self._place.tally.fired += len(batch)
        self._record_batch(batch, self._place.runner.fire_together(tuple(batch.values())))
        for fired in batch.values():
            if fired.family == EXPIRATION:
                self._drop(fired.key, fired.window)
        return self._next(watermark)

    def _record_batch(self, batch: Mapping[bytes, Fired], result: CallResult) -> None:
        families = self._kind.families
        timers: dict[bytes, list[TimerSet | TimerCleared]] = {}
        for timer in result.timers:
            timers.setdefault(timer.key, []).append(timer)
        self._place.tally.written += result.written
        for key, those in timers.items():
            fired = batch[key]
            # A timer that an expiration sets would fire after the end of time: it never does.
            if fired.family != EXPIRATION:
                origin = fired.fire_at if families[fired.family] is TimeDomain.EVENT else None
                self._record(CallResult(timers=those), origin, by_timer=True)

    def _record_fired(self, result: CallResult) -> None:
        self._record(result, self._origin, by_timer=True)

    def _expire(self, fired: Fired) -> None:
        place = self._place
        place.tally.fired += 1
        if self._waits_for_clock(fired):
            # Its input has ended, and no later event drops its state. A window that ends before the input does not
            # wait: the following work belongs to another window.
            self._timers.set(fired.key, fired.window, EXPIRATION, MAX_TIMESTAMP, fired.hold)
            return
        if self._kind.at_expiration:
            # A timer that it sets would fire after the end of time: it never does.
            place.record(place.runner.expire(fired.key, self._kind.decode(fired.window)), timers=True)
        self._drop(fired.key, fired.window)

    def _waits_for_clock(self, expiration: Fired) -> bool:
        return self._is_over and self._timers.awaits_clock(expiration.key, expiration.window)

    def _drop(self, key: bytes, window: bytes) -> None:
        """Drop cells, timers and holds. They are adjacent: one scan finds them all."""
        view = self._place.view
        start = self._keyed + part(key) + part(window, NAME_LIMIT)
        for row, value in view.scan(start, after(start)):
            match row[len(start)]:
                case Section.CELL | Section.KEY:
                    view.delete(row)
                case Section.TIMER:
                    self._timers.drop_row(row, value)
                case Section.HOLD:
                    self._holds.drop_row(row, value)

    def _await_end(self, key: bytes, window: Window) -> None:
        if type(window) is GlobalWindow and not self._ends_global:
            return
        expires = self._expiry(window)
        hold = min(window.max_timestamp, expires) if self._kind.at_expiration else None
        self._timers.set(key, self._encoded, EXPIRATION, expires, hold)

    def _expiry(self, window: Window) -> Timestamp:
        """Return when a window expires; afterwards, `_encoded` is its encoding in keys."""
        if window is not self._window:
            self._window, self._encoded, self._expires = window, window.ordered(), self._kind.expires(window)
        return self._expires

    def _record(self, result: CallResult, origin: Timestamp | None, *, by_timer: bool = False) -> None:
        self._place.record(result, timers=True)
        timers, families = self._timers, self._kind.families
        for timer in result.timers:
            if not isinstance(timer, TimerSet):
                self._expiry(timer.window)
                if timer.family == EXPIRATION:
                    raise timers.unknown(timer.family)
                timers.clear(timer.key, self._encoded, timer.family, timer.tag)
                continue
            # Executed for every timer: unpacked once, because a field is looked up by its name.
            key, of, family, fire_at, hold, tag, payload = timer
            latest = self._expires if of is self._window else self._expiry(of)
            if family == EXPIRATION:
                # The engine's own family: user code could postpone the end of the window.
                raise timers.unknown(family)
            if families.get(family) is not TimeDomain.EVENT:
                if by_timer and self._is_over and self._drains:
                    # It would be due at once, and might set itself endlessly. A pending one fires, too.
                    continue
            else:
                if fire_at > latest:
                    fires = within(fire_at, latest, origin)
                    if fires is None:
                        timers.clear(key, self._encoded, family, tag)
                        continue
                    fire_at = fires
                latest = fire_at
            # A timer's output has the time of its hold: at most its firing time, and at most its window's end.
            if hold is not None and hold > latest:
                hold = latest
            timers.set(key, self._encoded, family, fire_at, hold, tag, payload)
