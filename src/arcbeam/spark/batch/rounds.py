"""Rounds of splittable stages, and the files with their output.

Owns both sides. In the worker, the rows of a round go to files that the task's report names. On the driver, it decides
which stages take part in which round, and makes data frames over the reported files. Must not know what restrictions
are.

The clock decides where a round ends. So a task's output and its residuals belong together, and neither can be
recomputed. Spark may recompute whatever it keeps, persisted or shuffled, after it loses an executor. So a round's rows
are in immutable files, named by attempt. Only files in the reports that the driver has collected are ever read: for
each task, the files of exactly one attempt.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from arcbeam.model.plan import Routing, Stage
from arcbeam.model.rows import REPORT, RESIDUAL, BundleReport, RowFile
from arcbeam.spark.batch import exchange
from arcbeam.spark.tasks import failure
from arcbeam.spark.tasks.heartbeat import pulsing
from arcbeam.spark.tasks.task import ARROW_SCHEMA, StageTask
from arcbeam.store.blobs.errors import LostFileError
from arcbeam.store.jobtemp.framefile import FrameFileWriter, read_frames
from arcbeam.store.jobtemp.location import JobLocation

_LOG = logging.getLogger("arcbeam.rounds")

# In the worker.


@dataclass(frozen=True, slots=True)
class RoundTask:
    """A stage's task that writes its rows to files and outputs only reports.

    Attributes:
        task: the stage's task.
    """

    task: StageTask

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task: `mapInArrow` calls this."""
        context = TaskContext.get()
        attempt = f"{context.partitionId()}-{context.taskAttemptId()}" if context else "0-0"
        files = RowFiles(self.task.location, self.task.stage.id, attempt)
        with contextlib.closing(self.task(batches)) as produced:  # type: ignore[type-var]  # it is a generator
            for batch in produced:
                for channel, rows in _by_channel(batch):
                    if channel == REPORT:
                        # SUBTLE: the task's own report is its last row, so all other rows are already written.
                        yield self._with_files(rows, files)
                    else:
                        files.append(channel, rows)

    def _with_files(self, reports: pa.RecordBatch, files: RowFiles) -> pa.RecordBatch:
        """Return the reports; the task's own report names its files, which are complete now."""
        blobs = reports.column(3).to_pylist()
        for i, blob in enumerate(blobs):
            report = BundleReport.from_blob(blob)
            if report.stage == self.task.stage.id:
                report.row_files = files.close()
                blobs[i] = report.to_row().blob
        columns = [*reports.columns[:3], pa.array(blobs, pa.binary()), reports.column(4)]
        return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _by_channel(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    channels = batch.column(0)
    distinct = pc.unique(channels).to_pylist()
    for channel in distinct:
        yield channel, batch if len(distinct) == 1 else batch.filter(pc.equal(channels, channel))


class RowFiles:
    """The files of one task attempt, one for each channel that it writes."""

    def __init__(self, location: JobLocation, stage: str, attempt: str) -> None:
        self._location, self._prefix = location, f"rows/{stage}/{attempt}-{uuid.uuid4().hex[:12]}"
        self._writers: dict[int, tuple[str, FrameFileWriter]] = {}

    def append(self, channel: int, rows: pa.RecordBatch) -> None:
        """Add rows of a channel."""
        if channel not in self._writers:
            name = f"{self._prefix}.{'residuals' if channel == RESIDUAL else channel}"
            self._writers[channel] = (name, FrameFileWriter(self._location, name))
        self._writers[channel][1].append(rows.serialize())

    def close(self) -> list[RowFile]:
        """Close the files and return them."""
        return [RowFile(channel, name, writer.close()) for channel, (name, writer) in self._writers.items()]


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Reads files of rows. Its input is the numbers of groups of files.

    Attributes:
        location: the job's temporary location.
        groups: the names of each group's files.
    """

    location: JobLocation
    groups: tuple[tuple[str, ...], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task: `mapInArrow` calls this."""
        for batch in batches:
            for group in batch.column(0).to_pylist():
                for name in self.groups[group]:
                    yield from self.rows(name)

    def rows(self, name: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file."""
        try:
            for frame in read_frames(self.location, name):
                yield pa.ipc.read_record_batch(pa.py_buffer(frame), ARROW_SCHEMA)
        except LostFileError as e:
            raise failure.record(self.location, "rows", e) from None


# On the driver.


@dataclass(slots=True)
class _Running:
    """A stage between two rounds.

    Attributes:
        task: the stage's task.
        source: the input of the next round.
        round: number of the next round.
        due: unix seconds; the next round must not start before. None: it may start at once.
    """

    task: StageTask
    source: DataFrame
    round: int = 1
    due: float | None = None


@dataclass(slots=True)
class Rounds:
    """Splittable stages with rounds to run, and the output of those that have finished.

    Stages do not wait for each other's rounds: all that are due run in one Spark job.

    Args:
        spark: the session to run in.
        location: the job's temporary location.
        shards: the number of tasks of a round, and the maximum number of tasks that read the output.
        watched: whether tasks report their progress.
    """

    spark: SparkSession
    location: JobLocation
    shards: int
    watched: bool = False
    _running: dict[str, _Running] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    _output: dict[tuple[str, int], list[RowFile]] = field(default_factory=dict)

    def add(self, task: StageTask, source: DataFrame) -> None:
        """Add a stage; its input is complete once the frame is computed."""
        self._running[task.stage.id] = _Running(task, source)

    @property
    def stages(self) -> list[Stage]:
        """The stages that have rounds left."""
        return [running.task.stage for running in self._running.values()]

    def begun(self, stage: str) -> int:
        """Return how many rounds of a stage have begun, or are due; 0: it has no rounds left."""
        running = self._running.get(stage)
        return 0 if running is None else running.round

    def parts(self, stage: str, channel: int) -> int:
        """Return the number of partitions of `output`."""
        return max(1, min(self.shards, len(self.files(stage, channel))))

    def wait(self) -> float:
        """Return the seconds until a round may start."""
        return min((max(0.0, (r.due or 0.0) - time.time()) for r in self._running.values()), default=0.0)

    def begin(self) -> list[DataFrame]:
        """Return the reports of one round of each stage that is due; collect them in one job and pass them to `end`."""
        now = time.time()
        self._begun = {id for id, running in self._running.items() if running.due is None or running.due <= now}
        return [self._round(self._running[id]) for id in self._begun]

    def _round(self, running: _Running) -> DataFrame:
        of_round = RoundTask(replace(running.task, round=running.round))
        task = pulsing(of_round, running.task.stage.id, self.location, self.watched, running.round)
        return exchange.mapped(running.source, task)

    def take(self, reports: Iterable[BundleReport]) -> dict[str, list[RowFile]]:
        """Take the output of stages without rounds; return the files with what they have left, by the stage's id."""
        left: dict[str, list[RowFile]] = {}
        for report in reports:
            for file in report.row_files:
                if file.channel == RESIDUAL:
                    left.setdefault(report.stage, []).append(file)
                else:
                    self._output.setdefault((report.stage, file.channel), []).append(file)
        return left

    def files(self, stage: str, channel: int) -> list[RowFile]:
        """Return the files with a stage's rows of a channel."""
        return self._output.get((stage, channel), [])

    def end(self, reports: Iterable[BundleReport]) -> set[str]:
        """End the rounds that began last; return the ids of stages without residuals."""
        done: set[str] = set()
        by_stage: dict[str, list[BundleReport]] = {id: [] for id in self._begun}
        for report in reports:
            if report.stage in by_stage:
                by_stage[report.stage].append(report)
        for id, own in by_stage.items():
            left: list[RowFile] = []
            for file in (file for report in own for file in report.row_files):
                rest = file.channel == RESIDUAL
                (left if rest else self._output.setdefault((id, file.channel), [])).append(file)
            if left:
                self._prepare_next(self._running[id], left, [report for report in own if report.residuals])
            else:
                del self._running[id]
                done.add(id)
        self._begun = set()
        return done

    def _prepare_next(self, running: _Running, left: list[RowFile], leavers: list[BundleReport]) -> None:
        # The plan of a round contains only the round before it, so plans do not grow with the number of rounds.
        running.source = exchange.exchanged(self.read(left), Routing.SPREAD, self.shards)
        due = [report.next_due for report in leavers if report.next_due is not None]
        running.due = min(due) if len(due) == len(leavers) else None
        restrictions = sum(report.residuals for report in leavers)
        _LOG.info("%s: round %d leaves %d restrictions", running.task.stage.name, running.round, restrictions)
        running.round += 1

    def output(self, stage: str, channel: int) -> DataFrame:
        """Return the rows of a finished stage's channel; recomputed from the files at each use."""
        return self.read(self.files(stage, channel))

    def read(self, files: Sequence[RowFile]) -> DataFrame:
        """Return the rows of files."""
        groups = grouped(files, self.shards)
        numbers = self.spark.range(0, len(groups), 1, max(1, len(groups)))
        return exchange.mapped(numbers, ReadRows(self.location, groups))


def grouped(files: Sequence[RowFile], most: int) -> tuple[tuple[str, ...], ...]:
    """Group the names of files into at most `most` groups of similar size, none of them empty."""
    groups: list[list[str]] = [[] for _ in range(min(most, len(files)))]
    loads = [(0, number) for number in range(len(groups))]
    for file in sorted(files, key=lambda file: (-file.size, file.path)):
        load, number = loads[0]
        heapq.heapreplace(loads, (load + file.size, number))
        groups[number].append(file.path)
    return tuple(map(tuple, groups))
