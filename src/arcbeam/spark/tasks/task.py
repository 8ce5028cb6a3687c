"""A task of a stage, in the Python worker: Arrow batches in, bundles in the middle, Arrow batches out.

Owns the threads of a task, the bounded queue between them, the cache of processors in the worker, and how a user's
error leaves the worker. Imports neither `translate`, `jobs` nor `cli`; it is what travels to the executors.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import socket
import sys
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from arcbeam.harness.operations.taskcontext import Settings
from arcbeam.model.files import SideFile
from arcbeam.model.plan import Stage
from arcbeam.model.rows import REPORT, BundleReport, Row
from arcbeam.spark.session.loopback import enable_quickack
from arcbeam.spark.session.versions import Versions
from arcbeam.spark.tasks import failure, workerlog
from arcbeam.store.jobtemp.location import JobLocation

_LOG = logging.getLogger("arcbeam.task")

ARROW_SCHEMA = pa.schema(
    [("channel", pa.int32()), ("shard", pa.int32()), ("bucket", pa.int32()), ("blob", pa.binary())]
)

HOLDERS = "holders/"
"""Names in a job's location that say: there are workers with DoFns whose teardown does something."""

_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 8192
_HANDED_OVER_BYTES = 1 << 20
_QUEUED_BYTES = 32 << 20
"""What a running bundle may be ahead of the thread that feeds Spark."""
_CACHED_PROCESSORS = 16
_GC_THRESHOLDS = 20_000, 20, 20
_FEW_MODULES = 20
"""So many modules more are not worth another look at all objects."""


@dataclass(frozen=True, slots=True)
class StageTask:
    """Everything a task needs; pickled into the plan of its Spark job.

    Attributes:
        job: unique id of the job.
        stage: what to run.
        settings: of the job.
        location: the job's temporary location.
        side_files: files of the stage's side inputs, by channel.
        versions: what the driver runs; a worker that runs something else refuses.
        prelude: called in the worker before the job's first processor is opened there, and perhaps again.
    """

    job: str
    stage: Stage
    settings: Settings
    location: JobLocation
    versions: Versions
    side_files: dict[int, tuple[SideFile, ...]] = field(default_factory=dict)
    prelude: Callable[[], None] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What `mapInArrow` runs."""
        if self.settings.quick_tasks:
            enable_quickack()
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        attempt = context.taskAttemptId() if context else 0
        rows = _Rows(batches)
        first = next(rows, None)
        if first is None:
            yield from _arrow(iter(rows.passed))
            return
        earlier = failure.recorded(self.location)
        if earlier is not None:
            # A retry after a user's error: the same bug is not run again.
            raise failure.one_line(earlier) from None
        outbox = _Outbox()
        runner = _BundleThread(self, rows.starting_with(first), outbox, partition, attempt)
        runner.start()
        yield from _arrow(outbox.drain(runner))
        runner.join()
        if runner.error is not None:
            raise self._escaped(runner.error, runner.step) from None
        yield from _arrow(iter([*rows.passed, runner.report.to_row()]))
        runner.finalize()

    def _escaped(self, error: BaseException, step: str) -> BaseException:
        """What to raise to Spark; a user's error is recorded where the driver and the task's retries find it."""
        described = failure.described(error, step or self.stage.name)
        return error if described is None else failure.record(self.location, self.stage.id, described)


class _Rows:
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
            blobs = batch.column(3)
            for i, channel in enumerate(channels):
                row = Row(channel, shards[i], buckets[i], blobs[i].as_py())
                if channel == REPORT:
                    self.passed.append(row)
                    continue
                yield row

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def __next__(self) -> Row:
        return next(self._rows)

    def starting_with(self, row: Row) -> Iterator[Row]:
        yield row
        yield from self._rows


class _Outbox:
    """A bounded hand-over from the bundle's thread to Spark's; `put` blocks while too much is waiting.

    Rows are handed over some at a time: each hand-over may switch threads, which takes longer than a small row.
    """

    def __init__(self) -> None:
        self._batches: queue.SimpleQueue[list[Row] | None] = queue.SimpleQueue()
        self._gathered: list[Row] = []
        self._gathered_bytes = 0
        self._lock = threading.Condition()
        self._bytes = 0
        self._abandoned = False

    def put(self, row: Row) -> None:
        """See `arcbeam.model.rows.Outbox`."""
        self._gathered.append(row)
        self._gathered_bytes += len(row.blob) + 64
        if self._gathered_bytes > _HANDED_OVER_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        rows, self._gathered = self._gathered, []
        size, self._gathered_bytes = self._gathered_bytes, 0
        with self._lock:
            while self._bytes > _QUEUED_BYTES and not self._abandoned:
                self._lock.wait()
            if self._abandoned:
                raise _Abandoned
            self._bytes += size
        self._batches.put(rows)

    def finish(self) -> None:
        """No more rows will come."""
        if self._gathered:
            self._hand_over()
        self._batches.put(None)

    def fail(self) -> None:
        """No more rows will come, and those that wait are nobody's."""
        self._batches.put(None)

    def drain(self, runner: _BundleThread) -> Iterator[Row]:
        """The rows, as they come, until `finish`."""
        try:
            while (rows := self._batches.get()) is not None:
                with self._lock:
                    self._bytes -= sum(len(row.blob) + 64 for row in rows)
                    self._lock.notify()
                yield from rows
        except GeneratorExit:
            # Spark wants no more (a killed task): let the bundle's thread end.
            with self._lock:
                self._abandoned = True
                self._lock.notify()
            raise


class _Abandoned(BaseException):
    """The task was killed while its bundle ran."""


class _BundleThread(threading.Thread):
    """Runs the bundles of one task. After `join`: either `report` is set or `error`."""

    def __init__(self, task: StageTask, rows: Iterator[Row], outbox: _Outbox, partition: int, attempt: int):
        super().__init__(name=f"bundles-{task.stage.id}-{partition}", daemon=True)
        self._task, self._input, self._outbox = task, rows, outbox
        self._partition, self._attempt = partition, attempt
        self.error: BaseException | None = None
        self.step = ""
        self.report = BundleReport(stage=task.stage.id, shard=partition)
        self._stage: Any = None

    def run(self) -> None:
        thresholds = gc.get_threshold()
        # Buffers of many small lists and tuples, none of them in a cycle, are what the collector would look at most.
        if self._task.settings.quick_tasks:
            gc.set_threshold(*_GC_THRESHOLDS)
        try:
            self._run()
            self._outbox.finish()
        except BaseException as e:
            self.error = e
            if self._stage is not None:
                self.step = _running_step(self._stage.processor)
                try:
                    self._stage.processor.abandon_task()
                except Exception:
                    _LOG.debug("the failed bundle could not be ended", exc_info=True)
            _stages.discard(self._task)
            self._outbox.fail()
        finally:
            gc.set_threshold(*thresholds)

    def _run(self) -> None:
        task = self._task
        task.versions.check()
        workerlog.at(task.job, task.stage.id)
        stage = self._stage = _stages.get(task)
        workerlog.at(task.job, task.stage.id, stage.processor.bundles)
        store = task.location

        def side_writer(channel: int) -> Any:
            from arcbeam.store.jobtemp.sidefiles import IterableWriter

            return IterableWriter(store, channel, f"{self._partition}-{self._attempt}")

        self.report = stage.run(self._input, self._outbox, self._partition, side_writer)
        self.report.attempt = self._attempt
        self.report.worker = _worker()

    def finalize(self) -> None:
        """Runs finalization callbacks; Spark has taken the task's output."""
        if self._stage is not None:
            self._stage.finalize()


_settled_modules = 0


def freeze_imported_objects() -> None:
    """Takes what modules hold from the garbage collector's sight, if modules have been imported since the last time.

    Spark's worker looks for garbage after each task, and the next task waits: with the SDK's modules that takes 80 ms.
    To be called while no processor is open: what is there now is looked at never again.
    """
    global _settled_modules
    if len(sys.modules) > _settled_modules + _FEW_MODULES:
        _settled_modules = len(sys.modules)
        gc.collect()
        gc.freeze()


def look_at_imports() -> None:
    """Undoes `freeze_imported_objects`, also what the worker was forked with."""
    global _settled_modules
    _settled_modules = 0
    gc.unfreeze()


class _Stages:
    """Stages by (job, stage), least recently used last out; another job's are torn down first.

    Invariant: a stage in use is in no other task's hands (a worker runs one task at a time).
    """

    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[str, str, int], Any] = OrderedDict()
        self._pid = os.getpid()

    def get(self, task: StageTask) -> Any:
        """The cached stage of a task, or a new one."""
        if self._pid != os.getpid():  # forked: what the parent opened is not ours
            self._cache.clear()
            self._pid = os.getpid()
        self.close_others(task.job)
        key = _cache_key(task)
        stage = self._cache.get(key)
        if stage is None:
            if task.prelude is not None:
                task.prelude()
            # SUBTLE: imported late, for the prelude silences what the SDK says at import.
            from arcbeam.harness.bounded.boundedstage import BoundedStage
            from arcbeam.store.jobtemp.sidefiles import SideReader

            if not task.settings.quick_tasks:
                look_at_imports()
            elif not self._cache:
                freeze_imported_objects()
            sides = SideReader(task.location, task.side_files, task.settings.shards) if task.stage.side_inputs else None
            stage = self._cache[key] = BoundedStage(task.stage, task.settings, sides)
            if stage.processor.needs_teardown():
                task.location.put_bytes(f"{HOLDERS}{uuid.uuid4().hex}", _worker().encode())
            while len(self._cache) > _CACHED_PROCESSORS:
                self._close(self._cache.popitem(last=False)[1])
        self._cache.move_to_end(key)
        return stage

    def discard(self, task: StageTask) -> None:
        """Throws a stage away after a failure; its teardown is still called."""
        stage = self._cache.pop(_cache_key(task), None)
        if stage is not None:
            self._close(stage)

    def close_others(self, job: str) -> None:
        """Tears down what other jobs left."""
        self._close_all(key for key in self._cache if key[0] != job)

    def close_job(self, job: str) -> None:
        """Tears down what a job left."""
        self._close_all(key for key in self._cache if key[0] == job)

    def _close_all(self, keys: Iterable[tuple[str, str, int]]) -> None:
        for key in list(keys):
            self._close(self._cache.pop(key))

    @staticmethod
    def _close(stage: Any) -> None:
        try:
            stage.close()
        except Exception:
            _LOG.warning("teardown failed", exc_info=True)


_stages = _Stages()


def _cache_key(task: StageTask) -> tuple[str, str, int]:
    return (task.job, task.stage.id, hash(task.settings))


def tear_down(job: str) -> str:
    """Tears down a finished job's stages in this worker; returns the worker's name."""
    _stages.close_job(job)
    workerlog.at("", "")
    return _worker()


def _worker() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _arrow(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow batches of bounded size."""
    pending: list[Row] = []
    size = 0
    for row in rows:
        pending.append(row)
        size += len(row.blob)
        if size > _BATCH_BYTES or len(pending) >= _BATCH_ROWS:
            yield _batch(pending)
            pending, size = [], 0
    if pending:
        yield _batch(pending)


def _batch(rows: list[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _running_step(processor: Any) -> str:
    """The step that was running when the bundle's thread failed, as the SDK's state sampler saw it."""
    try:
        name = processor.sdk.state_sampler.current_state().name_context
        return str(name.step_name) if name is not None and name.step_name else ""
    except Exception:
        return ""
