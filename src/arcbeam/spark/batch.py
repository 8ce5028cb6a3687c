"""A bounded plan as Spark jobs.

Owns the order of things: data frames are built lazily, stage by stage; a Spark job runs only where something must be
complete (side inputs, a round of a splittable DoFn, the end). Stages with several uses are persisted, so that nothing
runs twice. Must not know protos.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from arcbeam.errors import JobCancelledError
from arcbeam.harness.wiring import Settings
from arcbeam.model.plan import Channel, Plan, Routing, Stage
from arcbeam.model.rows import SideFile, TaskReport
from arcbeam.progress import Standing
from arcbeam.spark import exchange
from arcbeam.spark.failure import as_job_failure
from arcbeam.spark.multimap import MultimapTask
from arcbeam.spark.session import default_parallelism, interrupt, tagged
from arcbeam.spark.task import StageTask
from arcbeam.spark.teardown import tear_down_workers
from arcbeam.spark.versions import Versions
from arcbeam.store.location import JobLocation

_LOG = logging.getLogger("arcbeam.batch")


@dataclass(slots=True)
class Outcome:
    """What a finished job leaves: the reports of all its tasks, and how many Spark jobs it took."""

    reports: list[TaskReport] = field(default_factory=list)
    spark_jobs: int = 0


class BatchRun:
    """One run of a bounded plan.

    Args:
        plan: what to run.
        spark: where.
        settings: of the job.
        job: unique id; tags the Spark jobs, so that they can be interrupted.
        location: the job's temporary location; the caller removes it.
        on_report: told of each task's report as it arrives.
        prelude: called in a worker before it opens its first processor of this job.
    """

    def __init__(
        self,
        plan: Plan,
        spark: SparkSession,
        settings: Settings,
        job: str,
        location: JobLocation,
        on_report: Callable[[TaskReport], None] = lambda report: None,
        prelude: Callable[[], None] | None = None,
    ) -> None:
        self._plan, self._spark, self._settings = plan, spark, settings
        self._job, self._location, self._on_report, self._prelude = job, location, on_report, prelude
        self._versions = Versions.here()
        self._frames: dict[str, DataFrame] = {}
        self._persisted: list[DataFrame] = []
        self._actions: list[DataFrame] = []
        self._ran: set[str] = set()
        self._built_multimaps: set[int] = set()
        self._ready_sides: set[int] = set()
        self._side_files: dict[int, list[SideFile]] = {}
        self._unrun: list[str] = []
        self._running: tuple[str, ...] = ()
        self._outcome = Outcome()
        self._cancelled = threading.Event()
        self._attempted = False

    @property
    def outcome(self) -> Outcome:
        """What has been reported so far."""
        return self._outcome

    def standing(self) -> Standing:
        """Where the run stands; callable from any thread."""
        reports = list(self._outcome.reports)
        return Standing(self._running, sum(r.elements_in for r in reports), len(reports))

    def run(self) -> Outcome:
        """Runs everything; raises what `failure.as_job_failure` makes of a failed Spark job."""
        waiting = list(self._plan.stages)
        done = False
        try:
            while waiting or self._actions:
                progressed = False
                for stage in list(waiting):
                    if self._can_build(stage):
                        self._build(stage)
                        waiting.remove(stage)
                        progressed = True
                if self._actions and (not waiting or not progressed):
                    self._act()
                elif waiting and not progressed:
                    raise AssertionError(f"stages wait for each other: {[s.id for s in waiting]}")
            done = True
            return self._outcome
        finally:
            for frame in self._persisted:
                with contextlib.suppress(Exception):
                    frame.unpersist()
            self._tear_down(failed=not done)

    def _tear_down(self, failed: bool) -> None:
        """Tears down DoFns that have something to tear down; costs nothing if no worker holds one."""
        holders = {report.worker for report in self._outcome.reports if report.needs_teardown}
        if holders or (failed and self._attempted):
            tear_down_workers(self._spark, self._job, holders, default_parallelism(self._spark))

    # Building.

    def _can_build(self, stage: Stage) -> bool:
        if any(side.channel not in self._ready_sides for side in stage.side_inputs):
            return False
        return stage.source is None or all(p in self._frames for p in self._plan.channels[stage.source].producers)

    def _build(self, stage: Stage) -> None:
        self._unrun.append(stage.name)
        if stage.source is None:
            source = exchange.impulse(self._spark)
        else:
            channel = self._plan.channels[stage.source]
            source = exchange.exchanged(self._incoming(channel), channel.routing, self._settings.shards)
        if stage.splittable:
            self._run_rounds(stage, source)
            self._note_ran({stage.id})
        else:
            frame = exchange.mapped(source, self._task(stage))
            if self._uses(stage) > 1:
                frame = self._persist(frame)
            self._frames[stage.id] = frame
            if self._reports_itself(stage):
                self._actions.append(exchange.reports(frame))
        for index in stage.sinks:
            channel = self._plan.channels[index]
            if channel.routing is Routing.SIDE_KEYED and all(p in self._frames for p in channel.producers):
                self._build_multimap(channel)

    def _build_multimap(self, channel: Channel) -> None:
        moved = exchange.exchanged(self._incoming(channel), channel.routing, self._settings.shards)
        task = MultimapTask(channel.index, self._location, self._settings.group_memory_bytes)
        self._actions.append(exchange.reports(exchange.mapped(moved, task)))
        self._built_multimaps.add(channel.index)

    def _incoming(self, channel: Channel) -> DataFrame:
        frames = []
        for producer in channel.producers:
            stage = self._plan.stage(producer)
            frames.append(exchange.channel(self._frames[producer], channel.index, not self._reports_itself(stage)))
        return exchange.union(frames)

    def _task(self, stage: Stage) -> StageTask:
        return StageTask(
            job=self._job,
            stage=stage,
            settings=self._settings,
            location=self._location,
            versions=self._versions,
            side_files={s.channel: tuple(self._side_files.get(s.channel, ())) for s in stage.side_inputs},
            prelude=self._prelude,
        )

    def _uses(self, stage: Stage) -> int:
        """How many data frames will read the stage's output."""
        uses = 0
        for index in stage.sinks:
            channel = self._plan.channels[index]
            uses += len(channel.consumers) + (channel.routing in (Routing.SIDE, Routing.SIDE_KEYED))
        return uses

    def _reports_itself(self, stage: Stage) -> bool:
        """Whether its reports are collected from its own output, not passed through its consumer."""
        if stage.splittable or self._uses(stage) != 1:
            return True
        (channel,) = (
            c
            for c in (self._plan.channels[i] for i in stage.sinks)
            if c.consumers or c.routing in (Routing.SIDE, Routing.SIDE_KEYED)
        )
        return channel.routing is Routing.SIDE

    def _persist(self, frame: DataFrame) -> DataFrame:
        frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
        self._persisted.append(frame)
        return frame

    # Running.

    def _act(self) -> None:
        """Runs one Spark job over everything that waits to be complete."""
        actions, self._actions = self._actions, []
        self._collect(exchange.union(actions))
        self._note_ran(set(self._frames))
        self._ready_sides |= self._built_multimaps

    def _note_ran(self, stages: set[str]) -> None:
        """These stages have run: their iterable side inputs are ready once all producers have."""
        self._ran |= stages
        for channel in self._plan.channels:
            if channel.routing is Routing.SIDE and set(channel.producers) <= self._ran:
                self._ready_sides.add(channel.index)

    def _collect(self, frame: DataFrame) -> list[TaskReport]:
        if self._cancelled.is_set():
            raise JobCancelledError(f"{self._job} was cancelled")
        self._attempted = True
        self._running = tuple(self._unrun)
        try:
            with tagged(self._spark, self._job):
                rows = frame.select("blob").collect()
        except Exception as e:
            raise as_job_failure(e, self._location)  # noqa: B904  # it knows whether Spark's own text adds anything
        self._unrun.clear()
        self._outcome.spark_jobs += 1
        reports = [TaskReport.from_blob(bytes(row[0])) for row in rows]
        for report in reports:
            self._outcome.reports.append(report)
            for file in report.side_files:
                self._side_files.setdefault(file.channel, []).append(file)
            self._on_report(report)
        return reports

    def _run_rounds(self, stage: Stage, source: DataFrame) -> None:
        """Runs a splittable stage until it leaves no residuals; each round is a job of its own.

        A round starts no sooner than the earliest residual is due. SUBTLE: what a round puts out and what it leaves
        belong together, and where it was cut depends on the clock. So both are kept; computed again (after the loss of
        an executor) they would not fit together.
        """
        rounds: list[DataFrame] = []
        while True:
            frame = self._persist(exchange.mapped(source, self._task(stage)))
            rounds.append(frame)
            reports = [r for r in self._collect(exchange.reports(frame)) if r.stage == stage.id and r.residuals]
            if not reports:
                break
            due = [report.next_due for report in reports if report.next_due is not None]
            _LOG.info("%s: round %d leaves %d restrictions", stage.name, len(rounds), sum(r.residuals for r in reports))
            if len(due) == len(reports):
                self._cancelled.wait(max(0.0, min(due) - time.time()))
            source = exchange.exchanged(exchange.residuals(frame), Routing.SPREAD, self._settings.shards)
        done = exchange.union(rounds)
        # Many rounds have left many small partitions.
        self._frames[stage.id] = done if len(rounds) == 1 else done.coalesce(self._settings.shards)

    def interrupt(self) -> None:
        """Cancels the job's Spark jobs, now and from now on; callable from any thread, and again."""
        self._cancelled.set()
        interrupt(self._spark, self._job)


def summary(outcome: Outcome) -> dict[str, Any]:
    """Figures of a finished job, for logs."""
    return {
        "tasks": len(outcome.reports),
        "spark_jobs": outcome.spark_jobs,
        "bundles": sum(r.bundles for r in outcome.reports),
        "elements": sum(r.elements_in for r in outcome.reports),
    }
