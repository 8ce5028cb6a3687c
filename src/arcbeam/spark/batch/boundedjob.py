"""A bounded plan as Spark jobs.

Owns the order of work. Data frames are built lazily, stage by stage. A Spark job runs only where data must be complete
(side inputs, a round of a splittable DoFn, the end), and then for all stages that wait. Stages with several readers are
persisted, so that nothing runs twice. Must not know protos.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from arcbeam.console.progressline import JobProgress, StageProgress, summed
from arcbeam.errors import ArcbeamError, JobCancelledError, PublishRefusedError
from arcbeam.harness.bundle.metrics import merge_metrics
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.files import SideFile
from arcbeam.model.plan import Channel, Plan, Routing, Stage
from arcbeam.model.rows import BundleReport
from arcbeam.spark.batch import exchange
from arcbeam.spark.batch.localstages import LocalStages
from arcbeam.spark.batch.multimap import MultimapTask
from arcbeam.spark.batch.rounds import Rounds
from arcbeam.spark.batch.stageprogress import StageTasks
from arcbeam.spark.session import driver
from arcbeam.spark.session.sessions import default_parallelism, interrupt
from arcbeam.spark.session.versions import Versions
from arcbeam.spark.tasks.collecting import collected, described
from arcbeam.spark.tasks.ending.publishing import SparkPublishing, Sweep
from arcbeam.spark.tasks.ending.shutdown import Graceful, ShuttingDown
from arcbeam.spark.tasks.ending.teardown import tear_down_workers
from arcbeam.spark.tasks.heartbeat import Pulse, TaskState, pulses, pulsing, writes_pulses
from arcbeam.spark.tasks.openstages import HOLDERS
from arcbeam.spark.tasks.task import OpenForShutdown, StageTask
from arcbeam.store.jobtemp.location import JobLocation

_LOG = logging.getLogger("arcbeam.batch")

_PUBLISH_SECONDS_MAX = 60.0
"""For publishing: a store may be unavailable for a while, and hours of work are done."""


@dataclass(slots=True)
class BoundedOutcome:
    """Result of a finished job: the reports of all its tasks, and the number of Spark jobs it took."""

    reports: list[BundleReport] = field(default_factory=list)
    spark_jobs: int = 0

    def summary(self) -> dict[str, Any]:
        """Return figures for logs."""
        return {
            "tasks": len(self.reports),
            "spark_jobs": self.spark_jobs,
            "bundles": sum(r.bundles for r in self.reports),
            "elements": sum(r.elements_in for r in self.reports),
        }


class BatchRun:
    """One run of a bounded plan.

    Args:
        plan: the plan to run.
        spark: the session to run it in.
        settings: the job's settings.
        job: unique id; tags the Spark jobs, so that they can be interrupted.
        location: the job's temporary location; the caller removes it.
        on_report: called with each task's report as it arrives.
        watched: whether `progress` is read during the run. If so, tasks report their progress.
        worker_setup: called in a worker before it opens its first processor of this job.
    """

    def __init__(
        self,
        plan: Plan,
        spark: SparkSession,
        settings: TaskSettings,
        job: str,
        location: JobLocation,
        on_report: Callable[[BundleReport], None] = lambda report: None,
        worker_setup: Callable[[], None] | None = None,
        watched: bool = False,
    ) -> None:
        self._plan, self._spark, self._settings = plan, spark, settings
        self._job, self._location, self._on_report, self._worker_setup = job, location, on_report, worker_setup
        self._versions, self._watched = Versions.here(), watched
        self._frames: dict[str, DataFrame] = {}
        self._rounds = Rounds(spark, location, settings.shards, watched)
        self._persisted: list[DataFrame] = []
        self._actions: list[DataFrame] = []
        self._ran: set[str] = set()
        # Stages whose whole output is in files.
        self._in_files: set[str] = set()
        self._local = LocalStages(spark, job, plan, location, settings.shards, self._rounds, self._collected, watched)
        self._built_multimaps: set[int] = set()
        self._ready_sides: set[int] = set()
        self._side_files: dict[int, list[SideFile]] = {}
        self._tasks = StageTasks(plan, settings.shards, self._rounds)
        self._unrun: list[str] = []
        self._running: tuple[str, ...] = ()
        self._last: list[StageProgress] | None = None
        self._outcome = BoundedOutcome()
        self._cancelled = threading.Event()
        self._attempted = self._half_published = False
        self._publishing = SparkPublishing(
            spark,
            plan,
            job,
            location,
            default_parallelism(spark),
            quick=settings.quick_tasks,
            worker_setup=worker_setup,
        )

    @property
    def outcome(self) -> BoundedOutcome:
        """What tasks have reported so far."""
        return self._outcome

    @property
    def half_published(self) -> bool:
        """Whether publishing has begun and not finished: some of the output may be published, and some not."""
        return self._half_published

    def metrics(self) -> list[bytes]:
        """Return the serialized MonitoringInfos of all reports so far."""
        return merge_metrics(info for report in list(self._outcome.reports) for info in report.metrics)

    def progress(self) -> JobProgress:
        """Return the progress of the run; callable from any thread."""
        found = summed(self.stages())
        return replace(found, stages=found.stages or self._running)

    def stages(self) -> list[StageProgress]:
        """Return the progress of each stage, in the plan's order; callable from any thread, also after the end."""
        if self._last is not None:
            return self._last
        return self._tasks.progress(list(self._outcome.reports), self._pulses())

    def _pulses(self) -> list[Pulse] | None:
        """Return the newest figures of tasks that have not reported; None if tasks write none."""
        return pulses(self._location, self._tasks.done) if writes_pulses(self._location, self._watched) else None

    def _keep_progress(self, done: bool) -> None:
        """Keep the last progress: the job's temporary location is removed after its end."""
        written = self._pulses()
        last = self._tasks.progress(list(self._outcome.reports), written)
        if not done:
            last = self._tasks.unfinished(last, set() if self._cancelled.is_set() else self._failed(written or ()))
        self._last = last

    def _failed(self, written: Iterable[Pulse]) -> set[str]:
        """Return the ids of the stages with errors; if none has recorded one, of those with tasks that have failed."""
        ids = [stage.id for stage in self._plan.stages] if self._location.error_names() else []
        recorded = {id for id in ids if self._location.error_names(id)}
        return recorded or {pulse.stage for pulse in written if pulse.state is TaskState.FAILED}

    def run(self) -> BoundedOutcome:
        """Run everything; if a Spark job fails, raise what `failure.as_job_failure` returns."""
        waiting, done = list(self._plan.stages), False
        try:
            while True:
                if self._run_local_stages():
                    elsewhere = {*self._in_files, *self._local.running}
                    waiting = [stage for stage in waiting if stage.id not in elsewhere]
                    continue
                for id in self._in_files:
                    self._build_multimaps(self._plan.stage(id))
                if ready := [stage for stage in waiting if self._can_build(stage)]:
                    for stage in ready:
                        self._build(stage)
                        waiting.remove(stage)
                elif self._actions or self._rounds.stages:
                    self._act()
                elif self._local.running:
                    self._take_local(self._local.wait())
                elif waiting:
                    raise AssertionError(f"stages wait for each other: {[s.id for s in waiting]}")
                else:
                    break
            self._publish()
            self._shut_down()
            done = True
            return self._outcome
        except BaseException:
            if (error := self._local.stop()) is not None:
                raise error from None
            raise
        finally:
            with contextlib.suppress(ArcbeamError):
                self._keep_progress(done)
            if driver.death(self._spark) is None:
                for frame in self._persisted:
                    with contextlib.suppress(Exception):
                        frame.unpersist()
                with contextlib.suppress(ArcbeamError):
                    self._sweep()
                self._tear_down(failed=not done)

    def _publish(self) -> None:
        """Publish the job's committables, after all its work is done."""
        committables = [
            (publisher, each)
            for report in self._outcome.reports
            for publisher, some in report.committables.items()
            for each in some
        ]
        if not committables:
            return
        self._half_published = True
        until = time.monotonic() + _PUBLISH_SECONDS_MAX
        for failures in itertools.count():
            self._require_not_cancelled()
            try:
                warnings = self._publishing.publish(committables, again=failures > 0)
                break
            except ArcbeamError as e:
                pause = float(1 << min(failures, 4))
                if isinstance(e, JobCancelledError | PublishRefusedError) or time.monotonic() + pause > until:
                    raise
                _LOG.warning("%s is not published yet: %s", self._plan.name, e)
                self._cancelled.wait(pause)
        self._half_published = False
        for text in warnings:
            _LOG.warning("%s: %s", self._plan.name, text)

    def _sweep(self) -> None:
        """Remove staged files that were not published: a bounded job never resumes."""
        if self._half_published:
            _LOG.warning(
                "%s: publishing did not finish, so some staged files may be published; the rest stay in their folder",
                self._plan.name,
            )
            return
        failed = self._publishing.sweep(Sweep(self._job, 0), last=True) if self._attempted else ()
        for text in failed:
            _LOG.warning("%s: %s", self._plan.name, text)

    def _shut_down(self) -> None:
        """Call `shutdown` of the DoFns that have it, from sources to sinks; costs nothing if none has."""
        offered: dict[str, tuple[str, ...]] = {}
        workers: dict[str, set[str]] = {}
        for report in self._outcome.reports:
            if report.graceful:
                offered[report.stage] = report.graceful
                workers.setdefault(report.stage, set()).add(report.worker)
        if not offered:
            return
        slots, seconds = default_parallelism(self._spark), self._settings.shutdown_seconds
        calls = ShuttingDown(self._spark, self._job, slots, seconds, self._cancelled, name=self._plan.name)
        stages = [
            Graceful(stage.id, offered[stage.id], OpenForShutdown(self._task(stage)), frozenset(workers[stage.id]))
            for stage in self._plan.stages
            if stage.id in offered
        ]
        for error in calls.call(stages):
            _LOG.warning("%s: shutting down: %s", self._plan.name, error)

    def _tear_down(self, failed: bool) -> None:
        """Tear down DoFns that need it; costs nothing if no worker holds such a DoFn."""
        holders = {report.worker for report in self._outcome.reports if report.needs_teardown}
        holders |= self._publishing.holders
        needed = bool(holders)
        if failed:
            # It is unknown which holders survived the failure: tear down whichever workers one round reaches.
            holders.clear()
            with contextlib.suppress(Exception):
                needed = self._attempted and bool(self._location.list(HOLDERS))
        if needed:
            order = [stage.id for stage in reversed(self._plan.stages)]
            slots, seconds = default_parallelism(self._spark), self._settings.shutdown_seconds
            result = tear_down_workers(
                self._spark, self._job, holders, slots, order=order, seconds=seconds, name=self._plan.name
            )
            for error in result.errors:
                _LOG.warning("%s: tearing down: %s", self._plan.name, error)

    def _run_local_stages(self) -> bool:
        """Run stages that may share a task, as far as there is little data; return whether any has begun."""
        if self._actions:
            return False
        in_rounds = (stage.id for stage in self._rounds.stages)
        elsewhere = {*self._frames, *in_rounds, *self._local.left, *self._local.running}
        stages = self._plan.local_stages(self._in_files, self._ready_sides, elsewhere)
        inputs = self._local.inputs(stages, self._ready_sides)
        if not stages or inputs is None:
            return False
        for stage in stages:
            self._tasks.built(stage)
        self._running = tuple(stage.name for stage in stages)
        self._take_local(self._local.run(list(map(self._task, stages)), inputs))
        return True

    def _take_local(self, reports: list[BundleReport]) -> None:
        self._record(reports)
        self._in_files |= self._local.done
        self._built_multimaps |= self._local.sides
        self._ready_sides |= self._local.sides
        self._note_ran(self._local.done)
        self._tasks.ran({*self._frames, *self._in_files})

    # Building.

    def _can_build(self, stage: Stage) -> bool:
        if any(side.channel not in self._ready_sides for side in stage.side_inputs):
            return False
        return stage.source is None or self._is_built(self._plan.channels[stage.source])

    def _is_built(self, channel: Channel) -> bool:
        """Return whether data frames for all input of the channel exist."""
        return all(producer in self._in_files or producer in self._frames for producer in channel.producers)

    def _build(self, stage: Stage) -> None:
        self._unrun.append(stage.name)
        self._tasks.built(stage)
        rest = self._local.rest(stage)
        if rest is not None:
            source = rest
        elif stage.source is None:
            source = exchange.impulse(self._spark)
        else:
            channel = self._plan.channels[stage.source]
            source = exchange.exchanged(self._incoming(channel), channel.routing, self._settings.shards)
        if stage.splittable:
            self._rounds.add(self._task(stage), source)
            return
        # The first task of a stage with a rest has run elsewhere: what this one stages has another place.
        task = replace(self._task(stage), round=int(rest is not None))
        frame = exchange.mapped(source, pulsing(task, stage.id, self._location, self._watched))
        itself = self._reports_itself(stage)
        if self._readers(stage) + itself > 1:
            frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
            self._persisted.append(frame)
        self._frames[stage.id] = frame
        if itself:
            # Elements for side input files are in no row.
            rows = any(self._plan.channels[index].routing is not Routing.SIDE for index in stage.sinks)
            self._actions.append(exchange.reports(frame) if rows else frame)
        self._build_multimaps(stage)

    def _build_multimaps(self, producer: Stage) -> None:
        """Build those of the stage's side channels that are complete now."""
        for index in producer.sinks:
            channel = self._plan.channels[index]
            known = index in self._built_multimaps  # two of its producers may have finished at once
            if channel.routing is Routing.SIDE_KEYED and not known and self._is_built(channel):
                self._build_multimap(channel)

    def _build_multimap(self, channel: Channel) -> None:
        moved = exchange.exchanged(self._incoming(channel), channel.routing, self._settings.shards)
        task = MultimapTask(channel.index, self._location, self._settings.group_memory_bytes)
        self._actions.append(exchange.mapped(moved, task))
        self._built_multimaps.add(channel.index)

    def _incoming(self, channel: Channel) -> DataFrame:
        frames = []
        for producer in channel.producers:
            stage = self._plan.stage(producer)
            if producer in self._in_files or self._rounds.files(producer, channel.index):
                frames.append(self._rounds.output(producer, channel.index))
                if producer in self._in_files:
                    continue
            frame, with_reports = self._frames[producer], not self._reports_itself(stage)
            if not with_reports or stage.sinks != (channel.index,):
                frame = exchange.channel(frame, channel.index, with_reports)
            frames.append(frame)
        return exchange.union(frames)

    def _task(self, stage: Stage) -> StageTask:
        return StageTask(
            job=self._job,
            stage=stage,
            settings=self._settings,
            location=self._location,
            versions=self._versions,
            side_files={s.channel: tuple(self._side_files.get(s.channel, ())) for s in stage.side_inputs},
            worker_setup=self._worker_setup,
        )

    def _readers(self, stage: Stage) -> int:
        """Return how many data frames will read the stage's output."""
        channels = [self._plan.channels[index] for index in stage.sinks]
        return sum(len(channel.consumers) + (channel.routing is Routing.SIDE_KEYED) for channel in channels)

    def _reports_itself(self, stage: Stage) -> bool:
        """Return whether the stage's reports are collected from its own output, not passed through its consumer."""
        writes_files = any(self._plan.channels[index].routing is Routing.SIDE for index in stage.sinks)
        return writes_files or self._readers(stage) != 1

    # Running.

    def _act(self) -> None:
        """Run one Spark job for everything that must be complete: actions, and rounds that are due."""
        if not self._actions:
            self._cancelled.wait(self._rounds.wait())
        self._require_not_cancelled()
        frames, self._actions = [*self._actions, *self._rounds.begin()], []
        if not frames:
            return  # the clock was set back
        self._running = (*self._unrun, *(s.name for s in self._rounds.stages if s.name not in self._unrun))
        reports = self._collect(exchange.union(frames))
        self._unrun.clear()
        finished = self._rounds.end(reports)
        self._in_files |= finished
        self._note_ran({*self._frames, *finished})
        self._tasks.ran({*self._frames, *self._in_files})
        self._ready_sides |= self._built_multimaps

    def _require_not_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise JobCancelledError(f"job '{self._plan.name}' was cancelled")

    def _note_ran(self, stages: set[str]) -> None:
        """Record that these stages have run: an iterable side input is ready once all its producers have."""
        self._ran |= stages
        for channel in self._plan.channels:
            if channel.routing is Routing.SIDE and set(channel.producers) <= self._ran:
                self._ready_sides.add(channel.index)

    def _collect(self, frame: DataFrame) -> list[BundleReport]:
        reports = self._collected(frame, self._running)
        self._record(reports)
        return reports

    def _collected(self, frame: DataFrame, running: tuple[str, ...]) -> list[BundleReport]:
        """Run a Spark job; return the reports of its tasks, without recording them."""
        self._attempted = True
        about = described(self._plan.name, running)
        rows = collected(self._spark, frame, self._job, self._location, running, about=about)
        self._outcome.spark_jobs += 1
        return [BundleReport.from_blob(bytes(row["blob"])) for row in rows]

    def _record(self, reports: list[BundleReport]) -> None:
        for report in reports:
            self._outcome.reports.append(report)
            for file in report.side_files:
                self._side_files.setdefault(file.channel, []).append(file)
            self._on_report(report)

    def interrupt(self) -> None:
        """Cancel the job's Spark jobs, present and future ones. Callable from any thread, repeatedly."""
        self._cancelled.set()
        self._publishing.close()
        interrupt(self._spark, self._job)
