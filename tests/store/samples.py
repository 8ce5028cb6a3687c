"""Manifests for tests."""

from __future__ import annotations

from itertools import count

from arcbeam.model.files import FileKind, ShardFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.log.chain import UnreadableHead, read_newest
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.manifest.values import JobShape, Manifest, ShardVersion, StageShape

SHAPE = JobShape("plan", 4, (StageShape("count", 1, "cells"),))
_attempts = count()


def opened(blobs: DurableBlobs, now: int = 0, **options: object) -> CommitLog:
    """Return a driver's hold on the job. It may discard what is later than a savepoint."""
    return CommitLog.open(blobs, SHAPE, Timestamp(now), **{"discard": True, **options})  # type: ignore[arg-type]


def version(head: Manifest, level: int, shard: int) -> ShardVersion:
    """Return a shard's version at a manifest."""
    files = next((of.files for of in head.shards if (of.level, of.shard) == (level, shard)), ())
    return ShardVersion(head.job, level, shard, head.micro_batch, head.abandoned, head.openings, files)


def read_head(blobs: DurableBlobs) -> Manifest | None:
    """Return the newest manifest; None if there is none. Raises the error of an unreadable one."""
    newest = read_newest(blobs)
    if isinstance(newest, UnreadableHead):
        raise newest.error
    return newest


def delta(
    micro_batch: int, epoch: int, *, level: int = 1, shard: int = 0, first_micro_batch: int | None = None
) -> ShardFile:
    """Return a delta that was not written."""
    name = written_name(Written(level, shard, micro_batch, epoch, f"a{next(_attempts)}", "delta"))
    return ShardFile(
        name,
        FileKind.DELTA,
        100,
        7,
        3,
        1,
        b"a",
        b"b",
        micro_batch if first_micro_batch is None else first_micro_batch,
        micro_batch,
    )
