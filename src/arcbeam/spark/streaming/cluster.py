"""Runs the tasks of a job on Spark: each micro-batch is one Spark job, and its levels run one after the other.

Owns what a micro-batch's failure means to the job, and the last calls in workers. Must not know when a micro-batch
runs.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

from pyspark.sql import SparkSession
from typing_extensions import override

from arcbeam.engine.coordinator import (
    Event,
    Finalized,
    MicroBatchFailed,
    MicroBatchReported,
    Published,
    PublishFailed,
    ShutDown,
    TornDown,
)
from arcbeam.engine.protocol.markers import InconsistentCutError
from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.errors import (
    ArcbeamError,
    DriverLostError,
    JobCancelledError,
    JobFailedError,
    PublishRefusedError,
    SdkWorkerStartError,
    ServerLostError,
    WorkerLostError,
)
from arcbeam.model.commits import Committable
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.sizes import threshold
from arcbeam.spark.session import driver, remote
from arcbeam.spark.session.sessions import replaced
from arcbeam.spark.streaming.dataframes import MicroBatchFrames
from arcbeam.spark.streaming.driverpublishing import CLOSE_SECONDS, DriverPublishing
from arcbeam.spark.streaming.leveldata import LevelReport, error_stage
from arcbeam.spark.streaming.rows import reports_in
from arcbeam.spark.streaming.stageopening import OpenGraceful
from arcbeam.spark.streaming.workerjob import StreamingJob
from arcbeam.spark.tasks import lostattempts
from arcbeam.spark.tasks.collecting import collected, described
from arcbeam.spark.tasks.ending.publishing import SparkPublishing, Sweep
from arcbeam.spark.tasks.ending.shutdown import Graceful, ShuttingDown
from arcbeam.spark.tasks.ending.teardown import tear_down_workers
from arcbeam.spark.tasks.sdkworkers.starts import StartFailures
from arcbeam.store.blobs.errors import AwayError, LostFileError, NewerFormatError, StoreError
from arcbeam.streaming.assignment import SampleOrder, TaskAssignment
from arcbeam.streaming.driver.samplerequests import SampleRequests
from arcbeam.streaming.interfaces import Clock, Cluster, Inbox
from arcbeam.streaming.reportcodec import ReportReader
from arcbeam.streaming.task.finalizing import CONFIRMED_KEPT, Confirmed, LastWords

_LOG = logging.getLogger("arcbeam.streaming")

_CLOSING_SECONDS, _HASTY_CLOSING_SECONDS = 30.0, 1.0
_SHARE_OF_CALLS = 0.9
"""The share of the time for the last calls that they may use; the rest is for their results."""

_SWEEP_EVERY = threshold(10)
"""Publish calls between two sweeps of staged files."""

_RETRIED = (
    WorkerLostError,
    SdkWorkerStartError,
    ServerLostError,
    JobCancelledError,
    InconsistentCutError,
    StoreError,
)
"""Failures after which a retry of the micro-batch may succeed."""
_PERMANENT = (LostFileError, NewerFormatError)
_NOTICE_SECONDS = 0.5
"""Seconds in which a signal arrives here, too, if a supervisor has ended all of the job's processes with the driver."""


def may_go_better(error: BaseException) -> bool:
    """Return whether a retry may succeed after this failure of a micro-batch."""
    again = isinstance(error, _RETRIED) and not isinstance(error, _PERMANENT)
    return again or isinstance(error, AwayError) or type(error) is JobFailedError


class SparkCluster(Cluster):
    """See `arcbeam.streaming.interfaces.Cluster`.

    Args:
        spark: the session to run in.
        job: the job's data for its tasks, already stored where they find it.
        inbox: receives the results.
        clock: the driver's clock.
        slots: how many tasks Spark runs concurrently.
        on_reports: called with the bundle reports of each micro-batch, which is not committed yet.
        on_warnings: called with the warnings of publishing, sweeping and repeated attempts of tasks.
        forgotten: called when the run ends; returns whether to remove the copies of the job's state on the hosts.
        samples: the requests for samples that runs of micro-batches carry out.

    Attributes:
        failure: the last error of a micro-batch; None if there was none.
        planned: seconds from the start of the last micro-batch's run until Spark ran it.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: StreamingJob,
        inbox: Inbox,
        clock: Clock,
        slots: int,
        on_reports: Callable[[int, Sequence[BundleReport]], None],
        on_warnings: Callable[[Sequence[str]], None],
        forgotten: Callable[[], bool] = lambda: False,
        samples: SampleRequests | None = None,
    ) -> None:
        self._spark, self._job, self._inbox, self._clock = spark, job, inbox, clock
        self._slots, self._on_reports, self._forgotten = slots, on_reports, forgotten
        self._on_warnings, self._samples = on_warnings, samples or SampleRequests(None)
        self._frames = MicroBatchFrames(spark, job)
        self._reader = ReportReader()
        self._worker = ThreadPoolExecutor(1, f"steps-{job.id}")
        self._publishing = SparkPublishing(
            spark,
            job.physical.plan,
            job.id,
            job.location,
            slots,
            quick=job.settings.quick_tasks,
            worker_setup=job.worker_setup,
        )
        self._here = DriverPublishing(job.physical.plan, on=job.settings.driver_publishing)
        # Runs concurrently with the next micro-batch.
        self._publisher = ThreadPoolExecutor(1, f"publish-{job.id}")
        self._publishings = itertools.count()
        self._tried = -1
        self._confirmed: deque[Confirmed] = deque(maxlen=CONFIRMED_KEPT)
        self._running: tuple[int, int, threading.Event] | None = None
        self._holders: set[str] = set()
        # By stage; None until a micro-batch has reported them.
        self._shutters: dict[str, Graceful] | None = None
        # Set when the driver stops waiting for `shutdown`.
        self._hastened = threading.Event()
        # Set when the driver stops waiting for teardown.
        self._closed = threading.Event()
        # If the session is lost, a new one is opened before anything else runs.
        self._session_lost, self._renewing = False, threading.Lock()
        self._starts = StartFailures()
        self.failure: ArcbeamError | None = None
        self.planned = 0.0

    @override
    def run(self, order: TaskAssignment) -> None:
        given_up = threading.Event()
        self._running = order.plan.micro_batch, order.plan.attempt, given_up
        self._worker.submit(self._run, order, tuple(self._confirmed), self._samples.wanted(), given_up)

    def _run(
        self,
        order: TaskAssignment,
        confirmed: tuple[Confirmed, ...],
        samples: tuple[SampleOrder, ...],
        given_up: threading.Event,
    ) -> None:
        plan, started = order.plan, time.monotonic()
        if given_up.is_set():
            return
        try:
            self._renew_session()
            frame = self._frames.of(order, confirmed, samples)
            self.planned = time.monotonic() - started
            stages = [placed.name for placed in self._job.physical.layout.stages if placed.level >= plan.first]
            rows = collected(
                self._spark,
                frame,
                self._job.id,
                self._job.location,
                stages,
                about=described(self._job.physical.plan.name, stages, plan.micro_batch),
                stage=error_stage(plan),
                given_up=given_up,
            )
            reports = [
                LevelReport.from_blob(blob, self._reader)
                for blob in reports_in((row["stage"], bytes(row["blob"])) for row in rows)
            ]
            bundles = [each for report in reports for each in report.bundles]
            self._holders |= {report.worker for report in bundles if report.needs_teardown}
            self._note_graceful(bundles)
            self._on_reports(plan.micro_batch, bundles)
            self._warn_of_attempts(plan, reports)
            self._samples.ran({report.stage for report in bundles if report.sampled})
            took = Duration(round((time.monotonic() - started) * 1e6))
            tasks = tuple(report.task for report in reports)
            self.failure = None
            self._starts.ended()
            self._inbox.put(MicroBatchReported(self._clock.now(), plan.micro_batch, plan.attempt, took, tasks))
        except BaseException as e:
            self._samples.ran(None)
            failed = self._as_failure(e, f"could not run micro-batch {plan.micro_batch}")
            lost = isinstance(failed, DriverLostError)
            self.failure = failed
            died = isinstance(failed, WorkerLostError) and failed.died
            again = may_go_better(failed if isinstance(failed, ServerLostError) else e)
            if isinstance(failed, SdkWorkerStartError):
                died = failed.ended
                again = died or self._starts.may_go_better(started)  # both by the monotonic clock
            self._inbox.put(
                MicroBatchFailed(self._clock.now(), plan.micro_batch, plan.attempt, str(failed), again, lost, died)
            )

    def _warn_of_attempts(self, plan: MicroBatchPlan, reports: Sequence[LevelReport]) -> None:
        """Warn of attempts that failed before others succeeded. Otherwise users would not see why it took longer."""
        again = [
            (lostattempts.TaskRun(plan.micro_batch, plan.attempt, report.task.level, report.task.task), report.failed)
            for report in reports
            if report.failed
        ]
        if again:
            self._on_warnings(lostattempts.warnings(self._job.location, again))

    def _as_failure(self, error: BaseException, what: str) -> ArcbeamError:
        """Return the error to report to the user and to the job."""
        failed: ArcbeamError | None = error if isinstance(error, ArcbeamError) else None
        if failed is None and isinstance(error, Exception):
            # Errors outside of Spark jobs: while they are planned.
            failed = driver.lost(self._spark, error) or remote.lost(self._spark, error)
        if failed is None:
            _LOG.error("%s", what, exc_info=error)
            failed = JobFailedError(f"{what}: {type(error).__name__}: {error}")
        if isinstance(failed, DriverLostError):
            time.sleep(_NOTICE_SECONDS)
        if isinstance(failed, ServerLostError):
            self._session_lost = True
        return failed

    def _renew_session(self) -> None:
        """Open a new session if a Connect server has lost the old one: all state is in the job's folder."""
        with self._renewing:
            if self._session_lost:
                self._spark = replaced(self._spark)
                self._frames = MicroBatchFrames(self._spark, self._job)
                self._publishing.use(self._spark)
                self._session_lost = False

    @override
    def abandon(self, micro_batch: int, attempt: int) -> None:
        self._give_up((micro_batch, attempt))

    def _give_up(self, of: tuple[int, int] | None = None) -> None:
        # SUBTLE: the thread that runs it interrupts repeatedly, because perhaps its Spark job has not started yet.
        if self._running is not None and of in (None, self._running[:2]):
            self._running[2].set()

    @override
    def finalize(self, micro_batch: int, tokens: Sequence[bytes]) -> None:
        self._confirmed.append(Confirmed(micro_batch, tuple(tokens)))
        self._inbox.put(Finalized(self._clock.now(), micro_batch))

    def publish(self, micro_batch: int, committables: Sequence[Committable], *, again: bool) -> None:
        """See `arcbeam.streaming.interfaces.Sinks`.

        Args:
            micro_batch: number of a manifest.
            committables: the manifest's committables.
            again: whether another driver may have published them.
        """
        self._publisher.submit(self._publish, micro_batch, committables, again)

    def _publish(self, micro_batch: int, committables: Sequence[Committable], again: bool) -> None:
        event: Event
        again = again or micro_batch == self._tried
        self._tried = micro_batch
        try:
            self._renew_session()
            rest = self._here.publish([(each.stage, each.payload) for each in committables], again=again)
            warnings = self._publishing.publish(rest.committables, again=rest.again)
            self._on_warnings([*rest.warnings, *warnings])
            event = Published(self._clock.now(), micro_batch)
        except BaseException as e:
            failed = self._as_failure(e, f"could not publish micro-batch {micro_batch}")
            # Only another driver can publish: in another session, or after the user has done something.
            ends = isinstance(failed, DriverLostError | PublishRefusedError)
            event = PublishFailed(self._clock.now(), micro_batch, str(failed), ends)
        self._inbox.put(event)
        # SUBTLE: not concurrently with publishing. A driver that has taken the job over publishes, with the micro-batch
        # of its opening, what the driver before it had staged in an earlier one. Not each time, because a sweep lists
        # files.
        if isinstance(event, Published) and not next(self._publishings) % _SWEEP_EVERY:
            self._sweep(micro_batch, last=False)

    def sweep(self, micro_batch: int) -> None:
        """Remove what was staged up to a micro-batch, the last one, which is published; return when that is done."""
        self._sweep(micro_batch, last=True)

    def _sweep(self, micro_batch: int, *, last: bool) -> None:
        what = Sweep(self._job.name, micro_batch)
        try:
            # The last one also closes what workers have open.
            swept, warnings = (set[str](), list[str]()) if last else self._here.sweep(what)
            self._on_warnings([*warnings, *self._publishing.sweep(what, last=last, without=swept)])
        except Exception as e:
            self._on_warnings([f"could not remove the staged files of uncommitted attempts: {e}"])

    @override
    def shut_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        if self._shutters is not None and not self._shutters:
            self._inbox.put(ShutDown(self._clock.now()))
        else:
            self._worker.submit(self._shut_down, stages, deadline)

    def _shut_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        # Ends before the deadline, so that this side reports the DoFns that have not answered.
        seconds = max(0.0, (deadline - self._clock.now()) / 1e6 * _SHARE_OF_CALLS)
        name = self._job.physical.plan.name
        calls = ShuttingDown(self._spark, self._job.id, self._slots, seconds, self._hastened, name=name)
        if (known := self._shutters) is None:
            errors = calls.call_alone([self._graceful(stage) for stage in stages])
        else:
            errors = calls.call([known[stage] for stage in stages if stage in known])
        self._inbox.put(ShutDown(self._clock.now(), tuple(errors)))

    def _graceful(self, stage: str) -> Graceful:
        return Graceful(self._job.physical.stages[stage].id, (), OpenGraceful(self._job.location, stage))

    def _note_graceful(self, bundles: Iterable[BundleReport]) -> None:
        """Note which workers hold DoFns with `shutdown`."""
        known = {} if self._shutters is None else self._shutters
        for report in bundles:
            if report.graceful:
                of = known.get(report.stage) or self._graceful(report.stage)
                known[report.stage] = replace(of, steps=report.graceful, workers=of.workers | {report.worker})
        self._shutters = known

    @override
    def tear_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        # Teardown waits for the worker that may still run `shutdown`.
        self._hastened.set()
        seconds = max(1.0, _SHARE_OF_CALLS * (deadline - self._clock.now()) / 1e6)
        self._worker.submit(self._tear_down, stages, seconds)

    def _tear_down(self, stages: Sequence[str], seconds: float) -> None:
        errors: tuple[str, ...] = ()
        began = time.monotonic()
        try:
            # A sweep may still run in publishers that are to be torn down, too. If the job was cancelled, committed
            # files may still be in publication.
            wait([self._publisher.submit(int)], seconds / 2)
            seconds -= time.monotonic() - began
            last = LastWords(self._job.id, tuple(self._confirmed), self._job.name, self._forgotten())
            order = [self._job.physical.stages[stage].id for stage in stages]
            holders = self._holders | self._publishing.holders
            result = tear_down_workers(
                self._spark,
                self._job.id,
                holders,
                self._slots,
                last,
                order,
                seconds,
                self._closed.is_set,
                name=self._job.physical.plan.name,
            )
            errors = (*result.errors, *self._here.close())
        except Exception as e:
            # The session may have ended, and with it all workers.
            _LOG.debug("could not tear anything down", exc_info=True)
            errors = (f"{type(e).__name__}: {e}",)
        self._inbox.put(TornDown(self._clock.now(), errors))

    def close(self, *, hasty: bool = False) -> None:
        """Run nothing more. Cancel what runs, and wait a limited time until it has ended.

        Args:
            hasty: another driver runs the job. Then its user must not wait for this one's error.
        """
        self._give_up()
        self._hastened.set()
        self._closed.set()
        self._publishing.close()
        self._here.give_up()
        self._here.close(_HASTY_CLOSING_SECONDS if hasty else CLOSE_SECONDS)
        for worker in (self._worker, self._publisher):
            ended = threading.Thread(target=worker.shutdown, kwargs={"cancel_futures": True}, daemon=True)
            ended.start()
            ended.join(_HASTY_CLOSING_SECONDS if hasty else _CLOSING_SECONDS)
