"""A task of a stage, in the Python worker: reads Arrow batches, runs bundles, writes Arrow batches.

Owns what a task of a bounded job does with its stage, and how a user's error leaves the worker. Must not import
`translate`, `jobs` or `cli`: this module is sent to the executors.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext

from arcbeam.errors import UserCodeError
from arcbeam.harness.bundle import usererrors
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.attempts import Attempt, process_state
from arcbeam.model.files import SideFile
from arcbeam.model.plan import Stage
from arcbeam.model.rows import REPORT, BundleReport, Row
from arcbeam.spark.session.loopback import enable_quickack
from arcbeam.spark.session.versions import Versions
from arcbeam.spark.tasks import failure, lostattempts, workerlog
from arcbeam.spark.tasks.bundlethread import BundleThread
from arcbeam.spark.tasks.crashlog import recorder
from arcbeam.spark.tasks.openstages import open_stages, worker_name
from arcbeam.spark.tasks.packing import Packer, unpacked
from arcbeam.spark.tasks.rowqueue import RowQueue, batches_of
from arcbeam.store.jobtemp.location import JobLocation

ARROW_SCHEMA = pa.schema(
    [
        ("channel", pa.int32()),
        ("shard", pa.int32()),
        ("bucket", pa.int32()),
        ("blob", pa.binary()),
        ("unpacked", pa.int32()),
    ]
)
"""The schema of a row. `unpacked` is the size of its blob before packing (`arcbeam.spark.tasks.packing`)."""


@dataclass(frozen=True, slots=True)
class StageTask:
    """Everything a task needs; pickled into the plan of its Spark job.

    Attributes:
        job: unique id of the job.
        stage: the stage to run.
        settings: the job's settings.
        location: the job's temporary location.
        side_files: files of the stage's side inputs, by channel.
        versions: the driver's versions; a worker with other versions fails.
        worker_setup: called in the worker before it opens the job's first processor, and perhaps again.
        round: number of the stage's round, from 1, also of tasks for what an earlier task has left; 0: none.
    """

    job: str
    stage: Stage
    settings: TaskSettings
    location: JobLocation
    versions: Versions
    side_files: dict[int, tuple[SideFile, ...]] = field(default_factory=dict)
    worker_setup: Callable[[], None] | None = None
    round: int = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task: `mapInArrow` calls this."""
        if self.settings.quick_tasks:
            enable_quickack()
        rows = TaskRows(batches)
        first = next(rows, None)
        if first is None:
            yield from arrow(rows.passed)
            return
        self.check_earlier_attempts()
        run = BatchStageRun(self, rows.starting_with(first))
        yield from arrow(run.rows(), Packer(on=self.settings.packed_blobs))
        yield from arrow([*rows.passed, run.report.to_row()])
        run.finalize()

    def check_earlier_attempts(self) -> None:
        """Raise the user's error that an earlier attempt of a task has recorded: do not run the same bug again."""
        earlier = failure.recorded(self.location)
        if earlier is not None:
            # Spark ends this process, too.
            open_stages.close_job(self.job)
            raise failure.one_line(earlier) from None

    @property
    def key(self) -> Hashable:
        """The key of the open stage in a worker."""
        return self.stage.id, hash(self.settings), frozenset(self.side_files.items())

    def opened(self) -> Any:
        """Open the stage in this process."""
        # SUBTLE: imported late, because the worker setup silences what the SDK logs at import.
        from arcbeam.harness.batch.batchstage import BoundedStage
        from arcbeam.store.jobtemp.sidefiles import SideReader

        sides = SideReader(self.location, self.side_files, self.settings.shards) if self.stage.side_inputs else None
        return BoundedStage(self.stage, self.settings, sides)

    def escaped(self, error: BaseException, step: str) -> BaseException:
        """Return what to raise to Spark; record a user's error where the driver and the task's retries find it."""
        described = usererrors.described(error, step or self.stage.name)
        if isinstance(described, UserCodeError) and (element := usererrors.element_of(error)):
            described = described.about(element)
        if described is not None:
            return failure.record(self.location, self.stage.id, described)
        return failure.unrecorded(error, step or self.stage.name)


@dataclass(frozen=True, slots=True)
class OpenForShutdown:
    """Opens a stage in a worker only for its `shutdown`; returns None if no DoFn has one.

    Attributes:
        task: the stage's task.
    """

    task: StageTask

    def __call__(self) -> Any:
        """Open the stage."""
        if self.task.worker_setup is not None:
            self.task.worker_setup()
        # SUBTLE: imported late, because the worker setup silences what the SDK logs at import.
        from arcbeam.harness.bundle.graceful import offers

        return self.task.opened() if offers(self.task.stage) else None


class TaskRows:
    """The rows of a task's input. Reports of earlier stages are kept in `passed`."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self.passed: list[Row] = []
        self._rows = self._read(batches)

    def _read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
        for batch in batches:
            if batch.num_columns == 1:  # `exchange.impulse`
                yield from (Row(0, 0, 0, b"") for _ in range(batch.num_rows))
                continue
            channels, shards, buckets = (batch.column(i).to_pylist() for i in range(3))
            blobs, sizes = batch.column(3), batch.column(4).to_pylist()
            for i, channel in enumerate(channels):
                row = Row(channel, shards[i], buckets[i], unpacked(blobs[i].as_py(), sizes[i]))
                if channel == REPORT:
                    self.passed.append(row)
                    continue
                yield row

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def __next__(self) -> Row:
        return next(self._rows)

    def starting_with(self, row: Row) -> Iterator[Row]:
        """Yield `row`, then the remaining rows."""
        yield row
        yield from self._rows


class BatchStageRun:
    """One run of a stage in this process.

    Args:
        task: the stage's task.
        rows: its input; the thread of its bundles reads it.

    Attributes:
        report: its report, once `rows` has ended; without the fields that only the caller knows.
        stage: the open stage; None until its bundles begin.
    """

    def __init__(self, task: StageTask, rows: Iterable[Row]) -> None:
        self._task, self._input = task, rows
        self._outbox: RowQueue[Row] = RowQueue()
        context = TaskContext.get()
        self._partition = context.partitionId() if context else 0
        self._attempt = context.taskAttemptId() if context else 0
        self._retries = context.attemptNumber() if context else 0
        self._spark_stage = context.stageId() if context else None
        self.report = BundleReport(stage=task.stage.id, shard=self._partition)
        self.stage: Any = None

    def rows(self) -> Iterator[Row]:
        """Run the stage, and yield the rows that it writes.

        Raises:
            UserCodeError, …: what `failure.record` returns for the stage's error.
        """
        task = self._task
        context = TaskContext.get()
        if context is not None:
            recorder.begin(task.location, self._attempt, task.stage.name, careful=self._retries > 0)
        name = f"bundles-{task.stage.id}-{self._partition}"
        quick = task.settings.quick_tasks
        thread = BundleThread(name, self._run, self._outbox, lambda: self.stage, quick=quick)
        thread.start()
        yield from self._outbox.drain()
        thread.join()
        if thread.error is not None:
            lostattempts.record_lines(task.location, f"{task.stage.id}-{self._partition}", worker_name())
            # All stages of the job, because Spark ends the worker of a failed task.
            open_stages.close_job(task.job)
            raise task.escaped(thread.error, thread.step) from None

    def _run(self) -> None:
        task = self._task
        task.versions.check()
        workerlog.at("", "")  # the worker's previous task may be of the same stage
        workerlog.at(task.job, task.stage.id)
        workerlog.task_lines.begin(lambda: task.stage.id, task.settings.shards)
        token = f"{task.stage.id}.{self._partition}.{self._attempt}.{uuid.uuid4().hex[:8]}"
        order = (task.round, self._partition) if task.round else (self._partition,)
        with process_state.running(Attempt(task.job, 0, order, token)):
            self._run_stage(task)

    def _run_stage(self, task: StageTask) -> None:
        stage = self.stage = open_stages.get(
            task.job, task.key, task.opened, task.location, task.worker_setup, quick=task.settings.quick_tasks
        )
        workerlog.at(task.job, task.stage.id, stage.processor.bundles)
        store = task.location

        def side_writer(channel: int) -> Any:
            from arcbeam.store.jobtemp.sidefiles import IterableWriter

            return IterableWriter(store, channel, f"{self._partition}-{self._attempt}")

        self.report = stage.run(self._input, self._outbox, self._partition, side_writer)
        self.report.attempt, self.report.retries = self._attempt, self._retries
        self.report.worker, self.report.seconds = worker_name(), workerlog.ended()
        self.report.spark_stage = self._spark_stage
        self.report.lines = workerlog.task_lines.taken(task.stage.id)
        workerlog.task_lines.end()

    @property
    def finalizes(self) -> bool:
        """Whether a transform of the stage requests finalization."""
        return self._task.stage.finalizes

    def finalize(self) -> None:
        """Run finalization callbacks: Spark has received the task's output."""
        if self.stage is not None:
            self.stage.finalize()


class _Travelling(NamedTuple):
    """A row of `ARROW_SCHEMA`."""

    channel: int
    shard: int
    bucket: int
    blob: bytes
    unpacked: int


def arrow(rows: Iterable[Row], packer: Packer | None = None) -> Iterator[pa.RecordBatch]:
    """Return rows as Arrow batches of bounded size. Reports are not packed, because the driver reads them."""
    pack = (packer or Packer(on=False)).pack
    travelling = (
        _Travelling(*row, 0) if row.channel == REPORT else _Travelling(*row[:3], *pack(row.blob)) for row in rows
    )
    return batches_of(travelling, ARROW_SCHEMA)
