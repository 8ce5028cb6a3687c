"""The data that travels through Spark: rows of opaque blobs, and reports, which are rows, too.

Owns the row's shape, the hash that decides a key's shard, and the report's wire format. A leaf: standard library only;
knows neither Arrow nor the SDK.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from arcbeam.model.files import SideFile

REPORT = -1
"""The channel of a row whose blob is a `BundleReport`."""
RESIDUAL = -2
"""The channel of a row whose blob contains residual restrictions, to be run in the next round."""
key_hash = zlib.crc32
"""The unsigned 32-bit hash of an encoded key; its shard is `key_hash(key) % shards`.

Stable across processes, hosts and versions, because files and other tasks rely on it.
"""
SHARDS_MAX: Final = 8_192
"""The largest number of shards of a job: more cost time and files in each micro-batch, and no cluster has the cores."""


def buckets_per_shard(shards: int) -> int:
    """Return the number of buckets for the keys of one shard: about 4,096 in all shards, at least 16 each."""
    return max(16, 4096 // max(1, shards))


class Row(NamedTuple):
    """One row of the exchange.

    Attributes:
        channel: index of the channel, or REPORT, RESIDUAL.
        shard: the shard that must read it, in [0, shards).
        bucket: readers see the rows of a shard in ascending order of bucket; all blobs of a key have the same one.
        blob: elements, in a format that only the harness reads.
    """

    channel: int
    shard: int
    bucket: int
    blob: bytes


class Outbox(Protocol):
    """The destination of a running bundle's rows. May block while the reader lags, so that memory stays bounded."""

    def put(self, row: Row) -> None:
        """Pass on one row."""
        ...


class SideStore(Protocol):
    """Complete side inputs, readable from a worker; immutable for the length of a job."""

    def chunks(self, channel: int, window: bytes) -> Iterator[bytes]:
        """Yield the encoded elements of an iterable side input in one (encoded) window; chunks hold whole elements."""
        ...

    def values(self, channel: int, window: bytes, key: bytes) -> Iterator[bytes]:
        """Yield the encoded values of one (encoded) key of a multimap side input; each chunk holds whole values."""
        ...

    def keys(self, channel: int, window: bytes) -> Iterator[bytes]:
        """Yield the encoded keys of a multimap side input in one window."""
        ...


class PublishedSides(SideStore, Protocol):
    """Side inputs of a streaming job at the head: content that is missing now may come with a later micro-batch."""

    def has_chunks(self, channel: int, window: bytes) -> bool:
        """Return whether an iterable side input has anything in one (encoded) window."""

    def has_keys(self, channel: int, window: bytes) -> bool:
        """Return whether a multimap side input has anything in one (encoded) window."""


class SideWriter(Protocol):
    """Takes a task's output to one iterable side input.

    Attributes:
        last: whether only the last firing counts in a window; see `firing`.
    """

    last: bool

    def append(self, window: bytes, chunk: bytes) -> None:
        """Add whole encoded elements to one (encoded) window."""

    def firing(self, window: bytes) -> None:
        """Begin another firing: what was added to a window before does not count any more."""

    def close(self) -> None:
        """All output is written."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """An immutable file of a task's rows of one channel, complete and durable when it is reported.

    Attributes:
        channel: the channel of all its rows.
        path: its path, relative to the job's temporary location.
        size: bytes.
    """

    channel: int
    path: str
    size: int


@dataclass(slots=True)
class Passed:
    """Statistics of the output of a stage on one channel in one task, as far as they were requested.

    Attributes:
        bytes: the size of its rows.
        counted: the number of elements whose event times are included below: those at the beginning of time are not.
        least, most: of their event times, in microseconds; beyond all times, in the wrong order, if there are none.
        total: the sum of their event times.
    """

    bytes: int = 0
    counted: int = 0
    least: int = 1 << 64
    most: int = -1 << 64
    total: int = 0

    def add(self, other: Passed) -> None:
        """Add the statistics of another task."""
        self.bytes += other.bytes
        self.counted += other.counted
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)
        self.total += other.total


class LogLine(NamedTuple):
    """A line that a task has logged.

    Attributes:
        time: microseconds since 1970.
        level: its name.
        text: of limited length.
    """

    time: int
    level: str
    text: str


@dataclass(slots=True)
class BundleReport:
    """The report of the bundles of one stage in one task, when the task succeeds.

    Attributes:
        stage: id of the stage.
        shard: Spark partition of the task.
        attempt: Spark's task attempt id.
        worker: "host:pid" of the Python worker.
        retries: earlier tries of the task.
        metrics: serialized monitoring infos; only the harness interprets them.
        bundles: bundles run.
        elements_in: elements read.
        elements_out: elements written, by channel.
        passed: their statistics, by channel; empty if they were not requested.
        seconds: wall-clock time of the task.
        side_files: side-input files it made.
        row_files: the task's rows, if they do not travel with the report (rounds of a splittable stage).
        residuals: the number of residual restrictions that it left for a next round.
        rest_bytes: the size that the output of the rest of its input may have, by that of the output so far.
        left_early: id of what the task has left while it ran (`spark.batch.localtask`); "": nothing.
        next_due: unix seconds at which the earliest of them may resume, None for now.
        warnings: Python warnings that were issued, as (category's full name, text).
        committables: committables of a bounded job, by publisher; a streaming job stores them with its commits.
        needs_teardown: its worker holds DoFns whose teardown does something.
        graceful: names of its DoFns that have `GracefulShutdown`; the worker holds these.
        sampled: it has taken samples of its outputs.
        lines: what it has logged, of limited number.
        spark_stage: the id of Spark's stage that ran the task; None: unknown.
    """

    stage: str
    shard: int
    attempt: int = 0
    worker: str = ""
    retries: int = 0
    metrics: list[bytes] = field(default_factory=list)
    bundles: int = 0
    elements_in: int = 0
    elements_out: dict[int, int] = field(default_factory=dict)
    passed: dict[int, Passed] = field(default_factory=dict)
    seconds: float = 0.0
    side_files: list[SideFile] = field(default_factory=list)
    row_files: list[RowFile] = field(default_factory=list)
    residuals: int = 0
    rest_bytes: int = 0
    left_early: str = ""
    next_due: float | None = None
    warnings: list[tuple[str, str]] = field(default_factory=list)
    committables: dict[str, list[bytes]] = field(default_factory=dict)
    needs_teardown: bool = False
    graceful: tuple[str, ...] = ()
    sampled: bool = False
    lines: list[LogLine] = field(default_factory=list)
    spark_stage: int | None = None

    def to_row(self) -> Row:
        """Return the row that carries it; it goes to shard 0, before all data."""
        return Row(REPORT, 0, -1, pickle.dumps(self, protocol=5))

    @staticmethod
    def from_blob(blob: bytes) -> BundleReport:
        """Return the report in a blob; the blob must come from our own job."""
        report = pickle.loads(blob)
        if not isinstance(report, BundleReport):
            raise TypeError(f"not a report of bundles: {type(report).__name__}")
        return report
