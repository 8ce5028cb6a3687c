"""An unbounded plan on Spark: its driver, from taking the job over to its end.

Owns what a driver has around it here: a clock, an inbox, a log, a cluster. Must not know protos.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from arcbeam.engine.progress import (
    CancelRequested,
    Command,
    CommitDecided,
    EndState,
    Event,
    JobMachine,
    Published,
    StepReported,
)
from arcbeam.errors import JobCancelledError, JobFailedError
from arcbeam.harness.bundle.metrics import merge_metrics
from arcbeam.harness.operations.taskcontext import Settings
from arcbeam.model.commits import Committable
from arcbeam.model.plan import Plan
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.progressline import Standing
from arcbeam.spark.session.sessions import default_parallelism
from arcbeam.spark.session.versions import Versions
from arcbeam.spark.steps.cluster import SparkCluster
from arcbeam.spark.steps.leveltask import StepJob, give
from arcbeam.spark.steps.scriptreader import ScriptReader
from arcbeam.steps.commits import LogCommits
from arcbeam.steps.driver import JobDriver, drive
from arcbeam.steps.placing import placed, shape_of
from arcbeam.steps.progress import numbered, progress_of, started
from arcbeam.store.blobs.backends import open_blobs
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import IncompatibleStateError, StoreError
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.log.chain import read_newest
from arcbeam.store.log.steplog import StepLog
from arcbeam.store.log.sweep import Swept
from arcbeam.store.manifest.values import Manifest

_LOG = logging.getLogger("arcbeam.steps")

_LONGEST_WAIT = 60.0
"""Seconds. Whoever waits longer looks at the clock again: it may have been set, or the machine slept."""


class WallClock:
    """See `arcbeam.steps.seams.Clock`."""

    def now(self) -> Timestamp:
        """See `Clock`."""
        return Timestamp(time.time_ns() // 1000)


class EventQueue:
    """See `arcbeam.steps.seams.WaitingInbox`."""

    def __init__(self, clock: WallClock) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._clock = clock

    def put(self, event: Event) -> None:
        """See `Inbox`."""
        self._events.put(event)

    def next(self, until: Timestamp | None) -> Event | None:
        """See `WaitingInbox`."""
        seconds = None if until is None else min(max(0.0, (until - self._clock.now()) / 1e6), _LONGEST_WAIT)
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job that has ended leaves.

    Attributes:
        state: how it ended.
        steps: that were committed by this driver.
    """

    state: EndState
    steps: int

    def summary(self) -> dict[str, object]:
        """Figures, for logs."""
        return {"state": self.state.value, "steps": self.steps}


class StreamRun:
    """One driver's time with an unbounded job.

    Args:
        plan: what to run.
        spark: where.
        settings: of the job; its number of shards is that of a new one.
        job: unique id of the run; tags the Spark jobs, so that they can be interrupted.
        location: the run's temporary location; the caller removes it.
        store: URL of the folder where the job's state is; an empty one begins a new job; None: a folder in `location`.
        on_report: told of what the bundles of each stage and task come to, once their step is committed.
        prelude: called in a worker before it opens its first stage of this job.
        shards: that the job must have; None: those that it has.
    """

    def __init__(
        self,
        plan: Plan,
        spark: SparkSession,
        settings: Settings,
        job: str,
        location: JobLocation,
        store: str | None,
        on_report: Callable[[BundleReport], None] = lambda report: None,
        prelude: Callable[[], None] | None = None,
        shards: int | None = None,
    ) -> None:
        self._plan, self._spark, self._settings, self._shards = plan, spark, settings, shards
        self._job, self._location = job, location
        # As a location has it: tasks run in other working directories.
        self._store = location.below("state") if store is None else JobLocation(store).url
        self._forgotten = store is None
        self._on_report, self._prelude = on_report, prelude
        self._clock = WallClock()
        self._inbox = EventQueue(self._clock)
        self._lock = threading.Lock()
        self._metrics: list[bytes] = []
        self._reported: dict[int, Sequence[BundleReport]] = {}
        self._steps = self._elements = self._tasks = 0
        self._took = Duration(0)

    def standing(self) -> Standing:
        """Where the run stands; callable from any thread."""
        return Standing((f"step {self._steps}",), self._elements, self._tasks)

    def metrics(self) -> list[bytes]:
        """Serialized MonitoringInfos of all committed steps of this driver."""
        with self._lock:
            return list(self._metrics)

    def interrupt(self) -> None:
        """Ends the job; callable from any thread, and again."""
        self._inbox.put(CancelRequested(self._clock.now()))

    def run(self) -> Outcome:
        """Drives the job to its end.

        Raises:
            UserCodeError, JobFailedError, …: it has failed.
            JobCancelledError: it was cancelled.
            StoreError: the job's folder cannot be opened.
        """
        slots = default_parallelism(self._spark)
        blobs = open_blobs(self._store)
        shards = self._shards or self._shards_of(blobs) or self._settings.shards
        who = f"{socket.gethostname()}:{self._job}"
        # Where a script's clock begins.
        began = Timestamp(0) if self._plan.script is not None else self._clock.now()
        log = StepLog.open(blobs, shape_of(self._plan, shards), began, driver=who)
        numbers = self._numbers(log.head)
        placing = placed(self._plan, numbers, shards, slots)
        settings = replace(self._settings, shards=shards)
        job = StepJob(self._job, placing, settings, self._location, self._store, Versions.here(), self._prelude)
        give(job)
        commits = LogCommits(log, placing.layout, placing.side_readers, self.warn)
        forgotten = log.head.job if self._forgotten else ""
        cluster = SparkCluster(self._spark, job, self._inbox, self._clock, slots, self._note, forgotten)
        script = None if self._plan.script is None else ScriptReader(self._plan.script, self._inbox, self._clock)
        around = commits, cluster, self, self._inbox, self._clock, self
        driver = JobDriver(JobMachine(placing.layout), *around, script=script)
        self._inbox.put(started(log.head, self._clock.now()))
        try:
            end = drive(driver, self._inbox, self._clock)
        finally:
            if script is not None:
                script.close()
            cluster.close()
        assert end is not None
        match end.state:
            case EndState.FAILED:
                raise cluster.failure or JobFailedError(f"the job has failed: {end.why}")
            case EndState.CANCELLED:
                raise JobCancelledError(f"{self._job} was cancelled")
        return Outcome(end.state, self._steps)

    @staticmethod
    def _shards_of(blobs: DurableBlobs) -> int | None:
        """How many shards the job has, whatever Spark offers today."""
        head = read_newest(blobs)
        return head.shape.shards if isinstance(head, Manifest) else None

    def _numbers(self, head: Manifest) -> dict[str, int]:
        """The numbers of the plan's stages in the job.

        Raises:
            IncompatibleStateError: there is a source that the job did not have when it began.
        """
        progress = progress_of(head)
        new = [stage.uid for stage in self._plan.stages if stage.source is None and stage.uid not in progress.numbers]
        if new and not progress.fresh:
            raise IncompatibleStateError(
                f"the job in '{self._store}' has begun without the source(s) {', '.join(map(repr, new))}",
                "sources begin when a job does: begin a new one in another folder",
            )
        return numbered(head, [stage.uid for stage in self._plan.stages])

    def _note(self, step: int, reports: Sequence[BundleReport]) -> None:
        with self._lock:
            self._reported[step] = reports

    # `Sinks`.

    def publish(self, step: int, committables: Sequence[Committable]) -> None:
        """See `arcbeam.steps.seams.Sinks`: there are none yet that ask for it."""
        self._inbox.put(Published(self._clock.now(), step))

    # `Watch`.

    def handled(self, event: Event, commands: Sequence[Command]) -> None:
        """See `arcbeam.steps.seams.Watch`."""
        if isinstance(event, StepReported):
            self._took = event.took
        if not isinstance(event, CommitDecided):
            return
        with self._lock:
            reports = self._reported.pop(event.step, ())
            self._reported = {step: of for step, of in self._reported.items() if step > event.step}
            self._metrics = merge_metrics([*self._metrics, *(info for report in reports for info in report.metrics)])
        self._steps += 1
        self._tasks += len(reports)
        elements = sum(report.elements_in for report in reports)
        self._elements += elements
        if reports:
            _LOG.info("%s: step %d: %.2f s, %d elements", self._plan.name, event.step, self._took / 1e6, elements)
        for report in reports:
            self._on_report(report)

    def begins(self, command: Command) -> None:
        """See `arcbeam.steps.seams.Watch`."""

    def warn(self, text: str) -> None:
        """See `arcbeam.steps.seams.Watch`."""
        _LOG.warning("%s: %s", self._plan.name, text)

    def swept(self, swept: Swept | StoreError) -> None:
        """See `arcbeam.steps.seams.Watch`."""
        if isinstance(swept, StoreError):
            _LOG.warning("%s: not all files that nobody needs could be removed: %s", self._plan.name, swept)
