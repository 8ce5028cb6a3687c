"""A driver that is killed before any of its calls to the store: a resume continues from the last commit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from arcbeam.model.files import Shard
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.commitlog import CommitLog, Committed
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest.names import Written
from arcbeam.store.shards.cache import HostCache
from arcbeam.store.shards.compaction import compact, worth_merging
from arcbeam.testing import UnreliableBlobs
from tests.store.samples import opened, read_head, version


def run(log: CommitLog, cache: HostCache, scratch: Path, micro_batches: int) -> None:
    """Run micro-batches that count up to their own number in one shard, compact it, and sweep."""
    for _ in range(micro_batches):
        head = log.head
        micro_batch = head.micro_batch + 1
        at = version(head, 1, 0)
        view = cache.view(log.blobs, at)
        count = int(view.get(b"count") or b"0")
        assert count == sum(1 for _ in view.scan(b"n", b"o"))
        view.put(b"count", b"%d" % (count + 1))
        view.put(b"n%06d" % micro_batch, b"x" * 100)
        delta = cache.publish(log.blobs, at, Written(1, 0, micro_batch, log.epoch, "delta", "delta"), view, micro_batch)
        view.close()
        assert delta is not None
        files = at.files
        first = worth_merging(files)
        if first is not None:
            merged = Written(1, 0, micro_batch, log.epoch, "merged", "snapshot")
            files = compact(log.blobs, scratch, files, first, merged)
        outcome = log.propose(log.draft(Timestamp(micro_batch), shards=(Shard(1, 0, (*files, delta)),)))
        assert isinstance(outcome, Committed)
        Sweeper(log, keep=1).sweep()


@pytest.mark.contract("STORE-01", "STORE-02")
def test_killed_driver_leaves_complete_micro_batch(tmp_path: Path) -> None:
    """SUBTLE: the job resumes after each kill, so each driver finds the leftovers of the one before."""
    inner = FolderBlobs(tmp_path / "job", sync=False)
    micro_batches = 0
    for calls in [*range(0, 90, 6), 150]:
        pid = os.fork()
        if not pid:
            blobs = UnreliableBlobs(inner, 1)
            blobs.interrupt(calls, lambda: os.kill(os.getpid(), signal.SIGKILL))
            try:
                run(opened(blobs), HostCache(tmp_path / "cache"), tmp_path, 40)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        head = read_head(inner)
        if head is None:
            continue
        assert head.micro_batch >= micro_batches
        micro_batches = head.micro_batch
        for cache in (HostCache(tmp_path / "cache"), HostCache(tmp_path / f"fresh-{calls}")):
            view = cache.view(inner, version(head, 1, 0))
            assert int(view.get(b"count") or b"0") == sum(1 for _ in view.scan(b"n", b"o"))
            view.close()
    assert micro_batches > 15
