"""A task of a level of a micro-batch, in the Python worker.

Owns a task's attempt in Spark: its thread, its rows, and the callbacks that wait for its commit.
`arcbeam.streaming.task.task` owns the work with shards, files and user code.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from arcbeam.engine.task.taskstage import TaskStage
from arcbeam.fnapi.lost import SdkWorkerLostError, SdkWorkerNotStartedError
from arcbeam.model import texts
from arcbeam.model.attempts import Attempt, process_state
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import Timestamp
from arcbeam.spark.session.loopback import enable_quickack
from arcbeam.spark.streaming.attempterrors import FailedTask, raised_to_spark
from arcbeam.spark.streaming.leveldata import LevelInput, LevelReport, error_stage, property_of
from arcbeam.spark.streaming.rows import SCHEMA, ExchangeRow, LevelRows, Received, TaskOutput, packing
from arcbeam.spark.streaming.sampling import TaskSampling
from arcbeam.spark.streaming.stageopening import StageOpener
from arcbeam.spark.streaming.workerjob import WorkerJob, worker_job
from arcbeam.spark.tasks import failure, jobproperties, lostattempts, workerlog
from arcbeam.spark.tasks.bundlethread import BundleThread
from arcbeam.spark.tasks.crashlog import recorder
from arcbeam.spark.tasks.openstages import open_stages, worker_name
from arcbeam.spark.tasks.packing import Packer
from arcbeam.spark.tasks.rowqueue import RowQueue, batches_of
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.streaming.status.taskheartbeats import beating
from arcbeam.streaming.task.finalizing import callbacks
from arcbeam.streaming.task.levelcode import LevelCode
from arcbeam.streaming.task.task import TaskAttempt
from arcbeam.streaming.task.taskbudget import TaskBudget


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
            open_stages.close_job(worker_job(self.location).job.id)
            raise failure.one_line(earlier) from None
        known = worker_job(self.location)
        job = known.job
        if job.settings.quick_tasks:
            enable_quickack()
        rows: RowQueue[ExchangeRow] = RowQueue()
        run = _Run(given, self.level, known, batches, rows, number)
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
            failed = run.failed(thread.error, thread.step)
            lost = None
            if isinstance(thread.error, SdkWorkerLostError) and not isinstance(thread.error, SdkWorkerNotStartedError):
                # Before its process is stopped, which changes how it ends.
                lost = thread.error.account()
            open_stages.close_job(job.id)
            raise raised_to_spark(failed, self.location, thread.error, lost) from None


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
        job: WorkerJob,
        batches: Iterator[pa.RecordBatch],
        rows: RowQueue[ExchangeRow],
        number: int,
    ) -> None:
        self._level, self.number = level, number
        self._of, self._known, self._job, self._batches, self._rows = of, job, job.job, batches, rows
        context = TaskContext.get()
        self.task = context.partitionId() if context else 0
        self._spark_stage = context.stageId() if context else None
        self.of = lostattempts.TaskRun(of.order.plan.micro_batch, of.order.plan.attempt, level, self.task)
        self._code: LevelCode | None = None
        self._bundles: Sequence[BundleReport] = ()
        self._sampling = TaskSampling(of.samples, job.job.id, level, self.task, job.files.blobs)
        self._opener = StageOpener(job.job, self._sampling)

    @property
    def stage(self) -> str:
        """The name of the stage that ran last."""
        return "" if self._code is None else self._code.latest

    def open_stage(self) -> TaskStage | None:
        """Return the stage that ran last."""
        return None if self._code is None else self._code.stage

    def failed(self, error: BaseException, step: str) -> FailedTask:
        """Return the task, which has failed in a transform.

        If samples are requested, the element with which it failed is stored as one.
        """
        if self._of.samples:
            # SUBTLE: imported late, because the worker setup silences what the SDK logs at import.
            from arcbeam.harness.bundle.samples import failure_record

            self._sampling.failed(self.stage, failure_record(error, step or self.stage))
        about = "" if self._code is None else self._code.about()
        return FailedTask(self._of.order.plan, self.of, self.number, self.stage, step or self.stage, about)

    def work(self) -> None:
        """Do all of the work; the rows are in the queue when this returns."""
        of, job = self._of, self._job
        plan, physical = of.order.plan, job.physical
        job.versions.check()
        workerlog.at(job.id, f"micro-batch {plan.micro_batch}, level {self._level}")
        for each in of.confirmed:
            callbacks.confirm(job.id, each)
        workerlog.task_lines.begin(lambda: self._opener.opening or self.stage, physical.layout.tasks[self._level])
        name = f"{plan.micro_batch}.{plan.attempt}.{self._level}.{self.task}.{uuid.uuid4().hex[:8]}"
        running = process_state.running(Attempt(job.name, plan.micro_batch, (self._level, self.task), name))
        with running, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            sent = TaskOutput(physical, self._level, self._rows.put)
            files, sides = self._known.files, self._known.sides(self._level, of.order.side_files)
            script_time = plan.time if physical.plan.script is None else None
            code = self._code = LevelCode(
                physical, self._level, self.task, self._opener.open, sent, sides, files.scratch, script_time
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
