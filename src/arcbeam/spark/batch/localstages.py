"""The driver's side of the stages that run in one task: their Spark job, and the tasks for what it leaves.

Owns that each row is processed by exactly one task whose report counts. If a stage takes long, the task leaves
everything else to others (`LeftEarly`), and the job continues beside it. From then on that is the truth: if another
attempt of the task ends, its reports are ignored, and a new task processes the rows that the stage had taken. Must not
know how the task works (`localtask`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from arcbeam.model.plan import Plan, Routing, Stage
from arcbeam.model.rows import BundleReport, RowFile
from arcbeam.spark.batch import exchange
from arcbeam.spark.batch.localtask import LeftEarly, LocalTask, with_sides
from arcbeam.spark.batch.rounds import Rounds, RoundTask
from arcbeam.spark.session.sessions import interrupt
from arcbeam.spark.tasks.heartbeat import pulsing
from arcbeam.spark.tasks.task import StageTask
from arcbeam.store.jobtemp.location import JobLocation

_LOG = logging.getLogger("arcbeam.batch")

_LOOK_SECONDS = 0.2
"""Interval in which the driver checks whether the task has left something early; a folder is cheap to list."""
_STOP_SECONDS = 30.0
"""Maximum time for Spark to end interrupted tasks."""
_REMOTE_LOOK_SECONDS = 2.0
"""The same for an object store, where each check is a request."""


@dataclass(frozen=True, slots=True)
class _Long:
    """A stage that runs beside the rest of the job.

    Attributes:
        task: of the stage.
        left: what its task has left.
        first: the reports of that task.
        rest: the reports of the stage's other tasks; None if it has left none of its input.
    """

    task: StageTask
    left: LeftEarly
    first: Future[list[BundleReport]]
    rest: Future[list[BundleReport]] | None

    def futures(self) -> list[Future[list[BundleReport]]]:
        """Return all reports to wait for."""
        return [self.first] if self.rest is None else [self.first, self.rest]


class LocalStages:
    """Runs stages in one task, as far as there is little data and none takes long.

    Args:
        spark: the session to run in.
        job: id of the job, by which its Spark jobs are interrupted.
        plan: of the job.
        location: the job's temporary location.
        shards: the number of tasks that process a rest.
        rounds: takes the rows that are left for other stages.
        collect: runs a frame, in which the named stages run, as a Spark job, and returns its reports.
        watched: whether tasks report their progress.

    Attributes:
        done: ids of the stages that have processed all their input, and whose output is in files.
        sides: indexes of side channels that stages have read.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: str,
        plan: Plan,
        location: JobLocation,
        shards: int,
        rounds: Rounds,
        collect: Callable[[DataFrame, tuple[str, ...]], list[BundleReport]],
        watched: bool,
    ) -> None:
        self._spark, self._job, self._plan, self._location, self._shards = spark, job, plan, location, shards
        self._rounds, self._collect, self._watched = rounds, collect, watched
        self._left: dict[str, list[RowFile]] = {}
        self._long: list[_Long] = []
        self._number = 0
        self.done: set[str] = set()
        self.sides: set[int] = set()

    @property
    def left(self) -> Collection[str]:
        """The ids of the stages that have left something to tasks of their own (`rest`)."""
        return self._left.keys()

    @property
    def running(self) -> Collection[str]:
        """The ids of the stages that run beside the rest of the job (`wait`)."""
        return {long.task.stage.id for long in self._long}

    def inputs(self, stages: Sequence[Stage], ready: Collection[int]) -> dict[int, tuple[str, ...]] | None:
        """Return the files that stages read, by channel; None if that is too much data.

        Args:
            stages: that may run.
            ready: side channels that are complete.
        """
        read = {stage.source for stage in stages if stage.source is not None}
        read |= {side.channel for stage in stages for side in stage.side_inputs if side.channel not in ready}
        found = {
            index: [file for id in self._plan.channels[index].producers for file in self._rounds.files(id, index)]
            for index in sorted(read)
        }
        if sum(file.size for files in found.values() for file in files) > self._plan.local_bytes:
            return None
        return {index: tuple(file.path for file in files) for index, files in found.items() if files}

    def run(self, tasks: Sequence[StageTask], inputs: Mapping[int, tuple[str, ...]]) -> list[BundleReport]:
        """Run the stages of these tasks, as far as there is little data; one that takes long runs on beside the job.

        Args:
            tasks: of the stages, in the plan's order.
            inputs: the files that they read.

        Returns:
            The reports that count.

        Raises:
            ArcbeamError: a Spark job failed.
        """
        self._number += 1
        channels, most = self._plan.channels, self._plan.local_bytes
        task = LocalTask(tuple(tasks), channels, inputs, self._number, most, self._watched)
        first = self._in_background(exchange.mapped(exchange.impulse(self._spark), task), tasks)
        seconds = _LOOK_SECONDS if self._location.folder is not None else _REMOTE_LOOK_SECONDS
        while not wait([first], seconds).done:
            if (left := LeftEarly.found(self._location, self._number)) is not None:
                return self._continue_beside(left, tasks, first)
        reports = first.result()
        unread = self._take(tasks, reports)
        for report in list(reports):
            if report.stage in unread:
                files = unread.pop(report.stage)
                if report.rest_bytes > most:
                    self._left[report.stage] = files
                    self.done.discard(report.stage)
                    continue
                of_stage = next(task for task in tasks if task.stage.id == report.stage)
                of_rest = self._collect(self._of_rest(with_sides(of_stage, reports), files), (of_stage.stage.name,))
                self._take((), of_rest)
                reports += of_rest
        return reports

    def wait(self) -> list[BundleReport]:
        """Wait until a stage that runs beside the job has ended; return its reports."""
        while True:
            for long in self._long:
                if all(future.done() for future in long.futures()):
                    self._long.remove(long)
                    return self._ended(long)
            running = [future for long in self._long for future in long.futures() if not future.done()]
            wait(running, return_when=FIRST_COMPLETED)

    def stop(self) -> BaseException | None:
        """End the stages that run beside a job that has failed; return the error of one that had failed before."""
        futures = [future for long in self._long for future in long.futures()]
        failed = [error for future in futures if future.done() and (error := future.exception()) is not None]
        if futures:
            interrupt(self._spark, self._job)
            wait(futures, _STOP_SECONDS)
        return next(iter(failed), None)

    def rest(self, stage: Stage) -> DataFrame | None:
        """Return the input of the tasks that process what a stage has left; None if it has left nothing."""
        left = self._left.get(stage.id)
        return None if left is None else self._exchanged(stage, left)

    def _take(self, tasks: Iterable[StageTask], reports: Sequence[BundleReport]) -> dict[str, list[RowFile]]:
        """Take what these tasks have done; return the files with what stages have left of their input, by stage."""
        reported = {report.stage for report in reports}
        begun = [task.stage for task in tasks if task.stage.id in reported]
        self.sides |= {side.channel for stage in begun for side in stage.side_inputs}
        self.done |= {stage.id for stage in begun}
        return self._rounds.take(reports)

    def _continue_beside(
        self, left: LeftEarly, tasks: Sequence[StageTask], first: Future[list[BundleReport]]
    ) -> list[BundleReport]:
        task = next(task for task in tasks if task.stage.id == left.stage)
        task = replace(task, side_files=left.side_files)
        self._take(tasks, left.reports)
        self.sides |= {side.channel for side in task.stage.side_inputs}
        rest = self._in_background(self._of_rest(task, left.rest), [task]) if left.rest else None
        self._long.append(_Long(task, left, first, rest))
        return list(left.reports)

    def _ended(self, long: _Long) -> list[BundleReport]:
        stage = long.task.stage
        reports = [report for report in long.first.result() if report.left_early == long.left.id]
        if not reports:
            _LOG.info("%s: another attempt has ended; what the first had taken is processed again", stage.name)
            reports = self._collect(self._of_rest(long.task, long.left.taken), (stage.name,))
        reports += [] if long.rest is None else long.rest.result()
        self._take([long.task], reports)
        return reports

    def _in_background(self, frame: DataFrame, tasks: Sequence[StageTask]) -> Future[list[BundleReport]]:
        reports, names = Future[list[BundleReport]](), tuple(task.stage.name for task in tasks)

        def run() -> None:
            try:
                reports.set_result(self._collect(frame, names))
            except BaseException as e:
                reports.set_exception(e)
                interrupt(self._spark, self._job)

        # SUBTLE: a daemon thread. A thread of an executor would keep the process from ending.
        threading.Thread(target=run, name=f"{self._job}-local", daemon=True).start()
        return reports

    def _of_rest(self, task: StageTask, files: Sequence[RowFile]) -> DataFrame:
        """Return the reports of a stage's tasks over rows that its first task has left; their output is in files."""
        rest = pulsing(RoundTask(replace(task, round=1)), task.stage.id, self._location, self._watched)
        return exchange.mapped(self._exchanged(task.stage, files), rest)

    def _exchanged(self, stage: Stage, files: Sequence[RowFile]) -> DataFrame:
        routing = Routing.SPREAD if stage.source is None else self._plan.channels[stage.source].routing
        # Elements are for all slots, also where the whole input was in one partition.
        routing = Routing.SPREAD if routing is Routing.FORWARD else routing
        return exchange.exchanged(self._rounds.read(files), routing, self._shards)
