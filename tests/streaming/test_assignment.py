"""The assignment of a micro-batch to its tasks."""

from __future__ import annotations

import pickle
from dataclasses import replace
from unittest.mock import patch

import pytest

from arcbeam.model.files import FileKind, Shard, ShardFile, SideFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.streaming.assignment import ordered
from arcbeam.testing.blobs import MemoryBlobs
from tests.store.samples import version
from tests.streaming.jobs import opened, plan


def test_assignment_has_head_and_is_split_by_level() -> None:
    log = opened(MemoryBlobs())

    def shard(level: int, number: int) -> Shard:
        name = written_name(Written(level, number, 1, log.epoch, "a", "delta"))
        return Shard(level, number, (ShardFile(name, FileKind.DELTA, 9, 0, 1, 0, b"a", b"a", 1, 1),))

    log.propose(log.draft(Timestamp(1), shards=(shard(0, 0), shard(1, 0), shard(1, 1))))
    order = ordered(plan(2, 1), log.head, log.epoch)
    for level, number in ((0, 0), (0, 1), (1, 1)):
        assert order.version(level, number) == version(log.head, level, number)
    part = order.of_level(1, frozenset(), frozenset())
    assert part.shards == (shard(1, 0), shard(1, 1))
    assert part.version(1, 1) == order.version(1, 1)
    assert pickle.loads(pickle.dumps(part)) == part


def test_level_receives_files_of_its_side_inputs() -> None:
    files = tuple(SideFile(channel, 0, f"{n}", 1) for n, channel in enumerate((3, 4, 3)))
    order = replace(ordered(plan(1, 0), opened(MemoryBlobs()).head, 1), side_files=files)
    assert order.of_level(0, frozenset(), frozenset({3})).side_files == (files[0], files[2])
    assert order.of_level(0, frozenset(), frozenset()).side_files == ()


def test_micro_batch_of_another_head_is_refused() -> None:
    with pytest.raises(ValueError, match=r"micro-batch 2 .* micro-batch 1, .* micro-batch 0"):
        ordered(plan(2, 1), opened(MemoryBlobs()).head, 1)


def test_shard_is_pickled_once() -> None:
    shard = Shard(1, 2, (ShardFile("a", FileKind.DELTA, 1, 2, 3, 4, b"5", b"6", 7, 8),))
    data = pickle.dumps(shard, protocol=5)
    with patch.object(ShardFile, "__reduce__", side_effect=AssertionError):
        assert pickle.dumps(shard, protocol=5) == data
        read = pickle.loads(data)
        assert pickle.dumps(read, protocol=5) == data, "a driver passes on what a task has reported"
    assert read == shard
