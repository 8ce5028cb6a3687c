"""A task of a level of a micro-batch, in the Python worker.

Owns the data that such a task receives and reports, and the callbacks that wait for their attempt's commit.
`arcbeam.streaming.task.task` owns the work with shards, files and user code.
"""

from __future__ import annotations

import pickle
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark import TaskContext

from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.task.taskstage import TaskStage
from arcbeam.errors import ArcbeamError, UserCodeError
from arcbeam.fnapi.lost import Account, SdkWorkerLostError, SdkWorkerNotStartedError
from arcbeam.harness.bundle import usererrors
from arcbeam.harness.operations.taskcontext import Settings
from arcbeam.model import texts
from arcbeam.model.attempts import Attempt, here
from arcbeam.model.files import SideFile
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import Timestamp
from arcbeam.secrets import without_credentials
from arcbeam.sizes import cache_size, memo, threshold
from arcbeam.spark.session.loopback import enable_quickack
from arcbeam.spark.session.versions import Versions
from arcbeam.spark.streaming.rows import SCHEMA, ExchangeRow, InputLostError, LevelRows, Received, TaskOutput, packing
from arcbeam.spark.streaming.sampling import Sampling
from arcbeam.spark.tasks import failure, jobproperties, lostattempts, workerlog
from arcbeam.spark.tasks.bundlethread import BundleThread
from arcbeam.spark.tasks.crashlog import recorder
from arcbeam.spark.tasks.openstages import open_stages, worker_name
from arcbeam.spark.tasks.packing import Packer
from arcbeam.spark.tasks.rowqueue import RowQueue, batches_of
from arcbeam.spark.tasks.sdkworkers import losses, starts
from arcbeam.spark.tasks.shipping import WorkerSetup
from arcbeam.store.blobs.backends import open_blobs
from arcbeam.store.blobs.claims import ProcessFolder
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.shards.cache import HostCache
from arcbeam.streaming.assignment import SampleOrder, TaskAssignment
from arcbeam.streaming.physicalplan import PhysicalPlan
from arcbeam.streaming.reportcodec import ReportReader, packed
from arcbeam.streaming.status.taskheartbeats import beating
from arcbeam.streaming.task.finalizing import Confirmed, callbacks, copies_folder
from arcbeam.streaming.task.levelcode import LevelCode
from arcbeam.streaming.task.outputs import TaskStore
from arcbeam.streaming.task.sidefiles import SideCopies, SideFileReader
from arcbeam.streaming.task.task import TaskAttempt
from arcbeam.streaming.task.taskbudget import TaskBudget


@dataclass(frozen=True, slots=True)
class StreamingJob:
    """The data of a job for all its tasks, the same in every micro-batch.

    Attributes:
        id: id of the job's run.
        physical: the job's stages.
        settings: the job's settings.
        location: the job's temporary location.
        store: URL of the job's folder, which has its state.
        versions: the driver's versions; a worker with other versions fails.
        worker_setup: called in a worker before it opens the job's first stage, and perhaps again.
        name: the job's name, the same for all drivers that resume it.
    """

    id: str
    physical: PhysicalPlan
    settings: Settings
    location: JobLocation
    store: str
    versions: Versions
    worker_setup: Callable[[], None] | None = None
    name: str = ""


_PLAN = "plan"
STORE = "checkpoint_dir"
"""Name of the secret with the URL of the job's folder, if the URL has credentials."""


def give(job: StreamingJob) -> None:
    """Store a job where its tasks find it: it is too large to be sent with each of them.

    SUBTLE: without its secrets, which must not be in a file. They are sent with the location, in each task's function.
    """
    stored = replace(job, location=JobLocation(without_credentials(job.location.url)))
    stored = replace(stored, store=without_credentials(job.store))
    job.location.put_bytes(_PLAN, pickle.dumps(stored, protocol=5))


_scratch = ProcessFolder("scratch")
_WRITERS = threshold(8)
"""Files that a task writes at the same time."""


class _WorkerJob:
    """The state of a job in this process, kept from task to task."""

    def __init__(self, job: StreamingJob) -> None:
        self.job = job
        self._sides: dict[int, tuple[tuple[SideFile, ...], SideFileReader]] = memo()
        self._copies: dict[int, SideCopies] = {}
        # The driver's opening exists before any micro-batch.
        cache = HostCache(copies_folder())
        cache.sweep()
        self.files = TaskStore(open_blobs(job.store, made=True), cache, _scratch.path(), _WRITERS)

    def sides(self, level: int, given: tuple[SideFile, ...]) -> SideFileReader:
        """Return the side inputs of a level; kept, with their decoded values, as long as the files stay the same."""
        files = tuple(file for file in given if file.channel in self.job.physical.sides_read[level])
        known = self._sides.get(level)
        if known is not None and known[0] == files:
            return known[1]
        copies, physical = self._copies.setdefault(level, SideCopies()), self.job.physical
        copies.keep({file.name for file in files})
        sides = SideFileReader(
            self.files.blobs, self.files.scratch, files, physical.side_parts, copies, physical.newest
        )
        self._sides[level] = files, sides
        return sides


_MOST_JOBS = cache_size(4)
_jobs: OrderedDict[str, _WorkerJob] = OrderedDict()
"""By the URL of the job's location."""


def _worker_job(location: JobLocation) -> _WorkerJob:
    found = _jobs.get(location.url)
    if found is None:
        job = pickle.loads(location.get_bytes(_PLAN))
        assert isinstance(job, StreamingJob)
        job = replace(job, location=location, store=location.secrets.get(STORE, job.store))
        found = _jobs[location.url] = _WorkerJob(job)
        while len(_jobs) > _MOST_JOBS:
            _jobs.popitem(last=False)
    _jobs.move_to_end(location.url)
    return found


@dataclass(frozen=True, slots=True)
class LevelReport:
    """A task's report to the driver.

    Attributes:
        task: the report to the job's machine.
        bundles: the reports of the stages' bundles.
        failed: why earlier attempts of the task failed; see `lostattempts.earlier`.
    """

    task: TaskReport
    bundles: tuple[BundleReport, ...]
    failed: tuple[str, ...] = ()

    def blob(self) -> bytes:
        """Return the report as bytes."""
        return pickle.dumps((packed(self.task), self.bundles, self.failed), protocol=5)

    @staticmethod
    def from_blob(blob: bytes, reader: ReportReader) -> LevelReport:
        """Return the report in bytes, which must come from this job."""
        task, bundles, failed = pickle.loads(blob)
        return LevelReport(reader.read(task), bundles, failed)


@dataclass(frozen=True, slots=True)
class LevelInput:
    """The data of a micro-batch for the tasks of a level.

    Attributes:
        order: the assignment, with the state of this level.
        confirmed: attempts that have been committed since the last micro-batch.
        samples: requests for samples of stages of the level.
    """

    order: TaskAssignment
    confirmed: tuple[Confirmed, ...] = ()
    samples: tuple[SampleOrder, ...] = ()


def property_of(level: int) -> str:
    """Return the name of the Spark job's property with the data of a micro-batch for the tasks of a level."""
    return f"arcbeam.level.{level}"


@dataclass(frozen=True, slots=True)
class LevelTask:
    """All tasks of a level; pickled into the plan of their Spark job.

    Attributes:
        location: the job's temporary location, which stores the job.
        level: the tasks' level.
        given: the data of the micro-batch; None: it is in a property of the Spark job.
    """

    location: JobLocation
    level: int
    given: LevelInput | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task: `mapInArrow` calls this."""
        given: LevelInput = self.given or jobproperties.of_spark_job(property_of(self.level))
        plan = given.order.plan
        context = TaskContext.get()
        number = context.attemptNumber() if context is not None else 0
        again = number > 0
        earlier = failure.recorded(self.location, error_stage(plan)) if again else None
        if earlier is not None:
            # A retry after a user's error: do not run the same bug again. Spark ends this process, too.
            open_stages.close_job(_worker_job(self.location).job.id)
            raise failure.one_line(earlier) from None
        worker_job = _worker_job(self.location)
        job = worker_job.job
        if job.settings.quick_tasks:
            enable_quickack()
        rows: RowQueue[ExchangeRow] = RowQueue()
        run = _Run(given, self.level, worker_job, batches, rows, number)
        if context is not None:
            about, careful = f"micro-batch {plan.micro_batch}, level {self.level}", again or plan.attempt > 0
            place = run.of.place(number)
            recorder.begin(self.location, context.taskAttemptId(), about, careful=careful, place=place)
        name = f"step-{plan.micro_batch}-{self.level}-{run.task}"
        thread = BundleThread(name, run.work, rows, run.open_stage, quick=job.settings.quick_tasks)
        with beating(self.location, self.level, run.task, plan.micro_batch, plan.attempt):
            thread.start()
            yield from batches_of(packing(rows.drain(), Packer(on=job.settings.packed_blobs)), SCHEMA)
            thread.join()
        if thread.error is not None:
            lostattempts.record_lines(self.location, f"{self.level}-{run.task}", worker_name())
            run.failed(thread.error, thread.step)
            lost = None
            if isinstance(thread.error, SdkWorkerLostError) and not isinstance(thread.error, SdkWorkerNotStartedError):
                # Before its process is stopped, which changes how it ends.
                lost = thread.error.account()
            open_stages.close_job(job.id)
            raise self._escaped(plan, thread.error, thread.step or run.stage, run, lost) from None

    def _escaped(
        self, plan: MicroBatchPlan, error: BaseException, step: str, run: _Run, lost: Account | None
    ) -> BaseException:
        """Return what to raise to Spark. A recorded error ends this run of the micro-batch, but not a later run."""
        if isinstance(error, InputLostError):
            return error
        described: ArcbeamError | None = None
        if isinstance(error, SdkWorkerNotStartedError):
            described = starts.described(self.location, error)
        elif lost is None:
            described = usererrors.described(error, step)
        elif lost.idle:
            # Perhaps many have ended together, with their pool: each attempt replaces one, so Spark may try again.
            error = SdkWorkerLostError(str(lost))
        else:
            died = losses.described(lost, step, run.stage)
            if run.number > 0:
                # Spark would have two more attempts, and the driver has more tries. One task alone is retried once.
                described = died
            else:
                losses.record_loss(self.location, error_stage(plan), died)
                error = SdkWorkerLostError(died.message)
        if isinstance(described, UserCodeError):
            context = f"in micro-batch {plan.micro_batch}", run.about(), usererrors.element_of(error)
            described = described.about(", ".join(filter(None, context)))
        if described is not None:
            return failure.record(self.location, error_stage(plan), described)
        escaped = failure.unrecorded(error, step)
        lostattempts.record_failure(self.location, run.of, run.number, escaped)
        return escaped


def error_stage(plan: MicroBatchPlan) -> str:
    """Return the name under which the errors of a run of a micro-batch are recorded."""
    return f"step-{plan.micro_batch}-{plan.attempt}"


class _Run:
    """The run of one task.

    Attributes:
        task: its number in the level.
        of: the task in the run of the micro-batch.
        number: the number of the attempt, from 0.
    """

    def __init__(
        self,
        of: LevelInput,
        level: int,
        job: _WorkerJob,
        batches: Iterator[pa.RecordBatch],
        rows: RowQueue[ExchangeRow],
        number: int,
    ) -> None:
        self._level, self.number = level, number
        self._of, self._worker_job, self._job, self._batches, self._rows = of, job, job.job, batches, rows
        context = TaskContext.get()
        self.task = context.partitionId() if context else 0
        self._spark_stage = context.stageId() if context else None
        self.of = lostattempts.TaskRun(of.order.plan.micro_batch, of.order.plan.attempt, level, self.task)
        self._code: LevelCode | None = None
        self._opening = ""
        self._bundles: Sequence[BundleReport] = ()
        self._sampling = Sampling(of.samples, job.job.id, level, self.task, job.files.blobs)

    @property
    def stage(self) -> str:
        """The name of the stage that ran last."""
        return "" if self._code is None else self._code.latest

    def about(self) -> str:
        """Return what user code was processing when it was called last."""
        return "" if self._code is None else self._code.about()

    def open_stage(self) -> TaskStage | None:
        """Return the stage that ran last."""
        return None if self._code is None else self._code.stage

    def failed(self, error: BaseException, step: str) -> None:
        """The task has failed in a transform. If samples are requested, leave the element with which it failed."""
        if self._of.samples:
            # SUBTLE: imported late, because the worker setup silences what the SDK logs at import.
            from arcbeam.harness.bundle.samples import failure_record

            self._sampling.failed(self.stage, failure_record(error, step or self.stage))

    def work(self) -> None:
        """Do all of the work; the rows are in the queue when this returns."""
        of, job = self._of, self._job
        plan, physical = of.order.plan, job.physical
        job.versions.check()
        workerlog.at(job.id, f"micro-batch {plan.micro_batch}, level {self._level}")
        for each in of.confirmed:
            callbacks.confirm(job.id, each)
        workerlog.task_lines.begin(lambda: self._opening or self.stage, physical.layout.tasks[self._level])
        name = f"{plan.micro_batch}.{plan.attempt}.{self._level}.{self.task}.{uuid.uuid4().hex[:8]}"
        running = here.running(Attempt(job.name, plan.micro_batch, (self._level, self.task), name))
        with running, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            sent = TaskOutput(physical, self._level, self._rows.put)
            files, sides = self._worker_job.files, self._worker_job.sides(self._level, of.order.side_files)
            script_time = plan.time if physical.plan.script is None else None
            code = self._code = LevelCode(
                physical, self._level, self.task, self._open, sent, sides, files.scratch, script_time
            )
            received = Received(self._batches, physical, self._level, sent, first=self._level == plan.first)
            attempt = TaskAttempt(
                physical.layout,
                code.specs(),
                of.order,
                self._level,
                self.task,
                name,
                files,
                LevelRows(received, sent, code.elements, self._end),
                code,
                code,
                TaskBudget(plan.budget, lambda: sent.bytes, code.written),
            )
            with self._showing(plan.time):
                report = attempt.run()
        named = {
            (f"{w.category.__module__}.{w.category.__qualname__}", texts.safe_text(str, w.message)) for w in caught
        }
        for bundles in self._bundles[:1]:
            bundles.warnings = sorted(named)
        callbacks.keep(job.id, plan.micro_batch, name.encode(), code.callbacks())
        failed = lostattempts.earlier(job.location, self.of, self.number)
        sent.report(LevelReport(report, tuple(self._bundles), failed).blob())
        self._sampling.ended()

    def _showing(self, now: Timestamp) -> AbstractContextManager[None]:
        """Show user code the time of the script, if there is one."""
        if self._job.physical.plan.script is None:
            return nullcontext()
        # SUBTLE: imported late, because the worker setup silences what the SDK logs at import.
        from arcbeam.harness.streaming.scripts import showing

        return showing(now)

    def _end(self) -> None:
        assert self._code is not None
        self._bundles = self._code.end()
        for report in self._bundles:
            report.worker, report.spark_stage = worker_name(), self._spark_stage
            report.lines = workerlog.task_lines.taken(report.stage)
        workerlog.task_lines.end()
        self._sampling.mark(self._bundles)

    def _open(self, stage: str) -> TaskStage:
        self._opening = stage
        try:
            if not self._sampling.wants(stage):
                return self._kept_open(stage, stage)
            if self._job.physical.stages[stage].remote is None:
                return self._sampling.opened(stage, partial(self._kept_open, stage, sampled=True))
            return self._sampling.begun(stage, self._kept_open(stage, stage))
        finally:
            self._opening = ""

    def _kept_open(self, stage: str, key: Hashable, *, sampled: bool = False) -> TaskStage:
        job = self._job
        return open_stages.get(
            job.id,
            key,
            partial(_opened, job, stage, sampled=sampled),
            job.location,
            job.worker_setup,
            quick=job.settings.quick_tasks,
            most=len(job.physical.layout.stages),
        )


@dataclass(frozen=True, slots=True)
class OpenGraceful:
    """Opens a stage in a worker only for its `shutdown`; returns None if no DoFn has one.

    Attributes:
        location: the job's temporary location.
        stage: the stage's uid.
    """

    location: JobLocation
    stage: str

    def __call__(self) -> TaskStage | None:
        """Open the stage."""
        job = _worker_job(self.location).job
        if job.worker_setup is not None:
            job.worker_setup()
        # SUBTLE: imported late, because the worker setup silences what the SDK logs at import.
        from arcbeam.harness.bundle.graceful import offers

        return _opened(job, self.stage) if offers(job.physical.stages[self.stage]) else None


def _opened(job: StreamingJob, stage: str, *, sampled: bool = False) -> TaskStage:
    """Open a stage in this worker: its user code runs in this process, or in an SDK worker."""
    # SUBTLE: imported late, because the worker setup silences what the SDK logs at import.
    opened = job.physical.stages[stage]
    if opened.remote is not None or opened.merges_in_worker:
        from arcbeam.fnapi.environments.workers import StageWorkers
        from arcbeam.fnapi.service.provision import Provision
        from arcbeam.fnapi.stage.remotestage import open_with_workers

        setup = job.worker_setup
        given = (setup.sdk_options, setup.sdk_folders(), setup.restart) if isinstance(setup, WorkerSetup) else ()
        workers = StageWorkers(job.id, Provision(job.id, *given))
        made = open_with_workers(opened, job.settings, workers, sampled=sampled)
        starts.started(job.location, workers.environments)
        return made
    from arcbeam.harness.streaming.stagecode import EmbeddedCode
    from arcbeam.harness.streaming.stageparts import StageParts
    from arcbeam.harness.streaming.streamingstage import StreamingStage

    return StreamingStage(EmbeddedCode(StageParts(opened, job.settings, sampled=sampled)))
