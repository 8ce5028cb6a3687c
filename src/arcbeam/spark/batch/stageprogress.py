"""The progress of the stages of a bounded job: how many tasks each has, and what they have reported.

Owns the number of tasks of each stage, which follows from the partitions of its input. Only for display.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from arcbeam.console.progressline import StageProgress
from arcbeam.model.plan import Plan, Routing, Stage
from arcbeam.model.rows import BundleReport
from arcbeam.spark.batch.rounds import Rounds
from arcbeam.spark.tasks.heartbeat import Pulse


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
                self._tasks[id] += self._shards

    def progress(self, reports: Sequence[BundleReport], pulses: Sequence[Pulse] | None) -> list[StageProgress]:
        """Return the progress of each stage, in the plan's order.

        Args:
            reports: all so far.
            pulses: the newest figures of tasks; None: tasks write none.
        """
        reported = {(report.stage, report.attempt) for report in reports}
        mine: dict[str, list[BundleReport]] = defaultdict(list)
        running: dict[str, list[Pulse]] = defaultdict(list)
        retries: dict[str, int] = defaultdict(int)
        for report in reports:
            mine[report.stage].append(report)
        for pulse in pulses or ():
            retries[pulse.stage] += pulse.retries
            if (pulse.stage, pulse.attempt) not in reported:
                running[pulse.stage].append(pulse)
        return [
            StageProgress(
                stage.name,
                self._state(stage.id),
                len(mine[stage.id]) + sum(pulse.ended for pulse in running[stage.id]),
                self._tasks.get(stage.id, 0),
                None if pulses is None else retries[stage.id],
                sum(report.elements_in for report in mine[stage.id]) + sum(p.elements for p in running[stage.id]),
                sum(report.seconds for report in mine[stage.id]),
                self._round.get(stage.id, 1),
            )
            for stage in self._plan.stages
        ]

    def _state(self, id: str) -> str:
        if id in self._ran:
            return "done"
        return "running" if id in self._tasks else "waiting"
