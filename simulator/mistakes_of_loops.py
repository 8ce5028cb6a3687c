"""Plausible busy loops in the coordinator and in stages; see `mutations`.

Owns the patches. Must not know how a mistake is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from arcbeam.engine.coordinator import scheduling
from arcbeam.engine.coordinator.state import MachineState
from arcbeam.engine.task.plainstage import SplittableLogic
from arcbeam.engine.task.stagecontext import StageLogic
from arcbeam.engine.task.stagerun import StageRun
from arcbeam.engine.task.statefulstage import StatefulLogic
from arcbeam.model.timestamps import Timestamp
from simulator.mistakes_of_the_store import Mutation


def _wakes_at_once() -> AbstractContextManager[object]:
    """The coordinator requests a wake-up a microsecond later, instead of at the next due time."""
    wait = MachineState.wait
    return patch.object(MachineState, "wait", lambda self, moment: wait(self, min(moment, Timestamp(self.now + 1))))


def _runs_instead_of_waiting() -> AbstractContextManager[object]:
    """The coordinator runs micro-batches until the next due time, instead of waiting."""
    look = scheduling.look

    def at_once(layout: Any, places: Any, times: Any, side: Any, now: Timestamp, *of: Any, **more: Any) -> Any:
        found = look(layout, places, times, side, now, *of, **more)
        return scheduling.Ready(now) if isinstance(found, scheduling.WakeAt) else found

    return patch("arcbeam.engine.coordinator.machine.look", at_once)


def _due_soon(logic: type[StageLogic]) -> AbstractContextManager[object]:
    """A stage without due processing timers reports one that is due a moment later."""
    next_due = logic.next_due

    def soon(self: Any) -> Timestamp | None:
        return next_due(self) or Timestamp(self._place.now + 1)

    return patch.object(logic, "next_due", soon)


def _left_over_when_buffered() -> AbstractContextManager[object]:
    """A stage reports elements that wait for a side input as leftover work."""
    report = StageRun._report

    def with_what_waits(self: StageRun, leftover: bool, *of: Any, **more: Any) -> Any:
        made = report(self, leftover, *of, **more)
        return replace(made, leftover=made.leftover or bool(made.awaited))

    return patch.object(StageRun, "_report", with_what_waits)


OF_LOOPS: Mapping[str, Mutation] = {
    "a coordinator that wakes up at once": _wakes_at_once,
    "a coordinator that runs micro-batches instead of waiting": _runs_instead_of_waiting,
    "a stage with restrictions always due a moment later": lambda: _due_soon(SplittableLogic),
    "a stage with timers always due a moment later": lambda: _due_soon(StatefulLogic),
    "buffered elements taken for leftover work": _left_over_when_buffered,
}
"""The mistakes by name."""
