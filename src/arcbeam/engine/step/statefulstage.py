"""A stateful stage in a shard: elements, timers and the end of windows, in the order of each key.

Owns when state goes, and what comes too late for it. Must not know what user code keeps.
"""

from __future__ import annotations

from collections.abc import Sequence

from arcbeam.engine.grouping.effects import DropLate, DropReason
from arcbeam.engine.grouping.groupings import Elements, Together, WindowedElement
from arcbeam.engine.plan.reports import Restrictions
from arcbeam.engine.plan.stagekinds import Stateful
from arcbeam.engine.plan.stepplan import Handover, StepPlan
from arcbeam.engine.rows.keyspace import NAME_LIMIT, Kind, Section, after, part, prefix
from arcbeam.engine.state.agenda import Agenda, Element, Late, SortedInput
from arcbeam.engine.state.timers import EXPIRATION, Fired, Timers, within
from arcbeam.engine.step.bundles import CallResult, TimerSet
from arcbeam.engine.step.stagecontext import StageContext
from arcbeam.engine.watermarks.holds import Holds
from arcbeam.engine.watermarks.moments import passed
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import Window


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
        self._agenda = Agenda(self._timers, self._ordered)
        self._keyed = prefix(Kind.KEYED, number)
        self._holds = Holds(place.view, number)

    def begin(self, plan: StepPlan, moves: Sequence[Handover]) -> None:
        """See `StageLogic`."""

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
            if isinstance(live, Together) and live.window is not None:
                self._await_end(key, live.window, self._kind.expires(live.window))
            else:
                for window in dict.fromkeys(window for _, _, windows, _ in live for window in windows):
                    self._await_end(key, window, self._kind.expires(window))
            self._record(self._place.runner.process(key, live), None)

    def timely(self, key: bytes, elements: Elements) -> Elements:
        """See `StageLogic`: the others are behind their windows, or, in order of time, behind their turn."""
        watermark = self._place.clock.input
        known = elements.window if isinstance(elements, Together) and self._ordered is None else None
        if known is not None and not passed(watermark, self._kind.expires(known)):
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
        place = self._place
        while (next := self._agenda.next(watermark, place.now)) is not None:
            if isinstance(next, Element):
                self._process(next, watermark)
            else:
                self._fire(next)
            if place.budget.exhausted():
                return True
        return False

    def next_event(self) -> Timestamp | None:
        """See `StageLogic`."""
        waiting = [] if self._ordered is None else [self._ordered.next()]
        times = [time for time in (*waiting, self._timers.next_event()) if time is not None]
        return min(times, default=None)

    def next_due(self) -> Timestamp | None:
        """See `StageLogic`."""
        return self._timers.next_processing()

    def restrictions(self) -> Restrictions:
        """See `StageLogic`."""
        return Restrictions()

    def _process(self, element: Element, watermark: Timestamp) -> None:
        """An element that has waited for its turn."""
        window = self._kind.decode(element.window)
        expires = self._kind.expires(window)
        if expires < element.time:
            self._place.drop(Late(element, watermark, "it is after the end of its window"))
            return
        self._await_end(element.key, window, expires)
        self._record(
            self._place.runner.process(element.key, [(element.value, element.time, (window,), element.pane)]), None
        )

    def _fire(self, fired: Fired) -> None:
        place = self._place
        place.tally.fired += 1
        if fired.family != EXPIRATION:
            event = self._kind.families[fired.family] is TimeDomain.EVENT
            self._record(place.runner.fire(fired), fired.fire_at if event else None)
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

    def _await_end(self, key: bytes, window: Window, expires: Timestamp) -> None:
        hold = min(window.max_timestamp, expires) if self._kind.at_expiration else None
        self._timers.set(key, window.ordered(), EXPIRATION, expires, hold)

    def _record(self, result: CallResult, origin: Timestamp | None) -> None:
        self._place.record(result, timers=True)
        for timer in result.timers:
            window = timer.window.ordered()
            if timer.family == EXPIRATION:
                # The engine's own: user code could put off the end of the window.
                raise self._timers.unknown(timer.family)
            if not isinstance(timer, TimerSet):
                self._timers.clear(timer.key, window, timer.family, timer.tag)
                continue
            expires = self._kind.expires(timer.window)
            fire_at: Timestamp | None = timer.fire_at
            latest = expires
            if self._kind.families.get(timer.family) is TimeDomain.EVENT:
                fire_at = within(timer.fire_at, expires, origin)
                latest = expires if fire_at is None else fire_at
            if fire_at is None:
                self._timers.clear(timer.key, window, timer.family, timer.tag)
                continue
            # What a timer puts out has the time of its hold: not behind what lets it fire, nor behind its window's end.
            hold = None if timer.hold is None else min(timer.hold, latest)
            self._timers.set(timer.key, window, timer.family, fire_at, hold, timer.tag, timer.payload)
