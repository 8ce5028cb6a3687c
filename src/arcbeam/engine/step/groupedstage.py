"""A grouping stage in a shard: what a grouping asks for becomes holds and timers in the shard's indexes.

Owns their names there. Must not know windows and triggers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, assert_never

from arcbeam.engine.grouping.contents import Values
from arcbeam.engine.grouping.effects import (
    ClearHold,
    ClearTimer,
    DropHeld,
    DropLate,
    Effect,
    EmitPane,
    SetHold,
    SetTimer,
    TimeDomain,
)
from arcbeam.engine.grouping.groupings import Clocks, Elements, Grouping, Together
from arcbeam.engine.grouping.passing import MOST_BYTES, MOST_PANES, Passing
from arcbeam.engine.grouping.passingsessions import PassingSessions
from arcbeam.engine.plan.reports import Restrictions
from arcbeam.engine.plan.stagekinds import Grouped
from arcbeam.engine.plan.stepplan import Handover, StepPlan
from arcbeam.engine.rows.keyspace import Kind, part, parts, prefix, shown
from arcbeam.engine.state.agenda import Agenda, Element
from arcbeam.engine.state.timers import Fired, Timers
from arcbeam.engine.step.stagecontext import StageContext
from arcbeam.engine.watermarks.holds import Holder, HolderKind, Holds
from arcbeam.errors import StateFormatError
from arcbeam.model import plan
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import Window

_DOMAIN: Final = {"window": TimeDomain.EVENT_TIME, "clock": TimeDomain.PROCESSING_TIME}
_FAMILIES: Final = {"window": plan.TimeDomain.EVENT, "clock": plan.TimeDomain.PROCESSING}
_STATE: Final = HolderKind.STATE
_PANE: Final = "pane"


class GroupedLogic:
    """Elements are grouped.

    Args:
        place: of the stage.
        kind: how.
    """

    def __init__(self, place: StageContext, kind: Grouped) -> None:
        number = place.placed.number
        self._place = place
        self._decode = kind.decode
        self._grouping = Grouping(kind.strategy, place.view, prefix(Kind.GROUPING, number))
        self._timers = Timers(place.view, number, _FAMILIES)
        self._agenda = Agenda(self._timers)
        self._holds = Holds(place.view, number)
        # Most effects and timers are about the same window as the one before.
        self._window: Window | None = None
        self._encoded = b""
        self._passing: Passing | PassingSessions | None = None
        self._panes: list[EmitPane] = []
        self._pane_bytes = 0
        self._before: Clocks | None = None
        """What time it is as long as the watermark has not moved."""

    def begin(self, plan: StepPlan, moves: Sequence[Handover], upstream: Timestamp) -> None:
        """See `StageLogic`."""
        grouping, clock = self._grouping, self._place.clock
        if grouping.passes:
            self._passing = Passing(grouping, clock.input, clock.ahead(upstream))
        elif (sessions := grouping.sessions) is not None:
            self._passing = PassingSessions(grouping, sessions, clock.input, clock.ahead(upstream))

    def timely(self, key: bytes, elements: Elements) -> Elements:
        """See `StageLogic`: it has no side inputs, so all goes straight on."""
        return elements

    def deliver(self, key: bytes, elements: Elements) -> None:
        """See `StageLogic`."""
        if self._before is None:
            self._before = self._clocks(self._place.clock.input)
        if self._passing is not None:
            if isinstance(self._passing, PassingSessions):
                elements = list(elements)  # decoded once, wherever they go
                if self._passing.take(key, elements):
                    return
                for taken in self._passing.withdraw(key):
                    self._add(key, taken, self._before)
            elif isinstance(elements, Together) and elements.window is not None:
                if self._passing.take(key, elements):
                    return
            else:
                for earlier in self._passing.withdraw(key):
                    self._add(key, earlier, self._before)
        self._add(key, elements, self._before)

    def _add(self, key: bytes, elements: Elements, clocks: Clocks) -> None:
        try:
            effects = self._grouping.add(key, elements, clocks)
        except StateFormatError as e:
            raise self._located(e, key) from e
        self._carry_out(effects)

    def resume(self) -> bool:
        """See `StageLogic`."""
        self._put_out()
        return False

    def fire(self, watermark: Timestamp) -> bool:
        """See `StageLogic`."""
        clocks = self._clocks(watermark)
        now = self._place.now
        exhausted = self._pass(clocks) or self._fire(lambda: self._agenda.next(watermark, now), clocks)
        self._put_out()
        return exhausted and self._agenda.is_due(watermark, now)

    def _pass(self, clocks: Clocks) -> bool:
        """What came to windows that are over goes on, each in its turn among those that are in the state.

        All of it, whatever the budget: to keep it would cost more. Whether something in the state is left.
        """
        place, passing = self._place, self._passing
        if passing is None:
            return False
        self._passing, exhausted = None, False
        for end, window in passing.ends():
            exhausted = exhausted or self._fire(partial(self._timers.take_event, end), clocks)
            self._put_out()
            for panes in passing.panes(window):
                place.tally.fired += len(panes)
                place.record(place.runner.panes(panes))
        return exhausted

    def _fire(self, take: Callable[[], Fired | Element | None], clocks: Clocks) -> bool:
        place = self._place
        while (fired := take()) is not None:
            assert isinstance(fired, Fired)
            place.tally.fired += 1
            if self._window is None or fired.window != self._encoded:
                self._window, self._encoded = self._decode(fired.window), fired.window
            try:
                effects = self._grouping.fire(fired.key, self._window, _DOMAIN[fired.family], clocks)
            except StateFormatError as e:
                raise self._located(e, fired.key) from e
            self._carry_out(effects)
            if place.budget.exhausted():
                return True
        return False

    def next_event(self) -> Timestamp | None:
        """See `StageLogic`."""
        return self._timers.next_event()

    def next_due(self) -> Timestamp | None:
        """See `StageLogic`."""
        return self._timers.next_processing()

    def restrictions(self) -> Restrictions:
        """See `StageLogic`."""
        return Restrictions()

    def _located(self, error: StateFormatError, key: bytes) -> StateFormatError:
        """The error, with the place where the state is."""
        what, why = error.args
        place = self._place
        return StateFormatError(
            f"{what}, of key {shown(parts(part(key))[0])} of {place.placed.name!r} in shard {place.shard},", why
        )

    def _clocks(self, watermark: Timestamp) -> Clocks:
        # The output watermark is never ahead of the input's: one who has said nothing yet is at the beginning.
        return Clocks(self._place.now, watermark, min(self._place.committed_output, watermark))

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        place = self._place
        for effect in effects:
            # Taken apart as tuples: a pattern with fields looks each of them up by its name.
            match effect:
                case EmitPane():
                    self._panes.append(effect)
                    if isinstance(effect.contents, Values):
                        self._pane_bytes += effect.contents.size
                case SetHold():
                    key, window, at = effect
                    self._holds.set(Holder(_STATE, _PANE, key, self._ordered(window)), at, floor=place.committed_output)
                case SetTimer():
                    key, window, domain, at = effect
                    self._timers.set(key, self._ordered(window), _family(domain), at, None)
                case ClearHold():
                    key, window = effect
                    self._holds.clear(Holder(_STATE, _PANE, key, self._ordered(window)))
                case ClearTimer():
                    key, window, domain = effect
                    self._timers.clear(key, self._ordered(window), _family(domain))
                case DropLate() | DropHeld():
                    place.drop(effect)
                case _:
                    assert_never(effect)
        if len(self._panes) >= MOST_PANES or self._pane_bytes >= MOST_BYTES:
            self._put_out()

    def _put_out(self) -> None:
        """The panes that wait for others go on with them: one by one, each would cost as much as some together."""
        panes, self._panes, self._pane_bytes = self._panes, [], 0
        if panes:
            self._place.record(self._place.runner.panes(panes))

    def _ordered(self, window: Window) -> bytes:
        if window is not self._window:
            self._window, self._encoded = window, window.ordered()
        return self._encoded


def _family(domain: TimeDomain) -> str:
    return "window" if domain is TimeDomain.EVENT_TIME else "clock"
