"""Rows between the levels of a micro-batch: what a task sends to the owners of shards at the next level.

Owns their schema and order. A row is passed from level to level until it reaches that of the stage that reads it. Must
not know what a stage does, nor what is in a blob.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from typing_extensions import override

from arcbeam.engine.grouping.groupings import Combined, KeyElements
from arcbeam.engine.protocol.markers import Marker
from arcbeam.model.rows import Row
from arcbeam.spark.tasks.packing import Packer, unpacked
from arcbeam.streaming.interfaces import TaskExchange
from arcbeam.streaming.physicalplan import PhysicalPlan

SCHEMA: Final = pa.schema(
    [
        ("task", pa.int32()),
        ("shard", pa.int32()),
        ("stage", pa.int32()),
        ("bucket", pa.int32()),
        ("blob", pa.binary()),
        ("unpacked", pa.int32()),
    ]
)
ORDER: Final = ("shard", "stage", "bucket")
"""The order in which a task reads: rows without a shard, then shard by shard, and in each shard stage by stage."""

_NO_SHARD: Final = -1
_MARKER: Final = -2
_REPORT: Final = -1


class ExchangeRow(NamedTuple):
    """A row.

    Attributes:
        task: the next task to read it.
        shard: the shard that it is for; markers and reports have none.
        stage: the stage that reads it, as its index in the layout; for markers and reports, their kind.
        bucket: a stage reads its rows in ascending order of bucket.
        blob: elements, in a form that only the harness reads; may be packed.
        unpacked: bytes of the blob before packing; 0 if it is not packed.
    """

    task: int
    shard: int
    stage: int
    bucket: int
    blob: bytes
    unpacked: int = 0


def packing(rows: Iterable[ExchangeRow], packer: Packer) -> Iterator[ExchangeRow]:
    """Pack rows that stages have written, except those that an earlier level has packed."""
    for row in rows:
        if row.stage < 0 or row.unpacked:
            yield row
        else:
            yield ExchangeRow(*row[:4], *packer.pack(row.blob))


def reports_in(rows: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    """Return the reports among the output of the last level, given as (stage, blob)."""
    return (blob for stage, blob in rows if stage == _REPORT)


class InputLostError(Exception):
    """Spark has stopped sending a task's input: the task was killed or a worker was lost. Not an error of user code."""


class TaskOutput:
    """The output of a task.

    Args:
        physical: the job's stages.
        level: the task's level.
        put: receives a row.

    Attributes:
        bytes: how many it has sent.
    """

    def __init__(self, physical: PhysicalPlan, level: int, put: Callable[[ExchangeRow], None]) -> None:
        self._readers, self._put = physical.readers, put
        last = level + 1 == len(physical.layout.tasks)
        self._owners = () if last else physical.owners[level + 1]
        self._next = 0 if last else physical.layout.tasks[level + 1]
        self.bytes = 0

    def put(self, row: Row) -> None:
        """Send what a stage has written to all stages that read it; see `arcbeam.model.rows.Outbox`."""
        task = self._owners[row.shard]
        for stage in self._readers[row.channel]:
            self.bytes += len(row.blob)
            self._put(ExchangeRow(task, row.shard, stage, row.bucket, row.blob))

    def pass_on(self, row: ExchangeRow) -> None:
        """Pass on a row for a later level."""
        self._put(row._replace(task=self._owners[row.shard]))

    def mark(self, marker: Marker) -> None:
        """Send a marker to every task of the next level."""
        blob = pickle.dumps(marker, protocol=5)
        for task in range(self._next):
            self._put(ExchangeRow(task, _NO_SHARD, _MARKER, 0, blob))

    def report(self, blob: bytes) -> None:
        """Send a report, which the last level returns to the driver."""
        self._put(ExchangeRow(0, _NO_SHARD, _REPORT, 0, blob))


class Received:
    """The input of a task, in `ORDER`.

    Args:
        batches: of `SCHEMA`; at a micro-batch's first level they have no data.
        physical: the job's stages.
        level: the task's level.
        sent: passes reports on.
        first: whether the micro-batch begins with that level.
    """

    def __init__(
        self, batches: Iterator[pa.RecordBatch], physical: PhysicalPlan, level: int, sent: TaskOutput, *, first: bool
    ) -> None:
        self._level, self._indexes, self._sent = level, physical.indexes, sent
        self._rows = iter(()) if first else _rows(batches)
        if first:
            # SUBTLE: Spark ends a worker whose task has not read its input to the end.
            for _ in _unbroken(batches):
                pass
        self._ahead: ExchangeRow | None = next(self._rows, None)

    def markers(self) -> Sequence[Marker]:
        """Return the markers of the level before, and pass its reports on."""
        markers: list[Marker] = []
        while self._ahead is not None and self._ahead.shard == _NO_SHARD:
            if self._ahead.stage == _MARKER:
                markers.append(pickle.loads(self._ahead.blob))
            else:
                self._sent.report(self._ahead.blob)
            self._advance()
        return markers

    def of_stage(self, stage: str, shard: int) -> Iterator[Row]:
        """Yield the rows of a stage of this level, in a shard."""
        index = self._indexes[stage]
        while (row := self._ahead) is not None and row.shard == shard and row.stage == index:
            yield Row(index, shard, row.bucket, unpacked(row.blob, row.unpacked))
            self._advance()

    def any(self, stage: str, shard: int) -> bool:
        """Return whether the next row is of a stage of this level, in a shard."""
        row = self._ahead
        return row is not None and row.shard == shard and row.stage == self._indexes[stage]

    def passing(self, shard: int) -> Iterator[ExchangeRow]:
        """Yield a shard's rows for later levels.

        Raises:
            AssertionError: there are rows of a stage or shard that has already been processed.
        """
        while (row := self._ahead) is not None and row.shard <= shard:
            if row.shard < shard:
                raise AssertionError(f"a row of shard {row.shard} comes after those of shard {shard}")
            yield row
            self._advance()

    def end(self) -> None:
        """Check that all rows have been read.

        Raises:
            AssertionError: some rows are left.
        """
        if self._ahead is not None:
            raise AssertionError(f"a row of stage {self._ahead.stage}, shard {self._ahead.shard} was not read")

    def _advance(self) -> None:
        self._ahead = next(self._rows, None)


def _unbroken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except Exception as e:
        raise InputLostError(f"the rows of a micro-batch ended too early: {e}") from e


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[ExchangeRow]:
    for batch in _unbroken(batches):
        tasks, shards, stages, buckets = (batch.column(i).to_pylist() for i in range(4))
        blobs, sizes = batch.column(4), batch.column(5).to_pylist()
        for i, task in enumerate(tasks):
            yield ExchangeRow(task, shards[i], stages[i], buckets[i], blobs[i].as_py(), sizes[i])


class LevelRows(TaskExchange[ExchangeRow]):
    """The input and output of a task; see `arcbeam.streaming.interfaces.TaskExchange`.

    Args:
        received: the input.
        sent: the output.
        elements: decodes a stage's rows to elements.
        ends: called before the marker is sent, so that user code outputs what it holds.
    """

    def __init__(
        self,
        received: Received,
        sent: TaskOutput,
        elements: Callable[[str, Iterable[Row]], Iterable[tuple[bytes, KeyElements | Combined]]],
        ends: Callable[[], None],
    ) -> None:
        self._received, self._sent = received, sent
        self._elements, self._ends = elements, ends

    @override
    def markers(self) -> Sequence[Marker]:
        return self._received.markers()

    @override
    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, KeyElements | Combined]]:
        return self._elements(stage, self._received.of_stage(stage, shard))

    @override
    def any(self, stage: str, shard: int) -> bool:
        return self._received.any(stage, shard)

    @override
    def passing(self, shard: int) -> Iterable[ExchangeRow]:
        return self._received.passing(shard)

    @override
    def pass_on(self, row: ExchangeRow) -> None:
        self._sent.pass_on(row)

    @override
    def mark(self, marker: Marker) -> None:
        self._received.end()
        self._ends()
        self._sent.mark(marker)
