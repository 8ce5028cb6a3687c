"""What the tasks of a step are given."""

from __future__ import annotations

import pickle

import pytest

from arcbeam.model.files import FileKind, Shard, ShardFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.steps.order import ordered
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.testing.blobs import MemoryBlobs
from tests.steps.jobs import opened, plan


def test_an_order_has_what_the_head_has_and_a_task_gets_its_part() -> None:
    log = opened(MemoryBlobs())

    def shard(level: int, number: int) -> Shard:
        name = written_name(Written(level, number, 1, log.epoch, "a", "delta"))
        return Shard(level, number, (ShardFile(name, FileKind.DELTA, 9, 0, 1, 0, b"a", b"a", 1, 1),))

    log.propose(log.draft(Timestamp(1), shards=(shard(0, 0), shard(1, 0), shard(1, 1))))
    order = ordered(plan(2, 1), log.head, log.epoch)
    for level, number in ((0, 0), (0, 1), (1, 1)):
        assert order.version(level, number) == log.head.version(level, number)
    part = order.of_task(1, range(1, 2))
    assert part.shards == (shard(1, 1),)
    assert part.version(1, 1) == order.version(1, 1)
    assert pickle.loads(pickle.dumps(part)) == part


def test_a_step_that_stands_on_another_head_is_refused() -> None:
    with pytest.raises(ValueError, match="step 2 stands on step 1, and the head is step 0"):
        ordered(plan(2, 1), opened(MemoryBlobs()).head, 1)
