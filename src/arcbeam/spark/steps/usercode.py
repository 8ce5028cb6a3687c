"""The user code of a level's stages in one task, and how much of it a task may run.

Owns which stage is open, and when its task begins and ends. Must not know rows of the exchange.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from arcbeam.engine.grouping.effects import DropHeld, DropLate
from arcbeam.engine.grouping.groupings import Elements
from arcbeam.engine.plan.layout import Placed
from arcbeam.engine.plan.stagekinds import StageSpec
from arcbeam.engine.plan.stepplan import StepBudget
from arcbeam.engine.state.agenda import Late
from arcbeam.engine.step.bundles import Runner
from arcbeam.model.rows import BundleReport, Outbox, Row
from arcbeam.model.seams import StateView
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE
from arcbeam.steps.seams import SideData

if TYPE_CHECKING:
    from arcbeam.harness.bundle.finalization import Callbacks
    from arcbeam.harness.step.stepstage import StepStage

_NO_KEY: Final = b""
_IMPULSE: Final = b""


class LevelCode:
    """See `arcbeam.steps.seams.UserCode`.

    Args:
        placed: the stages of the level.
        open: opens a stage, by its uid.
        outbox: takes what stages write.
        task: number of the task.
        now: the step's recorded time.
    """

    def __init__(
        self, placed: Iterable[Placed], open: Callable[[str], StepStage], outbox: Outbox, task: int, now: Timestamp
    ) -> None:
        self._placed = {each.name: each for each in placed}
        self._open, self._outbox, self._task, self._now = open, outbox, task, now
        self._begun: dict[str, StepStage] = {}
        self._latest: StepStage | None = None

    def specs(self) -> dict[str, StageSpec]:
        """What the engine must know of the stages."""
        specs = {}
        for name, placed in self._placed.items():
            stage = self._stage(name)
            specs[name] = StageSpec(placed, stage.kind, stage.windows.decode)
        return specs

    @property
    def processor(self) -> Any:
        """Of the stage that had its turn last; None if none had."""
        return None if self._latest is None else self._latest.processor

    def elements(self, stage: str, rows: Iterable[Row]) -> Iterable[tuple[bytes, Elements]]:
        """What has come to a stage, of rows in ascending order of bucket."""
        return self._stage(stage).elements(rows)

    def runner(self, stage: str, shard: int, view: StateView) -> Runner:
        """See `UserCode`."""
        from arcbeam.harness.step.runner import StepRunner

        return StepRunner(self._stage(stage), view, self._placed[stage], self._now)

    def beginning(self, stage: str, shard: int) -> Iterable[tuple[bytes, Elements]]:
        """See `UserCode`: an impulse, in the first shard."""
        if shard == 0:
            yield _NO_KEY, [(_IMPULSE, MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE)]

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | Late) -> None:
        """See `UserCode`: it is counted in the stage's report."""

    def sides(self) -> Iterable[SideData]:
        """See `UserCode`."""
        return ()

    def end(self) -> list[BundleReport]:
        """Ends the task for all its stages, which hand over what they hold; what their bundles come to."""
        reports = []
        for name, stage in self._begun.items():
            report = BundleReport(stage=name, shard=self._task)
            self._latest = stage
            stage.processor.end_task(report)
            reports.append(report)
        return reports

    def callbacks(self) -> list[Callbacks]:
        """The finalization callbacks of the task's bundles; they are the caller's now."""
        return [taken for stage in self._begun.values() if (taken := stage.processor.bundles.callbacks.take())]

    def _stage(self, name: str) -> StepStage:
        stage = self._begun.get(name)
        if stage is None:
            stage = self._open(name)
            stage.processor.begin_task(self._outbox, self._task)
            self._begun[name] = stage
        self._latest = stage
        return stage


class TaskBudget:
    """How much a task may do; see `arcbeam.engine.step.bundles.Budget`.

    Args:
        budget: of the step.
        sent: bytes that the task has sent so far.
    """

    def __init__(self, budget: StepBudget, sent: Callable[[], int]) -> None:
        self._until = time.monotonic() + budget.time / 1e6
        self._bytes, self._sent = budget.bytes, sent

    def exhausted(self) -> bool:
        """See `Budget`."""
        return time.monotonic() >= self._until or self._sent() >= self._bytes


class NoSideInputs:
    """A level without side inputs; see `arcbeam.engine.step.bundles.SideInputs`."""

    def needed(self, stage: str, window: object) -> tuple[()]:
        """See `SideInputs`."""
        return ()

    def until(self, stage: str, lot: object) -> Timestamp:
        """See `SideInputs`."""
        raise LookupError(f"{stage!r} has no side inputs")

    def exists(self, stage: str, lot: object) -> bool:
        """See `SideInputs`."""
        return False
