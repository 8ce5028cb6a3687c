"""A stateful stage in a shard: elements, timers and the end of windows, in the order of each key.

Owns when state goes, and what comes too late for it. Must not know what user code keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from arcbeam.engine.grouping.effects import DropLate, DropReason
from arcbeam.engine.grouping.groupings import Elements, Together, WindowedElement
from arcbeam.engine.protocol.microbatchplan import Handover, MicroBatchPlan
from arcbeam.engine.protocol.reports import Restrictions
from arcbeam.engine.protocol.stagekinds import Stateful
from arcbeam.engine.rows.keyspace import NAME_LIMIT, Kind, Section, after, part, prefix
from arcbeam.engine.state.keyqueue import Element, KeyQueue, Late, SortedInput
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.engine.state.timers import EXPIRATION, Fired, Timers, within
from arcbeam.engine.task.bundles import BundleResult, CallResult, TimerSet
from arcbeam.engine.task.stagecontext import StageContext
from arcbeam.engine.watermarks.comparison import passed
from arcbeam.engine.watermarks.holds import Holds
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import GlobalWindow, Window


class StatefulLogic:
    """Elements of a key are processed one after another, with its state and timers.

    Args:
        place: of the stage.
        kind: what there is.
    """

    def __init__(self, place: StageContext, kind: Stateful) -> None:
        number = place.placed.number
        self._place = place
        self._kind = kind
        self._timers = Timers(place.view, number, kind.families)
        self._ordered = None if kind.in_order is None else SortedInput(place.view, number, kind.in_order)
        self._agenda = KeyQueue(self._timers, self._ordered)
        self._keyed = prefix(Kind.KEYED, number)
        self._holds = Holds(place.view, number)
        # Timers of event time have all fired by the end of their window. Behind the global window, which ends with the
        # input, nobody can read cells: they stay, since two more rows for each key to remove them would cost more.
        self._ends_global = kind.at_expiration or TimeDomain.PROCESSING in kind.families.values()
        self._ends = kind.cells or self._ends_global
        # Most timers are set in the same window as the one before.
        self._window: Window | None = None
        self._encoded, self._expires = b"", MIN_TIMESTAMP
        # The timer that fires, and what is behind those that fire together.
        self._origin: Timestamp | None = None
        self._drains = self._is_over = False
        self._behind: Element | Fired | None = None

    def begin(self, plan: MicroBatchPlan, moves: Sequence[Handover], upstream: Timestamp) -> None:
        """See `StageLogic`."""
        self._drains = plan.drain
        if self._ordered is None:
            self._timers.expect(self._place.clock.ahead(upstream))

    def deliver(self, key: bytes, elements: Elements) -> None:
        """See `StageLogic`; each element in each of its windows, unless that has expired."""
        if self._ordered is not None:
            watermark = self._place.clock.input
            for value, time, windows, pane in elements:
                for window in windows:
                    late = self._ordered.add(Element(key, window.ordered(), time, value, pane), watermark)
                    if late is not None:
                        self._place.drop(late)
            return
        if live := self.timely(key, elements):
            if self._ends:
                if isinstance(live, Together) and live.window is not None:
                    self._await_end(key, live.window)
                else:
                    for window in dict.fromkeys(window for _, _, windows, _ in live for window in windows):
                        self._await_end(key, window)
            self._record(self._place.runner.process(key, live), None)

    def timely(self, key: bytes, elements: Elements) -> Elements:
        """See `StageLogic`: the others are behind their windows, or, in order of time, behind their turn."""
        watermark = self._place.clock.input
        known = elements.window if isinstance(elements, Together) and self._ordered is None else None
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

    def resume(self) -> bool:
        """See `StageLogic`."""
        return False

    def fire(self, watermark: Timestamp) -> bool:
        """See `StageLogic`."""
        place, agenda = self._place, self._agenda
        self._is_over = watermark == MAX_TIMESTAMP
        next = agenda.next(watermark, self._now())
        while next is not None:
            if isinstance(next, Element):
                self._process(next, watermark)
            elif next.family == EXPIRATION:
                self._expire(next)
            else:
                self._behind = None
                place.runner.fire(self._due(next, watermark), self._led_to)
                next = self._behind
                continue
            next = self._next(watermark)
        self._timers.settle()
        return agenda.is_due(watermark, self._now())

    def _now(self) -> Timestamp:
        """The clock; at the end of a drain its end, too: nobody is to wait for what timers were set for."""
        return MAX_TIMESTAMP if self._is_over and self._drains else self._place.now

    def next_event(self) -> Timestamp | None:
        """See `StageLogic`."""
        waiting = [] if self._ordered is None else [self._ordered.next()]
        timer = self._timers.next_event()
        if self._agenda.waits_for_the_clock(timer):
            # No watermark lets that go on.
            timer = None
        times = [time for time in (*waiting, timer) if time is not None]
        return min(times, default=None)

    def next_due(self) -> Timestamp | None:
        """See `StageLogic`."""
        return self._timers.next_processing()

    def restrictions(self) -> Restrictions:
        """See `StageLogic`."""
        return Restrictions()

    def kept(self, closed: BundleResult) -> StateMetrics:
        """See `StageLogic`."""
        timers, ordered = self._timers, self._ordered
        return StateMetrics(
            timers.more_ends,
            # Where the global window is waited for, its keys are among those.
            {} if self._ends_global else closed.cells,
            timers.more_event,
            timers.more_clock,
            ordered=0 if ordered is None else ordered.more,
            waiting_bytes=0 if ordered is None else ordered.size,
        )

    def _process(self, element: Element, watermark: Timestamp) -> None:
        """An element that has waited for its turn."""
        window = self._kind.decode(element.window)
        if self._expiry(window) < element.time:
            self._place.drop(Late(element, watermark, "it is after the end of its window"))
            return
        if self._ends:
            self._await_end(element.key, window)
        self._record(
            self._place.runner.process(element.key, [(element.value, element.time, (window,), element.pane)]), None
        )

    def _next(self, watermark: Timestamp) -> Element | Fired | None:
        """What is next, after something; None also if the rest should be left for the next micro-batch."""
        return None if self._place.budget.exhausted() else self._agenda.next(watermark, self._now())

    def _due(self, first: Fired, watermark: Timestamp) -> Iterator[Fired]:
        """Timers, up to what is none of user code's, or the end of the budget."""
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
            # There are none where elements wait for their turn (see `begin`), so nothing comes between them.
            for soon in self._timers.take_imminent(watermark):
                tally.fired += 1
                self._origin = soon.fire_at
                yield soon
                if exhausted():
                    self._behind = None
                    return
            next = self._agenda.next(watermark, self._now())
        self._behind = next

    def _led_to(self, result: CallResult) -> None:
        self._record(result, self._origin, by_timer=True)

    def _expire(self, fired: Fired) -> None:
        place = self._place
        place.tally.fired += 1
        if self._is_over and self._timers.awaits_clock(fired.key, fired.window):
            # Its input has ended, and nothing else will look at what it has kept. A window that ends before the input
            # does not wait: what comes next is another one's.
            self._timers.set(fired.key, fired.window, EXPIRATION, MAX_TIMESTAMP, fired.hold)
            return
        if self._kind.at_expiration:
            # What it sets would fire after the end of everything: it never does.
            place.record(place.runner.expire(fired.key, self._kind.decode(fired.window)), timers=True)
        self._drop(fired.key, fired.window)

    def _drop(self, key: bytes, window: bytes) -> None:
        """Cells, timers and holds go. They stand together: one scan finds them all."""
        view = self._place.view
        start = self._keyed + part(key) + part(window, NAME_LIMIT)
        for row, value in view.scan(start, after(start)):
            match row[len(start)]:
                case Section.CELL:
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
        """When it expires; `_encoded` is what it is in keys, from now on."""
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
            # Done for every timer: taken apart once, for a field is looked up by its name.
            key, of, family, fire_at, hold, tag, payload = timer
            latest = self._expires if of is self._window else self._expiry(of)
            if family == EXPIRATION:
                # The engine's own: user code could put off the end of the window.
                raise timers.unknown(family)
            if families.get(family) is not TimeDomain.EVENT:
                if by_timer and self._is_over and self._drains:
                    # It would be due at once, and perhaps set itself again and again. One that is pending fires, too.
                    continue
            else:
                if fire_at > latest:
                    fires = within(fire_at, latest, origin)
                    if fires is None:
                        timers.clear(key, self._encoded, family, tag)
                        continue
                    fire_at = fires
                latest = fire_at
            # What a timer puts out has the time of its hold: not behind what lets it fire, nor behind its window's end.
            if hold is not None and hold > latest:
                hold = latest
            timers.set(key, self._encoded, family, fire_at, hold, tag, payload)
