"""What travels through Spark: rows of opaque blobs, and the reports that come back as rows.

Owns the row's shape, the hash that decides a key's shard, and the report's wire form. Leaf: standard library only;
knows neither Arrow nor the SDK.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from arcbeam.model.files import SideFile

REPORT = -1
"""Channel of a row whose blob is a `BundleReport`."""
RESIDUAL = -2
"""Channel of a row whose blob holds residual restrictions, to be run in the next round."""
key_hash = zlib.crc32
"""Unsigned 32-bit hash of an encoded key; its shard is `key_hash(key) % shards`.

Stable across processes, hosts and versions, because files and other tasks rely on it.
"""


def buckets_per_shard(shards: int) -> int:
    """How many buckets the keys of one shard fall into: about 4,096 in all, at least 16 each."""
    return max(16, 4096 // max(1, shards))


class Row(NamedTuple):
    """One row of the exchange.

    Attributes:
        channel: index of the channel, or REPORT, RESIDUAL.
        shard: shard that must read it, in [0, shards).
        bucket: readers see the rows of a shard in ascending order of it; all blobs of one key have the same one.
        blob: elements, in a form that only the harness reads.
    """

    channel: int
    shard: int
    bucket: int
    blob: bytes


class Outbox(Protocol):
    """Where a running bundle puts its rows. May block while the reader is behind: memory stays bounded."""

    def put(self, row: Row) -> None:
        """Hands over one row."""
        ...


class SideStore(Protocol):
    """Complete side inputs, readable from a worker; immutable for the length of a job."""

    def chunks(self, channel: int, window: bytes) -> Iterator[bytes]:
        """The encoded elements of an iterable side input in one (encoded) window; each chunk holds whole elements."""
        ...

    def values(self, channel: int, window: bytes, key: bytes) -> Iterator[bytes]:
        """The encoded values of one (encoded) key of a multimap side input; each chunk holds whole values."""
        ...

    def keys(self, channel: int, window: bytes) -> Iterator[bytes]:
        """The encoded keys of a multimap side input in one window."""
        ...


class PublishedSides(SideStore, Protocol):
    """Side inputs of a streaming job, as the head has them: what is not there now may come with a later micro-batch."""

    def has_chunks(self, channel: int, window: bytes) -> bool:
        """Whether an iterable side input has anything in one (encoded) window."""

    def has_keys(self, channel: int, window: bytes) -> bool:
        """Whether a multimap side input has anything in one (encoded) window."""


class SideWriter(Protocol):
    """Takes what a task puts into one iterable side input.

    Attributes:
        last: whether only what the last firing puts into a window counts; see `firing`.
    """

    last: bool

    def append(self, window: bytes, chunk: bytes) -> None:
        """Adds whole encoded elements to one (encoded) window."""

    def firing(self, window: bytes) -> None:
        """Another firing begins: what was added to a window is not in it any more."""

    def close(self) -> None:
        """All is there."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """An immutable file of a task's rows of one channel, complete and durable when it is reported.

    Attributes:
        channel: of all its rows.
        path: where it is, relative to the job's temporary location.
        size: bytes.
    """

    channel: int
    path: str
    size: int


@dataclass(slots=True)
class Passed:
    """What has left a stage on one channel in one task, as far as somebody has asked for it.

    Attributes:
        bytes: of its rows.
        counted: elements whose event times are in what follows: those at the beginning of time have none.
        least, most: of their event times, in microseconds; beyond all times, at the wrong end, if none was counted.
        total: the sum of their event times.
    """

    bytes: int = 0
    counted: int = 0
    least: int = 1 << 64
    most: int = -1 << 64
    total: int = 0

    def add(self, other: Passed) -> None:
        """Takes in what has left it elsewhere."""
        self.bytes += other.bytes
        self.counted += other.counted
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)
        self.total += other.total


@dataclass(slots=True)
class BundleReport:
    """What the bundles of one stage in one task come to, when the task ends well.

    Attributes:
        stage: id of the stage.
        shard: Spark partition of the task.
        attempt: Spark's task attempt id.
        worker: "host:pid" of the Python worker.
        metrics: serialized monitoring infos; opaque but for the harness.
        bundles: bundles run.
        elements_in: elements read.
        elements_out: elements written, by channel.
        passed: more about them, by channel; empty if nobody has asked.
        seconds: wall-clock of the task.
        side_files: side-input files it made.
        row_files: the task's rows, where they do not travel beside the report (rounds of a splittable stage).
        residuals: how many residual restrictions it left for a next round.
        next_due: unix seconds at which the earliest of them may resume, None for now.
        warnings: Python warnings that were issued, as (category's full name, text).
        committables: what is to be published, by publisher; of a bounded job, a streaming one keeps them with its
            commits.
        needs_teardown: its worker holds DoFns whose teardown does something.
        graceful: micro-batches of its DoFns that offer `GracefulShutdown`; the worker holds these.
    """

    stage: str
    shard: int
    attempt: int = 0
    worker: str = ""
    metrics: list[bytes] = field(default_factory=list)
    bundles: int = 0
    elements_in: int = 0
    elements_out: dict[int, int] = field(default_factory=dict)
    passed: dict[int, Passed] = field(default_factory=dict)
    seconds: float = 0.0
    side_files: list[SideFile] = field(default_factory=list)
    row_files: list[RowFile] = field(default_factory=list)
    residuals: int = 0
    next_due: float | None = None
    warnings: list[tuple[str, str]] = field(default_factory=list)
    committables: dict[str, list[bytes]] = field(default_factory=dict)
    needs_teardown: bool = False
    graceful: tuple[str, ...] = ()

    def to_row(self) -> Row:
        """The row that carries it; goes to shard 0, before all data."""
        return Row(REPORT, 0, -1, pickle.dumps(self, protocol=5))

    @staticmethod
    def from_blob(blob: bytes) -> BundleReport:
        """Reads a report back; the blob must come from our own job."""
        report = pickle.loads(blob)
        if not isinstance(report, BundleReport):
            raise TypeError(f"not a report of bundles: {type(report).__name__}")
        return report
