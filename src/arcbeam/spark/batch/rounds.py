"""Rounds of splittable stages, and the files that keep what they put out.

Owns both ends: in the worker, the rows of a round go to files that the task's report names; on the driver, which stages
are in which round, and data frames over the files that were reported. Must not know what restrictions are.

Where a round is cut depends on the clock, so what a task puts out and what it leaves belong together, and neither could
be made again. Whatever Spark keeps (persisted or shuffled) it may compute again after the loss of an executor. So a
round's rows are in immutable files, named by attempt, and only the files in the reports that the driver has collected
are ever read: of each task, those of exactly one attempt.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import time
import uuid
from collections.abc import Iterable, Iterator
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
    """A stage's task whose rows go to files; only reports come out.

    Attributes:
        task: what runs.
    """

    task: StageTask

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What `mapInArrow` runs."""
        context = TaskContext.get()
        attempt = f"{context.partitionId()}-{context.taskAttemptId()}" if context else "0-0"
        files = _RowFiles(self.task.location, self.task.stage.id, attempt)
        with contextlib.closing(self.task(batches)) as produced:  # type: ignore[type-var]  # it is a generator
            for batch in produced:
                for channel, rows in _by_channel(batch):
                    if channel == REPORT:
                        # SUBTLE: the task's own report is its last row: all others have been written by then.
                        yield self._with_files(rows, files)
                    else:
                        files.append(channel, rows)

    def _with_files(self, reports: pa.RecordBatch, files: _RowFiles) -> pa.RecordBatch:
        """The reports; the task's own one names its files, which are complete now."""
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


class _RowFiles:
    """The files of one task attempt, one per channel that it writes."""

    def __init__(self, location: JobLocation, stage: str, attempt: str) -> None:
        self._location, self._prefix = location, f"rows/{stage}/{attempt}-{uuid.uuid4().hex[:12]}"
        self._writers: dict[int, tuple[str, FrameFileWriter]] = {}

    def append(self, channel: int, rows: pa.RecordBatch) -> None:
        """Adds rows of a channel."""
        if channel not in self._writers:
            name = f"{self._prefix}.{'residuals' if channel == RESIDUAL else channel}"
            self._writers[channel] = (name, FrameFileWriter(self._location, name))
        self._writers[channel][1].append(rows.serialize())

    def close(self) -> list[RowFile]:
        """Publishes them."""
        return [RowFile(channel, name, writer.close()) for channel, (name, writer) in self._writers.items()]


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Reads files of rows; its input are numbers of groups of files.

    Attributes:
        location: the job's temporary location.
        groups: names of the files.
    """

    location: JobLocation
    groups: tuple[tuple[str, ...], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What `mapInArrow` runs."""
        for batch in batches:
            for group in batch.column(0).to_pylist():
                for name in self.groups[group]:
                    yield from self._rows(name)

    def _rows(self, name: str) -> Iterator[pa.RecordBatch]:
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
        task: of the stage.
        source: what its next round reads.
        round: number of the next round.
        due: unix seconds before which it must not start; None: none.
    """

    task: StageTask
    source: DataFrame
    round: int = 1
    due: float | None = None


@dataclass(slots=True)
class Rounds:
    """Splittable stages on their way through their rounds, and the output of those that have finished.

    Stages do not wait for each other's rounds: all that are due run in one Spark job.

    Args:
        spark: where.
        location: the job's temporary location.
        shards: how many tasks a round has, and at most how many read the output.
        watched: tasks tell how far they are.
    """

    spark: SparkSession
    location: JobLocation
    shards: int
    watched: bool = False
    _running: dict[str, _Running] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    _output: dict[tuple[str, int], list[RowFile]] = field(default_factory=dict)

    def add(self, task: StageTask, source: DataFrame) -> None:
        """A stage begins; its input is complete once the frame is computed."""
        self._running[task.stage.id] = _Running(task, source)

    @property
    def stages(self) -> list[Stage]:
        """Those that have rounds before them."""
        return [running.task.stage for running in self._running.values()]

    def wait(self) -> float:
        """Seconds until a round may start."""
        return min((max(0.0, (r.due or 0.0) - time.time()) for r in self._running.values()), default=0.0)

    def begin(self) -> list[DataFrame]:
        """Reports of one round each of all stages that are due; to be collected in one job, and handed to `end`."""
        now = time.time()
        self._begun = {id for id, running in self._running.items() if running.due is None or running.due <= now}
        return [self._round(self._running[id]) for id in self._begun]

    def _round(self, running: _Running) -> DataFrame:
        of_round = RoundTask(replace(running.task, round=running.round))
        task = pulsing(of_round, running.task.stage.id, self.location, self.watched)
        return exchange.mapped(running.source, task)

    def end(self, reports: Iterable[BundleReport]) -> set[str]:
        """The rounds that began last have ended; returns the ids of the stages that have left nothing."""
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
                self._go_on(self._running[id], left, [report for report in own if report.residuals])
            else:
                del self._running[id]
                done.add(id)
        self._begun = set()
        return done

    def _go_on(self, running: _Running, left: list[RowFile], leavers: list[BundleReport]) -> None:
        # The round after the next has no part in this one's plan: plans do not grow with the number of rounds.
        running.source = exchange.exchanged(self._read(left), Routing.SPREAD, self.shards)
        due = [report.next_due for report in leavers if report.next_due is not None]
        running.due = min(due) if len(due) == len(leavers) else None
        restrictions = sum(report.residuals for report in leavers)
        _LOG.info("%s: round %d leaves %d restrictions", running.task.stage.name, running.round, restrictions)
        running.round += 1

    def output(self, stage: str, channel: int) -> DataFrame:
        """The rows of a channel of a stage that has finished; computed again whenever it is used, from the files."""
        return self._read(self._output.get((stage, channel), []))

    def _read(self, files: list[RowFile]) -> DataFrame:
        groups = grouped(files, self.shards)
        numbers = self.spark.range(0, len(groups), 1, max(1, len(groups)))
        return exchange.mapped(numbers, ReadRows(self.location, groups))


def grouped(files: list[RowFile], most: int) -> tuple[tuple[str, ...], ...]:
    """The names of files in at most so many groups of about the same size; no group is empty."""
    groups: list[list[str]] = [[] for _ in range(min(most, len(files)))]
    loads = [(0, number) for number in range(len(groups))]
    for file in sorted(files, key=lambda file: (-file.size, file.path)):
        load, number = loads[0]
        heapq.heapreplace(loads, (load + file.size, number))
        groups[number].append(file.path)
    return tuple(map(tuple, groups))
