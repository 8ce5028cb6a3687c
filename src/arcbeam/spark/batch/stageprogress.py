"""The progress of the stages of a bounded job: how many tasks each has, and what they have reported.

Owns the number of tasks of each stage, which follows from the partitions of its input. Only for display.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

from arcbeam.console.progressline import StageProgress, StageState
from arcbeam.model.plan import Plan, Routing, Stage
from arcbeam.model.rows import BundleReport
from arcbeam.spark.batch.rounds import Rounds
from arcbeam.spark.tasks.heartbeat import Pulse, TaskState


class StageTasks:
    """The tasks of a job's stages. The driver's thread calls `built` and `ran`; any thread calls `progress`.

    Args:
        plan: of the job.
        shards: the number of tasks that read an exchange.
        rounds: of splittable stages.
    """

    def __init__(self, plan: Plan, shards: int, rounds: Rounds) -> None:
        self._plan, self._shards, self._rounds = plan, shards, rounds
        # Of stages that are built: tasks of all rounds so far, and rounds.
        self._tasks: dict[str, int] = {}
        self._round: dict[str, int] = {}
        # The tasks of earlier rounds.
        self._earlier: dict[str, int] = {}
        self._ran: frozenset[str] = frozenset()

    def built(self, stage: Stage) -> None:
        """A stage's input is known, so it runs in the next Spark job."""
        self._round[stage.id] = 1
        self._tasks[stage.id] = 1 if stage.source is None else self._partitions(stage.source)

    def _partitions(self, channel: int) -> int:
        of = self._plan.channels[channel]
        if of.routing not in (Routing.FORWARD, Routing.SIDE):
            return self._shards
        return sum(
            self._rounds.parts(producer, channel) if self._plan.stage(producer).splittable else self._tasks[producer]
            for producer in of.producers
        )

    def ran(self, done: Collection[str]) -> None:
        """A Spark job has ended. These stages are done; splittable stages that are not have a further round."""
        self._ran = frozenset(done)
        for id, number in self._round.items():
            if id not in self._ran and self._rounds.begun(id) > number:
                self._round[id] = self._rounds.begun(id)
                self._earlier[id] = self._tasks[id]
                self._tasks[id] += self._shards

    @property
    def done(self) -> frozenset[str]:
        """The ids of stages whose Spark jobs have ended: all their tasks have reported."""
        return self._ran

    def progress(self, reports: Sequence[BundleReport], pulses: Sequence[Pulse] | None) -> list[StageProgress]:
        """Return the progress of each stage, in the plan's order.

        Args:
            reports: all so far.
            pulses: the newest figures of tasks; None: tasks write none.
        """
        reported = {(report.stage, report.attempt) for report in reports}
        mine: dict[str, list[BundleReport]] = defaultdict(list)
        # A task without input ends without a report. Its file stays there, also in the next round.
        now: dict[str, list[Pulse]] = defaultdict(list)
        for report in reports:
            mine[report.stage].append(report)
        for pulse in pulses or ():
            if pulse.stage not in self._ran and pulse.round == self._round.get(pulse.stage):
                now[pulse.stage].append(pulse)
        return [
            self._of(stage, mine[stage.id], now[stage.id], reported, pulses is not None) for stage in self._plan.stages
        ]

    def _of(
        self,
        stage: Stage,
        reports: Sequence[BundleReport],
        now: Sequence[Pulse],
        reported: Collection[tuple[str, int]],
        live: bool,
    ) -> StageProgress:
        id, of = stage.id, self._tasks.get(stage.id, 0)
        ended = self._earlier.get(id, 0) + sum(pulse.state is TaskState.ENDED for pulse in now)
        unreported = [pulse for pulse in now if (pulse.stage, pulse.attempt) not in reported]
        if id in self._ran:
            state, ended = StageState.DONE, of
        elif live:
            over = ended >= of and not stage.splittable
            begun = StageState.DONE if over else StageState.RUNNING
            state = begun if now or ended else StageState.WAITING
        else:
            state = StageState.RUNNING if id in self._tasks else StageState.WAITING
        return StageProgress(
            stage.name,
            state,
            ended,
            of,
            sum(each.retries for each in reports) + sum(each.retries for each in unreported),
            sum(report.elements_in for report in reports) + sum(pulse.elements for pulse in unreported),
            sum(each.seconds for each in reports) + sum(each.seconds for each in unreported),
            self._round.get(id, 1),
            live,
            max((each.spark_stage for each in reports if each.spark_stage is not None), default=None),
        )

    def unfinished(self, progress: Sequence[StageProgress], failed: Collection[str]) -> list[StageProgress]:
        """Return the last progress of a job that failed or was cancelled.

        Args:
            progress: when it ended.
            failed: ids of the stages with errors.
        """
        return [
            replace(each, state=StageState.FAILED if stage.id in failed else each.state.at_end())
            for stage, each in zip(self._plan.stages, progress, strict=True)
        ]
