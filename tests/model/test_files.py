"""The sums and pickles of files that tasks report."""

from __future__ import annotations

import pickle

from arcbeam.model.files import NO_FILES, FileKind, Owned, Shard, ShardFile, ShardSums, SideFile, TaskFiles


def file(name: str, size: int, entries: int, *owned: Owned) -> ShardFile:
    return ShardFile(name, FileKind.DELTA, size, 1, entries, 0, b"a", b"z", 3, 4, owned)


def shard() -> Shard:
    first = file("one", 100, 7, Owned(b"aa", 3, 30), Owned(b"bb", 4, 40))
    return Shard(1, 2, (first, file("two", 50, 2, Owned(b"bb", 2, 20))))


def test_sums_add_rows_of_each_owner() -> None:
    assert shard().sums == ShardSums(150, 9, (Owned(b"aa", 3, 30), Owned(b"bb", 6, 60)))
    assert Shard(0, 0, ()).sums == ShardSums(0, 0, ())


def test_sums_are_computed_once() -> None:
    known = shard()
    assert known.sums is known.sums


def test_computed_sums_and_pickle_do_not_change_equality() -> None:
    known = shard()
    assert known.sums.size == 150
    assert pickle.loads(pickle.dumps(known)) == known == shard()
    assert repr(known) == repr(shard())


def test_pickle_of_unpickled_shard_is_the_same_bytes() -> None:
    data = pickle.dumps(shard())
    assert pickle.dumps(pickle.loads(data)) == data


def test_task_without_files_reports_none() -> None:
    assert TaskFiles() == NO_FILES
    assert TaskFiles(sides=(SideFile(1, -1, "side", 5),)) != NO_FILES
    assert SideFile(1, -1, "side", 5) == SideFile(1, -1, "side", 5, crc=None, until=None, micro_batch=0)
