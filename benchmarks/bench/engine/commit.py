"""What a commit costs on a local disk, apart from writing data: the manifest, synced.

Owns a job whose shard files do not exist: a manifest only names them.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace
from pathlib import Path

from arcbeam.model.files import FileKind, Shard, ShardFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.commitlog import CommitLog, Committed
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.manifest.values import JobShape, StageShape
from bench.figures import Figure, wall_seconds

FILES = 6
"""Files of each shard."""
COMMITS = 50
_attempts = itertools.count()


def commits(shards: int, folder: Path) -> list[Figure]:
    """Each micro-batch adds a delta to every shard, and drops the oldest file."""
    log = CommitLog.open(
        FolderBlobs(folder), JobShape("plan", shards, (StageShape("count", 1, "cells"),)), Timestamp(0)
    )
    seconds = []
    for number in range(COMMITS + FILES):
        micro_batch = log.head.micro_batch + 1
        before = log.head.shards or tuple(Shard(1, shard, ()) for shard in range(shards))
        after = tuple(
            replace(one, files=(*one.files[-FILES + 1 :], _delta(micro_batch, log.epoch, one.shard))) for one in before
        )
        draft = log.draft(Timestamp(number), shards=after)

        def commit(draft=draft) -> None:  # type: ignore[no-untyped-def]
            assert isinstance(log.propose(draft), Committed)

        seconds.append(wall_seconds(commit))
    counted = seconds[FILES:]
    return [
        Figure(
            f"commit of {shards} shards, {shards * FILES} files named, median",
            statistics.median(counted) * 1e3,
            "ms",
            5,
        ),
        Figure("… the quickest", min(counted) * 1e3, "ms"),
    ]


def _delta(micro_batch: int, epoch: int, shard: int) -> ShardFile:
    name = written_name(Written(1, shard, micro_batch, epoch, f"a{next(_attempts)}", "delta"))
    return ShardFile(name, FileKind.DELTA, 100_000, 7, 3_000, 1, b"a" * 40, b"b" * 40, micro_batch, micro_batch)
