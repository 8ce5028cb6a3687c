"""A host in memory reads the same as one with LMDB, for every version and in any order of versions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from arcbeam.model.files import Shard
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.errors import DecidedCommitError
from arcbeam.store.log.commitlog import Committed
from arcbeam.store.manifest.names import Written
from arcbeam.store.shards.cache import HostCache
from arcbeam.store.shards.compaction import compact, worth_merging
from arcbeam.testing.blobs import MemoryBlobs
from simulator.playing.hosts import MemoryHost
from tests.store.samples import opened, version


@pytest.mark.parametrize("seed", range(4))
def test_both_hosts_read_the_same(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    log = opened(MemoryBlobs())
    hosts = [
        (MemoryHost(tmp_path / "scratch"), HostCache(tmp_path / f"host-{number}", map_bytes=1 << 20))
        for number in (0, 1)
    ]
    for micro_batch in range(1, 25):
        at = version(log.head, 1, 0)
        memory, cache = hosts[chance.randrange(2)]
        views = [memory.view(log.blobs, at), cache.view(log.blobs, at)]
        assert [list(view.scan(b"")) for view in views].count(list(views[0].scan(b""))) == 2
        views[0].put(b"step", b"%d" % micro_batch)
        for _ in range(3):
            key = b"k%d" % chance.randrange(12)
            if chance.random() < 0.4:
                views[0].delete(key)
            else:
                views[0].put(key, b"%d" % micro_batch)
        delta = memory.publish(
            log.blobs, at, Written(1, 0, micro_batch, log.epoch, "a", "delta"), views[0], micro_batch
        )
        for view in views:
            view.close()
        files = at.files
        if (first := worth_merging(files)) is not None:
            files = compact(log.blobs, tmp_path, files, first, Written(1, 0, micro_batch, log.epoch, "m", "snapshot"))
        files = files if delta is None else (*files, delta)
        assert isinstance(log.propose(log.draft(Timestamp(micro_batch), shards=(Shard(1, 0, files),))), Committed)
    for memory, cache in hosts:
        for host in (memory, cache):
            host.view(log.blobs, version(log.head, 1, 0)).close()
            with pytest.raises(DecidedCommitError):
                host.view(log.blobs, at)
