"""A queue of rows from the thread of a task's bundles to the thread that feeds Spark, and rows as Arrow batches.

Owns how far the first may be ahead of the second. Must not know what is in a row except its `blob`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from arcbeam.sizes import threshold

_BATCH_BYTES = threshold(4 << 20)
_BATCH_ROWS = threshold(8192)
_HANDED_OVER_BYTES = threshold(1 << 20)
_QUEUED_BYTES = threshold(32 << 20)
"""Bytes by which a running bundle may be ahead of the thread that feeds Spark."""


class Blobbed(Protocol):
    """A row: a tuple with one field of many bytes."""

    @property
    def blob(self) -> bytes:
        """The field with many bytes."""

    def __iter__(self) -> Iterator[object]: ...


R = TypeVar("R", bound=Blobbed)


class RowQueue(Generic[R]):
    """A bounded queue from the bundle's thread to Spark's; `put` blocks while too many bytes wait.

    Rows are handed over in batches: each hand-over may switch threads, which takes longer than a small row.
    """

    def __init__(self) -> None:
        self._batches: queue.SimpleQueue[list[R] | None] = queue.SimpleQueue()
        self._gathered: list[R] = []
        self._gathered_bytes = 0
        self._lock = threading.Condition()
        self._bytes = 0
        self._abandoned = False

    def put(self, row: R) -> None:
        """Put one row; see `arcbeam.model.rows.Outbox`."""
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
                raise BundleAbandoned
            self._bytes += size
        self._batches.put(rows)

    def finish(self) -> None:
        """End the queue: no more rows will come."""
        if self._gathered:
            self._hand_over()
        self._batches.put(None)

    def fail(self) -> None:
        """End the queue and discard the rows that were not handed over."""
        self._batches.put(None)

    def drain(self) -> Iterator[R]:
        """Yield the rows as they arrive, until `finish`."""
        try:
            while (rows := self._batches.get()) is not None:
                with self._lock:
                    self._bytes -= sum(len(row.blob) + 64 for row in rows)
                    self._lock.notify()
                yield from rows
        except GeneratorExit:
            # Spark needs no more rows because it killed the task: let the bundle's thread end.
            with self._lock:
                self._abandoned = True
                self._lock.notify()
            raise


class BundleAbandoned(BaseException):
    """The task was killed while its bundle ran."""


def batches_of(rows: Iterable[R], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return rows as Arrow batches of bounded size."""
    pending: list[R] = []
    size = 0
    for row in rows:
        pending.append(row)
        size += len(row.blob)
        if size > _BATCH_BYTES or len(pending) >= _BATCH_ROWS:
            yield _batch(pending, schema)
            pending, size = [], 0
    if pending:
        yield _batch(pending, schema)


def _batch(rows: list[R], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
