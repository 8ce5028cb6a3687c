"""An unbounded plan on Spark: its driver, from taking the job over to the job's end.

Owns what surrounds a driver: a clock, an inbox, a log, a cluster, control requests. Must not know protos.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from pyspark.sql import SparkSession
from typing_extensions import override

from arcbeam.console.progressline import JobProgress, watched
from arcbeam.engine.coordinator import (
    CancelRequested,
    Command,
    CommitDecided,
    End,
    EndState,
    Event,
    JobMachine,
    MicroBatchFailed,
    MicroBatchReported,
    Mode,
    Phase,
    Propose,
)
from arcbeam.errors import JobCancelledError, JobFailedError, ServerLostError, WorkerLostError
from arcbeam.explain import plan_record
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.harness.streaming.counters import Counters
from arcbeam.model.commits import Committable
from arcbeam.model.plan import Plan
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.spark.session.sessions import default_parallelism
from arcbeam.spark.session.versions import Versions
from arcbeam.spark.streaming.cluster import SparkCluster
from arcbeam.spark.streaming.pace import machine_settings
from arcbeam.spark.streaming.workerjob import StreamingJob, give
from arcbeam.spark.tasks.lostattempts import LeftLines
from arcbeam.store.blobs.backends import check_owner, open_blobs, shown
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.log.jobname import job_label, resume_command
from arcbeam.store.log.requests import RequestKind
from arcbeam.store.log.sweep import Swept
from arcbeam.store.log.troublenote import TroubleNote, record_trouble
from arcbeam.store.manifest.values import ENDED
from arcbeam.streaming.driver.commits import LogCommits
from arcbeam.streaming.driver.controlrequests import EventQueue, RequestWatch, WallClock
from arcbeam.streaming.driver.driver import JobDriver, drive
from arcbeam.streaming.driver.heartbeat import Heartbeat
from arcbeam.streaming.driver.historywriter import HistoryWriter
from arcbeam.streaming.driver.requests import PendingRequest, RequestQueue
from arcbeam.streaming.driver.samplerequests import SampleRequests
from arcbeam.streaming.driver.scriptreader import ScriptReader
from arcbeam.streaming.driverstate import started
from arcbeam.streaming.interfaces import DriverObserver, JobListener, Sinks
from arcbeam.streaming.physicalplan import PhysicalPlan, output_names, placed
from arcbeam.streaming.restore.restore import RestoreOptions, restore
from arcbeam.streaming.status.activity import Activity
from arcbeam.streaming.status.status import (
    Status,
    StatusAt,
    at_moment,
    late_of,
    total_state_metrics,
    with_driver,
    with_trouble,
)
from arcbeam.streaming.status.taskheartbeats import HeardTasks
from arcbeam.streaming.status.tries import ATTEMPT, deadly_try, failed_try
from arcbeam.streaming.status.words import in_words, undone
from arcbeam.translate.teststream import events_of

_LOG = logging.getLogger("arcbeam.streaming")


@dataclass(frozen=True, slots=True)
class StreamingOutcome:
    """Result of a job that has ended.

    Attributes:
        state: how it ended.
        micro_batches: how many this driver committed.
        head: the job's newest micro-batch.
    """

    state: EndState
    micro_batches: int
    head: int

    def summary(self) -> dict[str, object]:
        """Return figures for logs."""
        return {"state": self.state.value, "micro_batches": self.micro_batches}


class StreamRun(Sinks, DriverObserver):
    """One driver's run of an unbounded job.

    Args:
        plan: the plan to run.
        spark: the session to run it in.
        settings: the job's settings; their number of shards is used only for a new job.
        job: unique id of the run; tags the Spark jobs, so that they can be interrupted.
        location: the run's temporary location; the caller removes it.
        store: URL of the job's folder. An empty folder begins a new job; None: a folder in `location`.
        listener: is notified of what the job does.
        worker_setup: called in a worker before it opens its first stage of this job.
        how: how to resume an earlier job in the folder.
        samples: whether samples of its stages may be taken.
        details: returns what the folder keeps for people besides figures; see `HistoryWriter`.

    Attributes:
        store: URL of the job's folder.
        kept: whether the folder outlives the run.
        commit_seconds: how long the newest commit took.
    """

    def __init__(
        self,
        plan: Plan,
        spark: SparkSession,
        settings: TaskSettings,
        job: str,
        location: JobLocation,
        store: str | None,
        listener: JobListener,
        worker_setup: Callable[[], None] | None = None,
        how: RestoreOptions = RestoreOptions(),  # noqa: B008  # immutable
        samples: bool = False,
        details: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self._plan, self._spark, self._settings, self._how = plan, spark, settings, how
        self._job, self._location = job, location
        # The full URL, as `JobLocation` makes it: tasks run in other working directories.
        self.store = location.below("state") if store is None else JobLocation(store).url
        self.kept = store is not None
        self._listener, self._worker_setup, self._details = listener, worker_setup, details
        self._clock, self._at = WallClock(), StatusAt(plan.name)
        self._inbox = EventQueue(self._clock)
        label = job_label(plan.name, shown(self.store) if self.kept else "")
        self._samples = SampleRequests({stage.uid for stage in plan.stages} if samples else None)
        self._requests = RequestQueue(self._inbox, self._clock, label, self._samples)
        self._counters = Counters()
        self._machine: JobMachine | None = None
        self._log: CommitLog | None = None
        self._cluster: SparkCluster | None = None
        # Warnings of publishing, sweeping and repeated attempts, from any thread.
        self._warnings: SimpleQueue[Sequence[str]] = SimpleQueue()
        self._left_lines = LeftLines(location)
        self._blobs: DurableBlobs | None = None
        # Why the current micro-batch is retried.
        self._trouble: TroubleNote | None = None
        self._driven = machine_settings(settings)
        self._activity = Activity(self._driven.retry.times + 1, self._driven.deaths.times + 1)
        self._heartbeat: Heartbeat | None = None
        self._history: HistoryWriter | None = None
        self._opened = -1
        self._end: End | None = None
        self._mode = Mode.RUNNING
        self._took, self._ran = Duration(0), False
        self._proposed, self.commit_seconds = 0.0, 0.0
        self._measured: Callable[[], dict[str, Any]] = dict

    def progress(self) -> JobProgress:
        """Return the progress of the run; callable from any thread."""
        return self._counters.progress()

    def status(self) -> Status | None:
        """Return the job's status now; None before the takeover. Callable from any thread."""
        log, trouble, heartbeat = self._log, self._trouble, self._heartbeat
        if log is None:
            return None
        head = log.head
        fails = trouble if trouble is not None and trouble.is_of(head) else None
        status = with_trouble(at_moment(self._at(head), self._clock.now()), fails)
        return with_driver(status, heartbeat.note() if heartbeat else None)

    def state(self) -> str:
        """Return Beam's name of the state of a running job; callable from any thread."""
        return self._mode.name if self._mode in _ENDING else Mode.RUNNING.name

    @property
    def ends(self) -> bool:
        """Whether the job makes no further commit: it has failed, was cancelled, or has made its last commit."""
        machine = self._machine
        return self._end is not None or (machine is not None and machine.phase not in (Phase.NEW, Phase.RUNNING))

    def metrics(self) -> list[bytes]:
        """Return the serialized MonitoringInfos of all micro-batches that this driver committed."""
        return self._counters.committed_metrics()

    def attempted(self) -> list[bytes]:
        """Return the same for all micro-batches that ran, committed or not."""
        return self._counters.attempted()

    def ask(self, what: RequestKind, savepoint: str = "") -> PendingRequest:
        """Send a request to the job; callable from any thread.

        Raises:
            RequestRefusedError: the job cannot do it.
        """
        return self._requests.ask(what, savepoint)

    def draining(self) -> PendingRequest | None:
        """See `RequestQueue.draining`; callable from any thread."""
        return self._requests.draining()

    def interrupt(self) -> None:
        """End the job; callable from any thread, repeatedly."""
        self._inbox.put(CancelRequested(self._clock.now()))

    def run(self) -> StreamingOutcome:
        """Drive the job to its end.

        Raises:
            UserCodeError, JobFailedError, …: the job failed.
            JobCancelledError: the job was cancelled.
            StoreError: the job's folder cannot be opened.
        """
        why = ""
        try:
            end = self._run()
        except BaseException as e:
            why = f"could not run the job: {e}"
            raise
        finally:
            try:
                self._requests.close(self._end, why)
            except StoreError as e:
                self.warn(f"could not answer the requests to the job: {e}")
        assert self._log is not None
        return StreamingOutcome(end.state, self._counters.micro_batches, self._log.head.micro_batch)

    def _run(self) -> End:
        slots = default_parallelism(self._spark)
        check_owner(self.store)
        blobs = open_blobs(self.store)
        driver_name = f"{socket.gethostname()}:{self._job}"
        script = self._plan.script
        began = self._clock.now() if script is None or script.real_clock else Timestamp(0)
        taken = restore(self._plan, blobs, self._how, shards=self._settings.shards, now=began, driver=driver_name)
        log = self._log = taken.log
        self._listener.opened()
        self._clock.start_at(log.head.time)
        # Another driver may have published what the opening contains.
        self._opened = log.head.micro_batch
        for text in taken.warnings(self._how):
            self.warn(text)
        for move in taken.moved:
            text = "moved the state of stage '%s' from level %d to %d: the number of exchanges before it changed"
            _LOG.info(text, move.stage, move.source, move.target)
        if taken.rescaled_from is not None:
            _LOG.info("rescaled the state from %d to %d shards", taken.rescaled_from, taken.shards)
        if log.head.mode in ENDED:
            self.warn(
                f"{job_label(self._plan.name, blobs)} is already {log.head.mode}: nothing is left to do except perhaps "
                "its last calls"
            )
        physical = placed(self._plan, taken.numbers, taken.shards, slots)
        settings = replace(self._settings, shards=taken.shards, event_times=True)
        job = StreamingJob(
            self._job, physical, settings, self._location, self.store, Versions.here(), self._worker_setup, log.head.job
        )
        give(job)
        # A driver that only finishes an ended job has no epoch of its own, and writes nothing to the folder.
        noted = blobs if self.kept and log.head.mode not in ENDED else None
        shown_plan = plan_record(self._plan, output_names(self._plan))
        history = self._history = HistoryWriter(
            noted, log, self._clock, plan=shown_plan, layout=physical.layout, details=self._details, status=self._at
        )
        commits = LogCommits(
            log, physical.layout, physical.side_readers, self.warn, figures=lambda: history.measured(self._measured())
        )
        around = self._spark, job, self._inbox, self._clock, slots, self._counters.ran, self._warnings.put
        cluster = self._cluster = SparkCluster(*around, self._is_over, self._samples)
        self._measured = partial(self._figures, cluster, physical)
        machine = self._machine = JobMachine(physical.layout, self._driven)
        script = self._plan.script
        reader = None if script is None else ScriptReader(script, events_of, self._inbox, self._clock)
        driver = JobDriver(machine, commits, cluster, self, self._inbox, self._clock, self, script=reader)
        of = noted, log.head, driver_name, self._clock, self._activity, HeardTasks(self._location), self.warn
        heartbeat = self._heartbeat = Heartbeat(*of, samples=self._samples.allowed)
        self._inbox.put(started(log.head, physical.layout, self._clock.now()))
        self._blobs = blobs if self.kept else None
        self._requests.opened(self._blobs, log.head)
        try:
            with RequestWatch(self._requests, self._job):
                end = self._end = drive(driver, self._inbox, self._clock, lambda: heartbeat.beat() and history.beat())
            if end is not None and end.state in _PUBLISHED:
                cluster.sweep(log.head.micro_batch)
            self._pass_warnings()
        finally:
            self._heartbeat = None
            history.close("" if self._end is None else f"{self._end.state.value} {self._end.why}".strip())
            if reader is not None:
                reader.close()
            cluster.close(hasty=log.fenced() is not None)
        assert end is not None
        match end.state:
            case EndState.FAILED:
                if (fenced := log.fenced()) is not None:
                    raise fenced
                # An error of a micro-batch that was to be retried is not the reason.
                if cluster.failure is not None and str(cluster.failure) in end.why:
                    if isinstance(cluster.failure, WorkerLostError) and machine.deaths:
                        raise cluster.failure.after(machine.deaths)
                    if isinstance(cluster.failure, ServerLostError):
                        raise ServerLostError(cluster.failure.message, self._how_to_continue())
                    raise cluster.failure
                raise JobFailedError(f"the job has failed: {end.why}")
            case EndState.CANCELLED:
                # Another driver may run the job by now, and this one has perhaps not noticed.
                if (fenced := log.overtaken()) is not None:
                    raise fenced
                raise JobCancelledError(f"job '{self._plan.name}' was cancelled")
        return end

    def _how_to_continue(self) -> str:
        """Return what to do when the server that a job has lost runs again."""
        if self.kept:
            how = resume_command(shown(self.store), self._how.job_graph is not None)
            return f"start the server, and resume the job: {how}"
        return "start the server, and run the job again from the beginning: without --checkpoint_dir it keeps no state"

    def _is_over(self) -> bool:
        """Return whether this job is usually not resumed, so that its copies on the hosts can be removed."""
        return not self.kept or (self._log is not None and self._log.head.mode in ENDED)

    def _figures(self, cluster: SparkCluster, physical: PhysicalPlan) -> dict[str, Any]:
        """Return what was measured of the proposed micro-batch: seconds of its parts, and the output of its stages.

        `plan`: until Spark ran the micro-batch; `spark`: the time after that, without transforms; `user`: transforms;
            `commit`: of the micro-batch before, as this one is not committed yet.
        """
        assert self._log is not None
        levels = {placed.name: placed.level for placed in physical.layout.stages}
        found = self._counters.figures(self._log.head.micro_batch + 1, levels, physical.ports)
        took, user = self._took / 1e6, found.get("user", 0.0)
        spark = max(0.0, took - cluster.planned - user)
        parts = {"seconds": took, "plan": cluster.planned, "spark": spark, "commit": self.commit_seconds}
        wall = {"committed": self._clock.now(), "scripted": self._plan.script is not None}
        return {**found, **wall, **{name: round(seconds, 4) for name, seconds in parts.items()}}

    def _left(self) -> str:
        """Return what a draining job still has to do; "" if it does not drain."""
        status = self.status() if self._mode is Mode.DRAINING else None
        return "" if status is None else undone(status)

    def _record(self, status: Status, reports: Sequence[BundleReport], left: str) -> dict[str, Any]:
        """Return a micro-batch's log line for programs; times are microseconds since 1970."""
        return {
            "pipeline": self._plan.name,
            "job": self._job,
            "micro_batch": status.micro_batch,
            "time": status.time,
            "seconds": {**status.seconds, "commit": round(self.commit_seconds, 4)},
            "elements": sum(report.elements_in for report in reports),
            "late": late_of(status),
            "rate": status.rate,
            "backlog": status.backlog,
            **total_state_metrics(status),
            "watermark": status.watermark,
            "behind": status.behind,
            "waits": next((cause.text for cause in status.causes if cause.decides), ""),
            "mode": status.mode,
            "left": left,
        }

    # `Sinks`.

    @override
    def publish(self, micro_batch: int, committables: Sequence[Committable]) -> None:
        assert self._cluster is not None
        self._cluster.publish(micro_batch, committables, again=micro_batch <= self._opened)

    def _pass_warnings(self) -> None:
        """Log the warnings of publishing: listeners are called on the driver's thread, but publishing has its own."""
        while not self._warnings.empty():
            for text in self._warnings.get():
                self.warn(text)

    # `DriverObserver`.

    @override
    def handled(self, event: Event, commands: Sequence[Command]) -> None:
        assert self._machine is not None
        assert self._log is not None
        self._pass_warnings()
        self._activity.handled(event, commands, self._clock.now())
        # Before the requests are answered: the requester may then look at the job's state.
        if self._machine.mode is not self._mode:
            self._mode = self._machine.mode
            if self._mode in _ENDING:
                self._listener.turned(self._mode.name)
        self._requests.handled(event, commands, self._log.head)
        if self._history is not None:
            self._history.handled(event)
        for command in commands:
            if isinstance(command, Propose):
                self._ran = bool(command.reports)
        if isinstance(event, MicroBatchReported):
            self._took = event.took
        if isinstance(event, MicroBatchFailed):
            self._pass_lines()
        if isinstance(event, MicroBatchFailed) and event.again and self._machine.phase is Phase.RUNNING:
            self._note_trouble(event)
        if not isinstance(event, CommitDecided) or self._machine.head is None:
            return
        self.commit_seconds = time.monotonic() - self._proposed
        reports, line = self._counters.committed(event.micro_batch, self._machine.head.times, self._took, ran=self._ran)
        if self._history is not None:
            self._history.ran(event.micro_batch, reports)
        if reports:
            left = self._left()
            line = f"{line}; draining: {left}" if left else line
            if _LOG.isEnabledFor(logging.INFO) and (status := self.status()) is not None:
                for_people = f"{self._plan.name}: {line}, {in_words(status)}"
                _LOG.info("%s", for_people if watched() else json.dumps(self._record(status, reports, left)))
            self._listener.streaming(line)
        for report in reports:
            self._listener.reported(report)

    def _pass_lines(self) -> None:
        """Pass on what attempts that failed have logged."""
        for each in self._left_lines.new():
            self._listener.logged(*each)

    def _note_trouble(self, event: MicroBatchFailed) -> None:
        """Record why a micro-batch is retried, for `arcbeam status`."""
        assert self._machine is not None
        assert self._log is not None
        failure = self._cluster.failure if self._cluster is not None else None
        lost = failure if isinstance(failure, WorkerLostError) else WorkerLostError("")
        if event.died:
            tries = self._machine.deaths, self._driven.deaths.times + 1
            why = deadly_try(*tries, lost.step, lost.how) if lost is failure else failed_try(*tries, event.why)
        elif failed := self._machine.failures:
            why = failed_try(failed, self._driven.retry.times + 1, event.why)
        else:
            return
        known = self._trouble
        since = known.time if known and known.is_of(self._log.head) else self._clock.now()
        self._trouble = TroubleNote(self._log.head.epoch, event.micro_batch, lost.step, why, since)
        if self._blobs is not None:
            try:
                record_trouble(self._blobs, self._trouble)
            except StoreError as e:
                what = f"why micro-batch {event.micro_batch} fails"
                _LOG.warning("%s: could not record for arcbeam status %s: %s", self._plan.name, what, e)

    @override
    def begins(self, command: Command) -> None:
        if isinstance(command, Propose):
            self._proposed = time.monotonic()

    @override
    def warn(self, text: str) -> None:
        _LOG.warning("%s: %s", self._plan.name, text)
        self._listener.warned(text)
        if self._history is not None:
            self._history.warned(text)
        if text.startswith(ATTEMPT):
            self._pass_lines()

    @override
    def swept(self, swept: Swept | StoreError) -> None:
        if isinstance(swept, StoreError):
            _LOG.warning("%s: could not remove all unneeded files: %s", self._plan.name, swept)


_PUBLISHED = (EndState.DONE, EndState.DRAINED, EndState.STOPPED)
"""Ends of a job whose last micro-batch is published."""
_ENDING = (Mode.DRAINING, Mode.CANCELLING)
"""Modes that are reported as states: the job is about to end."""
