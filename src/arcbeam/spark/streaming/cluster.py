"""What runs the tasks of a job on Spark: each micro-batch is one Spark job, its levels one behind the other.

Owns what a micro-batch's failure means to the job, and the last calls in workers. Must not know when a micro-batch is
run.
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
from arcbeam.errors import (
    ArcbeamError,
    DriverLostError,
    JobCancelledError,
    JobFailedError,
    ServerLostError,
    WorkerLostError,
)
from arcbeam.model.commits import Committable
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.sizes import threshold
from arcbeam.spark.session import driver, remote
from arcbeam.spark.session.sessions import is_own, replaced
from arcbeam.spark.streaming.dataframes import MicroBatchFrames
from arcbeam.spark.streaming.leveltask import LevelReport, OpenGraceful, StreamingJob, error_stage
from arcbeam.spark.streaming.rows import reports_in
from arcbeam.spark.tasks.collecting import collected, described
from arcbeam.spark.tasks.ending.publishing import SparkPublishing, Sweep
from arcbeam.spark.tasks.ending.shutdown import Graceful, ShuttingDown
from arcbeam.spark.tasks.ending.teardown import tear_down_workers
from arcbeam.store.blobs.errors import AwayError, LostFileError, NewerFormatError, StoreError
from arcbeam.streaming.assignment import TaskAssignment
from arcbeam.streaming.interfaces import Clock, Inbox
from arcbeam.streaming.task.finalizing import TOLD, Confirmed, LastWords

_LOG = logging.getLogger("arcbeam.streaming")

_CLOSING_SECONDS = 30.0
_TIME_TO_TELL = 0.9
"""Of the time for the last calls."""

_SWEEP_EVERY = threshold(10)
"""Publishings between two sweeps of what is staged."""

_AGAIN = (WorkerLostError, ServerLostError, JobCancelledError, InconsistentCutError, StoreError)
"""What may go better when the micro-batch is run again."""
_FOR_GOOD = (LostFileError, NewerFormatError)
_TOLD_SECONDS = 0.5
"""What ends Spark's driver (a supervisor, all of a job's processes) may have told us, too: we hear of it by then."""


def may_go_better(error: BaseException) -> bool:
    """Whether a micro-batch that has failed so may go better when it is run again."""
    again = isinstance(error, _AGAIN) and not isinstance(error, _FOR_GOOD)
    return again or isinstance(error, AwayError) or type(error) is JobFailedError


class SparkCluster:
    """See `arcbeam.streaming.interfaces.Cluster`.

    Args:
        spark: where.
        job: what its tasks are given; it has been put where they find it.
        inbox: for answers.
        clock: the time.
        slots: how many tasks Spark runs at once.
        on_reports: told of what the bundles of each micro-batch come to, which is not committed yet.
        on_told: told what people should know of publishing and sweeping.
        forgotten: asked when the run ends: whether the copies of the job's state on the hosts go with it.

    Attributes:
        failure: the last error of a micro-batch; None if there was none.
        planned: how long it took until the last run of a micro-batch was Spark's, in seconds.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: StreamingJob,
        inbox: Inbox,
        clock: Clock,
        slots: int,
        on_reports: Callable[[int, Sequence[BundleReport]], None],
        on_told: Callable[[Sequence[str]], None],
        forgotten: Callable[[], bool] = lambda: False,
    ) -> None:
        self._spark, self._job, self._inbox, self._clock = spark, job, inbox, clock
        self._slots, self._on_reports, self._forgotten = slots, on_reports, forgotten
        self._on_told = on_told
        self._frames = MicroBatchFrames(spark, job)
        self._worker = ThreadPoolExecutor(1, f"steps-{job.id}")
        self._publishing = SparkPublishing(
            spark,
            job.placing.plan,
            job.id,
            job.location,
            slots,
            quick=job.settings.quick_tasks,
            worker_setup=job.worker_setup,
        )
        # Beside the next micro-batch.
        self._publisher = ThreadPoolExecutor(1, f"publish-{job.id}")
        self._publishings = itertools.count()
        self._tried = -1
        self._confirmed: deque[Confirmed] = deque(maxlen=TOLD)
        self._running: tuple[int, int, threading.Event] | None = None
        self._holders: set[str] = set()
        # By stage; None before a micro-batch has told of them.
        self._shutters: dict[str, Graceful] | None = None
        # Nobody waits for `shutdown` any more.
        self._hastened = threading.Event()
        # The driver does not wait for teardown any more.
        self._closed = threading.Event()
        # The session is lost: a new one is opened before anything else is run.
        self._session_lost, self._renewing = False, threading.Lock()
        self.failure: ArcbeamError | None = None
        self.planned = 0.0

    def run(self, order: TaskAssignment) -> None:
        """See `Cluster`."""
        given_up = threading.Event()
        self._running = order.plan.micro_batch, order.plan.attempt, given_up
        self._worker.submit(self._run, order, tuple(self._confirmed), given_up)

    def _run(self, order: TaskAssignment, confirmed: tuple[Confirmed, ...], given_up: threading.Event) -> None:
        plan, started = order.plan, time.monotonic()
        if given_up.is_set():
            return
        try:
            self._renew_session()
            frame = self._frames.of(order, confirmed)
            self.planned = time.monotonic() - started
            stages = [placed.name for placed in self._job.placing.layout.stages if placed.level >= plan.first]
            rows = collected(
                self._spark,
                frame,
                self._job.id,
                self._job.location,
                stages,
                about=described(self._job.placing.plan.name, stages, plan.micro_batch),
                stage=error_stage(plan),
                given_up=given_up,
            )
            reports = [
                LevelReport.from_blob(blob) for blob in reports_in((row["stage"], bytes(row["blob"])) for row in rows)
            ]
            bundles = [each for report in reports for each in report.bundles]
            self._holders |= {report.worker for report in bundles if report.needs_teardown}
            self._note_graceful(bundles)
            self._on_reports(plan.micro_batch, bundles)
            took = Duration(round((time.monotonic() - started) * 1e6))
            tasks = tuple(report.task for report in reports)
            self.failure = None
            self._inbox.put(MicroBatchReported(self._clock.now(), plan.micro_batch, plan.attempt, took, tasks))
        except BaseException as e:
            told = self._told(e, f"micro-batch {plan.micro_batch} could not be run")
            gone = isinstance(told, DriverLostError)
            self.failure = told
            died = isinstance(told, WorkerLostError) and told.died
            again = may_go_better(told if isinstance(told, ServerLostError) else e)
            self._inbox.put(
                MicroBatchFailed(self._clock.now(), plan.micro_batch, plan.attempt, str(told), again, gone, died)
            )

    def _told(self, error: BaseException, what: str) -> ArcbeamError:
        """What people are told of an error, and the job is."""
        told: ArcbeamError | None = error if isinstance(error, ArcbeamError) else None
        if told is None and isinstance(error, Exception):
            # Beside its Spark jobs: when they are made.
            told = driver.lost(self._spark, error, is_own(self._spark)) or remote.lost(self._spark, error)
        if told is None:
            _LOG.error("%s", what, exc_info=error)
            told = JobFailedError(f"{what}: {type(error).__name__}: {error}")
        if isinstance(told, DriverLostError):
            time.sleep(_TOLD_SECONDS)
        if isinstance(told, ServerLostError):
            self._session_lost = True
        return told

    def _renew_session(self) -> None:
        """Opens a new session on a Connect server that has lost the one there was: all state is in the job's folder."""
        with self._renewing:
            if self._session_lost:
                self._spark = replaced(self._spark)
                self._frames = MicroBatchFrames(self._spark, self._job)
                self._publishing.use(self._spark)
                self._session_lost = False

    def abandon(self, micro_batch: int, attempt: int) -> None:
        """See `Cluster`."""
        self._give_up((micro_batch, attempt))

    def _give_up(self, of: tuple[int, int] | None = None) -> None:
        # SUBTLE: whoever runs it interrupts again and again: its Spark job may not have started yet.
        if self._running is not None and of in (None, self._running[:2]):
            self._running[2].set()

    def finalize(self, micro_batch: int, tokens: Sequence[bytes]) -> None:
        """See `Cluster`."""
        self._confirmed.append(Confirmed(micro_batch, tuple(tokens)))
        self._inbox.put(Finalized(self._clock.now(), micro_batch))

    def publish(self, micro_batch: int, committables: Sequence[Committable], *, again: bool) -> None:
        """See `arcbeam.streaming.interfaces.Sinks`.

        Args:
            micro_batch: of a manifest.
            committables: in it.
            again: another driver may have published them.
        """
        self._publisher.submit(self._publish, micro_batch, committables, again)

    def _publish(self, micro_batch: int, committables: Sequence[Committable], again: bool) -> None:
        event: Event
        again = again or micro_batch == self._tried
        self._tried = micro_batch
        try:
            self._renew_session()
            told = self._publishing.publish([(each.stage, each.payload) for each in committables], again=again)
            self._on_told(told)
            event = Published(self._clock.now(), micro_batch)
        except BaseException as e:
            told_of = self._told(e, f"micro-batch {micro_batch} could not be published")
            gone = isinstance(told_of, DriverLostError)
            event = PublishFailed(self._clock.now(), micro_batch, str(told_of), gone)
        self._inbox.put(event)
        # SUBTLE: not beside publishing. A driver that has taken the job over publishes, with the micro-batch of its
        # opening, what the one before had staged in an earlier one. Not each time: to sweep is to list.
        if isinstance(event, Published) and not next(self._publishings) % _SWEEP_EVERY:
            self._sweep(micro_batch, last=False)

    def sweep(self, micro_batch: int) -> None:
        """Removes what was staged up to a micro-batch, the last one, which is published; waits for that."""
        self._sweep(micro_batch, last=True)

    def _sweep(self, micro_batch: int, *, last: bool) -> None:
        try:
            self._on_told(self._publishing.sweep(Sweep(self._job.name, micro_batch), last=last))
        except Exception as e:
            self._on_told([f"what is left over of attempts that were not committed could not be removed: {e}"])

    def shut_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        """See `Cluster`."""
        if self._shutters is not None and not self._shutters:
            self._inbox.put(ShutDown(self._clock.now()))
        else:
            self._worker.submit(self._shut_down, stages, deadline)

    def _shut_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        # Before the deadline: who has not answered is known here, not by those who wait.
        seconds = max(0.0, (deadline - self._clock.now()) / 1e6 * _TIME_TO_TELL)
        name = self._job.placing.plan.name
        calls = ShuttingDown(self._spark, self._job.id, self._slots, seconds, self._hastened, name=name)
        if (known := self._shutters) is None:
            errors = calls.call_alone([self._graceful(stage) for stage in stages])
        else:
            errors = calls.call([known[stage] for stage in stages if stage in known])
        self._inbox.put(ShutDown(self._clock.now(), tuple(errors)))

    def _graceful(self, stage: str) -> Graceful:
        return Graceful(self._job.placing.stages[stage].id, (), OpenGraceful(self._job.location, stage))

    def _note_graceful(self, bundles: Iterable[BundleReport]) -> None:
        """Notes who holds DoFns that offer `shutdown`."""
        known = {} if self._shutters is None else self._shutters
        for report in bundles:
            if report.graceful:
                of = known.get(report.stage) or self._graceful(report.stage)
                known[report.stage] = replace(of, steps=report.graceful, workers=of.workers | {report.worker})
        self._shutters = known

    def tear_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        """See `Cluster`."""
        # It waits for the worker that may still be shutting down.
        self._hastened.set()
        seconds = max(1.0, _TIME_TO_TELL * (deadline - self._clock.now()) / 1e6)
        self._worker.submit(self._tear_down, stages, seconds)

    def _tear_down(self, stages: Sequence[str], seconds: float) -> None:
        errors: tuple[str, ...] = ()
        began = time.monotonic()
        try:
            # What is published may still be swept, by publishers that are to be torn down, too; and what was to be
            # published when the job was broken off is on its way.
            wait([self._publisher.submit(int)], seconds / 2)
            seconds -= time.monotonic() - began
            last = LastWords(self._job.id, tuple(self._confirmed), self._job.name, self._forgotten())
            order = [self._job.placing.stages[stage].id for stage in stages]
            holders = self._holders | self._publishing.holders
            told = tear_down_workers(
                self._spark,
                self._job.id,
                holders,
                self._slots,
                last,
                order,
                seconds,
                self._closed.is_set,
                name=self._job.placing.plan.name,
            )
            errors = tuple(told.errors)
        except Exception as e:
            # The session may be gone, and with it all workers.
            _LOG.debug("nothing could be torn down", exc_info=True)
            errors = (f"{type(e).__name__}: {e}",)
        self._inbox.put(TornDown(self._clock.now(), errors))

    def close(self) -> None:
        """Nothing more will be run; what runs is given up, and has ended when this returns, or nearly so."""
        self._give_up()
        self._hastened.set()
        self._closed.set()
        self._publishing.close()
        for worker in (self._worker, self._publisher):
            ended = threading.Thread(target=worker.shutdown, kwargs={"cancel_futures": True}, daemon=True)
            ended.start()
            ended.join(_CLOSING_SECONDS)
