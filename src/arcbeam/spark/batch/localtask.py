"""The task that runs several stages of a bounded plan one after the other, while there is little data between them.

Owns what passes between these stages in memory, and when the ordinary way takes over: as soon as there is much data, or
a stage takes long. What the task has not processed by then goes to files, from which the other stages' tasks read it.
Nothing is processed twice, and no output is lost. Must not know how a stage runs (`spark.tasks.task`).
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from arcbeam.model.files import SideFile
from arcbeam.model.plan import Channel, Routing
from arcbeam.model.rows import RESIDUAL, BundleReport, Row, RowFile
from arcbeam.sizes import threshold
from arcbeam.spark.batch.multimap import MultimapTask
from arcbeam.spark.batch.rounds import ReadRows, RowFiles
from arcbeam.spark.tasks.heartbeat import pulsing
from arcbeam.spark.tasks.openstages import worker_name
from arcbeam.spark.tasks.packing import Packer
from arcbeam.spark.tasks.task import BatchStageRun, StageTask, TaskRows, arrow
from arcbeam.store.jobtemp.location import JobLocation

if TYPE_CHECKING:
    # At run time the SDK is imported after the worker's setup.
    from arcbeam.harness.batch.portions import Portions

_STAGE_SECONDS = 0.2
"""A stage that has taken longer leaves the rest of its input to other tasks: an exchange costs about as much."""
_LONG_SECONDS = 1.0
"""If a stage has taken longer, the job continues beside it."""
_FILE_BYTES = threshold(1 << 20)
"""Bytes of output that are written to files together, once there is much data."""
_EARLIER = "earlier tasks"
"""In place of a producer: these rows are in files, for any task that reads them."""
_EARLY = "left/"
"""Where a task names what it has left before its end."""

_in_order = attrgetter("shard", "bucket")
_bucket = attrgetter("bucket")


@dataclass(frozen=True, slots=True)
class LocalTask:
    """Everything that the task needs; pickled into the plan of its Spark job.

    Attributes:
        tasks: of the stages, in the plan's order.
        channels: of the plan.
        inputs: files with rows of earlier stages, by channel.
        number: of the task in its job.
        local_bytes: maximum bytes that wait between stages.
        watched: whether tasks report their progress.
    """

    tasks: tuple[StageTask, ...]
    channels: tuple[Channel, ...]
    inputs: Mapping[int, tuple[str, ...]]
    number: int
    local_bytes: int
    watched: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task: `mapInArrow` calls this. It outputs one report for each stage that it has begun."""
        impulse = list(TaskRows(batches))
        if not impulse:
            return
        self.tasks[0].check_earlier_attempts()
        run = _LocalRun(self, impulse)
        with run.watched():
            run.run()
        yield from arrow(report.to_row() for report in run.reports)
        run.finalize()


@dataclass(frozen=True, slots=True)
class LeftEarly:
    """What a task has left to others while it still runs a stage: everything but the rows that the stage has taken.

    Attributes:
        id: of the attempt; the report of the stage has it, too.
        stage: id of the stage.
        taken: files with the rows that the stage has taken.
        rest: files with its other rows.
        side_files: of the stage's side inputs, by channel.
        reports: of the stages before it.
    """

    id: str
    stage: str
    taken: tuple[RowFile, ...]
    rest: tuple[RowFile, ...]
    side_files: dict[int, tuple[SideFile, ...]]
    reports: tuple[BundleReport, ...]

    @staticmethod
    def found(location: JobLocation, number: int) -> LeftEarly | None:
        """Return what the job's task of that number has left; None if nothing."""
        for name in sorted(location.list(f"{_EARLY}{number}/")):
            left = pickle.loads(location.get_bytes(name))
            assert isinstance(left, LeftEarly)
            return left
        return None


class _LocalRun:
    """One attempt. Invariant: `_rows` has all rows of a channel that one of its readers (`_readers`) has not begun.

    Attributes:
        reports: of the stages that have begun, and of side inputs.
    """

    def __init__(self, task: LocalTask, impulse: list[Row]) -> None:
        self._task, self._impulse = task, impulse
        context = TaskContext.get()
        self._attempt = context.taskAttemptId() if context else 0
        self._retries = context.attemptNumber() if context else 0
        self.reports: list[BundleReport] = []
        self._runs: list[BatchStageRun] = []
        self._files: dict[str, RowFiles] = {}
        self._rows: dict[int, dict[str, list[Row]]] = defaultdict(dict)
        self._readers = {channel.index: set(channel.consumers) for channel in task.channels}
        for channel, names in task.inputs.items():
            read = ReadRows(task.tasks[0].location, (names,))
            self._rows[channel][_EARLIER] = [row for name in names for row in TaskRows(read.rows(name))]
        self._bytes = 0
        self._is_over = False
        self._now: tuple[StageTask, _LimitedRows] | None = None
        self._early: LeftEarly | None = None
        # Held while rows are left early, and while a stage ends.
        self._ending = threading.Lock()
        self._error: Exception | None = None

    def run(self) -> None:
        """Run stage after stage, until one leaves something to other tasks."""
        for task in self._task.tasks:
            self._run_stage(task)
            if self._is_over:
                break
        self._leave_rows()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Leave what a stage has not read to other tasks as soon as it takes long, while the block runs."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_LONG_SECONDS / 4):
                with self._ending:
                    try:
                        if self._now is not None:
                            self._leave_early(*self._now)
                    except Exception as e:
                        self._error = e
                        return

        watcher = threading.Thread(target=watch, name="left-early", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _leave_early(self, task: StageTask, rows: _LimitedRows) -> None:
        """If the stage takes long, leave everything else to others, and tell the driver, which need not wait for it.

        Not if a stage so far has callbacks for the commit: they are lost with this attempt, but not what it has left.
        """
        stage = task.stage
        is_long = rows.since is not None and time.monotonic() > rows.since + _LONG_SECONDS
        if not is_long or self._early or stage.id in self._files or any(run.finalizes for run in self._runs):
            return
        rest = rows.stop()
        self._leave_rows()
        self._rows.clear()
        left = LeftEarly(
            uuid.uuid4().hex,
            stage.id,
            self._file(stage.id, rows.taken()),
            self._file(stage.id, rest),
            dict(task.side_files),
            tuple(self.reports),
        )
        task.location.put_bytes(f"{_EARLY}{self._task.number}/{left.id}", pickle.dumps(left))
        self._early = left

    def finalize(self) -> None:
        """Run finalization callbacks: Spark has received the task's output."""
        for run in self._runs:
            run.finalize()

    def _run_stage(self, task: StageTask) -> None:
        stage = task.stage
        for side in stage.side_inputs:
            self._build_multimap(side.channel)
        rows = self._impulse if stage.source is None else self._input(stage.source, stage.id)
        if not rows:
            # The driver sees from the report that the stage is done.
            report = BundleReport(stage.id, 0, self._attempt, worker_name(), self._retries)
            self.reports.append(report)
            return
        limited = _LimitedRows(lambda: self._is_over, rows, task.settings.shards)
        task = with_sides(task, self.reports)
        run = limited.run = BatchStageRun(task, limited)
        self._runs.append(run)
        self._now = task, limited

        def work(_: object) -> Iterator[Row]:
            yield from run.rows()

        written: dict[int, list[Row]] = defaultdict(list)
        size = total = 0
        for row in pulsing(work, stage.id, task.location, self._task.watched)(iter(())):
            written[row.channel].append(row)
            size += len(row.blob)
            total += len(row.blob)
            self._bytes += len(row.blob)
            if self._bytes > self._task.local_bytes:
                self._is_over = True
            if self._is_over and size > _FILE_BYTES:
                with self._ending:
                    for channel, some in written.items():
                        self._append(stage.id, channel, some)
                written.clear()
                size = 0
        self.reports.append(run.report)
        for channel, some in written.items():
            self._rows[channel][stage.id] = some
        with self._ending:
            self._now = None
        if self._error is not None:
            raise self._error
        if self._early is not None:
            run.report.left_early = self._early.id
            run.report.row_files += self._early.rest
        elif left := limited.stop():
            run.report.row_files += self._file(stage.id, left)
            rest, whole = (sum(len(row.blob) + 1 for row in some) for some in (left, rows))
            run.report.rest_bytes = total * rest // max(1, whole - rest)
        self._is_over |= self._early is not None or bool(run.report.row_files)

    def _input(self, channel: int, stage: str) -> list[Row]:
        """Return the input of a stage, and forget it after the channel's last reader."""
        by_producer = self._rows.get(channel, {})
        readers = self._readers[channel]
        readers.discard(stage)
        rows = [row for some in by_producer.values() for row in some]
        if not readers:
            self._forget(channel)
        rows.sort(key=_bucket)
        return rows

    def _forget(self, channel: int) -> None:
        for producer, some in self._rows.pop(channel, {}).items():
            if producer is not _EARLIER:
                self._bytes -= sum(len(row.blob) for row in some)

    def _build_multimap(self, channel: int) -> None:
        """Write the files of a multimap that is read by a key, unless that is done."""
        if self._task.channels[channel].routing is not Routing.SIDE_KEYED or channel not in self._rows:
            return
        first = self._task.tasks[0]
        task = MultimapTask(channel, first.location, first.settings.group_memory_bytes)
        rows = sorted((row for some in self._rows[channel].values() for row in some), key=_in_order)
        for shard, of_shard in groupby(rows, attrgetter("shard")):
            self.reports.append(task.written(shard, of_shard))
        self._forget(channel)

    def _leave_rows(self) -> None:
        """Write what stages of other tasks will read, and name the files in the reports."""
        for channel, by_producer in self._rows.items():
            for producer, rows in by_producer.items():
                if producer is not _EARLIER:
                    self._append(producer, channel, rows)
        of_stage = {report.stage: report for report in self.reports}
        while self._files:
            id, files = self._files.popitem()
            of_stage[id].row_files += files.close()

    def _append(self, producer: str, channel: int, rows: Iterable[Row]) -> None:
        if producer not in self._files:
            self._files[producer] = self._new_files(producer)
        for batch in self._packed(rows):
            self._files[producer].append(channel, batch)

    def _file(self, stage: str, rows: Iterable[Row]) -> tuple[RowFile, ...]:
        """Write rows of a stage's input to a file; none if there are no rows."""
        files = self._new_files(stage)
        for batch in self._packed(rows):
            files.append(RESIDUAL, batch)
        return tuple(files.close())

    def _new_files(self, stage: str) -> RowFiles:
        return RowFiles(self._task.tasks[0].location, stage, f"0-{self._attempt}")

    def _packed(self, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
        return arrow(rows, Packer(on=self._task.tasks[0].settings.packed_blobs))


class _LimitedRows:
    """The input of a stage. It ends early when the task is over, or the stage takes long, but not before one portion.

    Args:
        is_over: whether the task is over.
        rows: the whole input.
        shards: the number of shards of what is left.

    Attributes:
        run: the run that reads it.
        since: when it was read first; None before.
    """

    run: BatchStageRun

    def __init__(self, is_over: Callable[[], bool], rows: list[Row], shards: int) -> None:
        self._is_over, self._rows, self._shards = is_over, rows, shards
        self._lock = threading.Lock()
        self._portions: Portions | None = None
        self._left: list[Row] | None = None
        self.since: float | None = None

    def __iter__(self) -> Iterator[Row]:
        self._portions = self.run.stage.portions(self._rows)
        rows, since = iter(self._portions), time.monotonic()
        self.since = since
        row = next(rows, None)
        while row is not None:
            yield row
            is_late = self._is_over() or time.monotonic() > since + _STAGE_SECONDS
            with self._lock:
                if is_late and self._left is None:
                    self._left = self._portions.rest(self._shards)
                row = next(rows, None)

    def stop(self) -> list[Row]:
        """End it soon, and return the rows that the stage does not read."""
        with self._lock:
            if self._left is None:
                self._left = [] if self._portions is None else self._portions.rest(self._shards)
            return self._left

    def taken(self) -> list[Row]:
        """Return the rows that the stage has read or will read, once `stop` was called."""
        with self._lock:
            return [] if self._portions is None else [*self._portions.taken, *self._portions.coming()]


def with_sides(task: StageTask, reports: Iterable[BundleReport]) -> StageTask:
    """Return a task that also reads the side inputs that these reports name."""
    sides = dict(task.side_files)
    for file in (file for report in reports for file in report.side_files if file.channel in sides):
        sides[file.channel] = (*sides[file.channel], file)
    return replace(task, side_files=sides)
