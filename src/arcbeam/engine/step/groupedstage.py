"""A grouping stage in a shard: what a grouping asks for becomes holds and timers in the shard's indexes.

Owns their names there. Must not know windows and triggers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

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
from arcbeam.engine.grouping.groupings import Clocks, Elements, Grouping
from arcbeam.engine.plan.reports import Restrictions
from arcbeam.engine.plan.stagekinds import Grouped
from arcbeam.engine.plan.stepplan import Handover, StepPlan
from arcbeam.engine.rows.keyspace import Kind, part, parts, prefix, shown
from arcbeam.engine.state.agenda import Agenda
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
        self._before: Clocks | None = None
        """What time it is as long as the watermark has not moved."""

    def begin(self, plan: StepPlan, moves: Sequence[Handover]) -> None:
        """See `StageLogic`."""

    def timely(self, key: bytes, elements: Elements) -> Elements:
        """See `StageLogic`: it has no side inputs, so all goes straight on."""
        return elements

    def deliver(self, key: bytes, elements: Elements) -> None:
        """See `StageLogic`."""
        if self._before is None:
            self._before = self._clocks(self._place.clock.input)
        try:
            effects = self._grouping.add(key, elements, self._before)
        except StateFormatError as e:
            raise self._located(e, key) from e
        self._carry_out(effects)

    def resume(self) -> bool:
        """See `StageLogic`."""
        return False

    def fire(self, watermark: Timestamp) -> bool:
        """See `StageLogic`."""
        place, clocks = self._place, self._clocks(watermark)
        while (fired := self._agenda.next(watermark, place.now)) is not None:
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
        panes: list[EmitPane] = []
        for effect in effects:
            # Taken apart as tuples: a pattern with fields looks each of them up by its name.
            match effect:
                case EmitPane():
                    panes.append(effect)
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
        if panes:
            place.record(place.runner.panes(panes))

    def _ordered(self, window: Window) -> bytes:
        if window is not self._window:
            self._window, self._encoded = window, window.ordered()
        return self._encoded


def _family(domain: TimeDomain) -> str:
    return "window" if domain is TimeDomain.EVENT_TIME else "clock"
