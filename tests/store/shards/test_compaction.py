"""Merging the files of a shard does not change what is read."""

from __future__ import annotations

import itertools
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from obstore.store import MemoryStore, S3Store

from arcbeam.model.files import FileKind, ShardFile
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.blobs.objects import ObjectBlobs
from arcbeam.store.manifest.names import Written, parse_written
from arcbeam.store.shards.compaction import compact, merged, publish, scan, worth_merging
from arcbeam.store.shards.shardfile import Block, Entry, in_blocks
from tests.store.samples import delta

KEYS = st.sampled_from([bytes([i]) * n for i in range(6) for n in (1, 2)])
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=4), max_size=6)


class Compacting(RuleBasedStateMachine):
    """A shard whose files are merged at random; the model is a dict."""

    def __init__(self, store: Any = None) -> None:
        super().__init__()
        self.blobs = ObjectBlobs(store or MemoryStore(), "memory://")
        self.scratch = tempfile.TemporaryDirectory()
        self.files: tuple[ShardFile, ...] = ()
        self.model: dict[bytes, bytes] = {}
        self.micro_batch = 0

    def teardown(self) -> None:
        self.scratch.cleanup()

    def name(self, kind: str) -> Written:
        return Written(1, 0, self.micro_batch, 1, f"a{self.micro_batch}.{kind}", kind)

    @rule(changes=CHANGES)
    def commit(self, changes: dict[bytes, bytes | None]) -> None:
        self.micro_batch += 1
        file = publish(
            self.blobs,
            Path(self.scratch.name),
            self.name("delta"),
            in_blocks(sorted(changes.items())),
            first_micro_batch=self.micro_batch,
            last_micro_batch=self.micro_batch,
        )
        self.files += (file,)
        for key, value in changes.items():
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value

    @rule(first=st.integers(0, 20))
    def merge(self, first: int) -> None:
        if first >= len(self.files):
            return
        self.micro_batch += 1
        before = self.files
        self.files = compact(self.blobs, Path(self.scratch.name), before, first, self.name("delta"))
        assert self.files[:-1] == before[:first]
        assert self.files[-1].kind == (FileKind.DELTA if first else FileKind.SNAPSHOT)
        assert self.files[-1].last_micro_batch == before[-1].last_micro_batch

    @rule(start=KEYS, end=st.none() | KEYS)
    def read(self, start: bytes, end: bytes | None) -> None:
        expected = sorted((k, v) for k, v in self.model.items() if start <= k and (end is None or k < end))
        assert list(scan(self.blobs, self.files, start, end)) == expected

    @invariant()
    def all_is_there(self) -> None:
        assert list(scan(self.blobs, self.files)) == sorted(self.model.items())


Compacting.TestCase.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
test_merging_changes_nothing = pytest.mark.contract("STORE-06")(Compacting.TestCase)


@pytest.mark.contract("STORE-07")
def test_merge_on_s3_changes_no_entry(s3: Callable[[], S3Store]) -> None:
    few = settings(max_examples=2, stateful_step_count=12, deadline=None)
    run_state_machine_as_test(lambda: Compacting(s3()), settings=few)


def test_key_deleted_above_snapshot_stays_deleted(memory: DurableBlobs, tmp_path: Path) -> None:
    micro_batches = itertools.count(1)

    def put(kind: str, entries: list[tuple[bytes, bytes | None]]) -> ShardFile:
        micro_batch = next(micro_batches)
        written = Written(1, 0, micro_batch, 1, "a", kind)
        return publish(
            memory, tmp_path, written, in_blocks(entries), first_micro_batch=micro_batch, last_micro_batch=micro_batch
        )

    files = (put("snapshot", [(b"k", b"old")]), put("delta", [(b"k", None)]), put("delta", [(b"l", b"1")]))
    upper = compact(memory, tmp_path, files, 1, Written(1, 0, 9, 1, "a", "delta"))
    assert [file.tombstones for file in upper] == [0, 1], "kept: the snapshot below has the key"
    assert list(scan(memory, upper)) == [(b"l", b"1")]
    whole = compact(memory, tmp_path, upper, 0, Written(1, 0, 10, 1, "a", "delta"))
    assert [(file.kind, file.entries, file.tombstones) for file in whole] == [(FileKind.SNAPSHOT, 1, 0)]
    assert (whole[0].first_micro_batch, whole[0].last_micro_batch) == (0, 3)
    written = parse_written(whole[0].name)
    assert written is not None
    assert (written.kind, written.micro_batch) == ("snapshot", 10)


def test_newest_entry_wins() -> None:
    sources: list[list[Entry]] = [[(b"a", b"1"), (b"b", b"1")], [(b"a", None)], [(b"b", b"3"), (b"c", b"3")]]
    assert list(entries_of(sources, bottom=False)) == [(b"a", None), (b"b", b"3"), (b"c", b"3")]
    assert list(entries_of(sources, bottom=True)) == [(b"b", b"3"), (b"c", b"3")]
    assert list(entries_of(sources[1:2], bottom=True)) == []


def entries_of(sources: list[list[Entry]], *, bottom: bool, cut: int = 1) -> Iterator[Entry]:
    """Merge sources in blocks of a given number of entries."""
    blocks = merged([blocks_of(source, cut) for source in sources], bottom=bottom)
    return (entry for keys, values in blocks for entry in zip(keys, values, strict=True))


def blocks_of(entries: list[Entry], cut: int) -> Iterator[Block]:
    for start in range(0, len(entries), cut):
        part = entries[start : start + cut]
        yield [key for key, _ in part], [value for _, value in part]


@given(
    st.lists(st.dictionaries(st.binary(max_size=2), st.none() | st.binary(max_size=1), max_size=30), max_size=5),
    st.booleans(),
    st.integers(1, 7),
)
def test_blocks_of_any_alignment_are_merged(sources: list[dict[bytes, bytes | None]], bottom: bool, cut: int) -> None:
    expected: dict[bytes, bytes | None] = {}
    for source in sources:
        expected.update(source)
    found = list(entries_of([sorted(source.items()) for source in sources], bottom=bottom, cut=cut))
    assert found == [entry for entry in sorted(expected.items()) if entry[1] is not None or not bottom]


def test_merge_holds_one_block_per_file(tmp_path: Path) -> None:
    blobs, micro_batches, value = FolderBlobs(tmp_path / "job", sync=False), range(1, 6), bytes(1_000)
    files = tuple(
        publish(
            blobs,
            tmp_path / "scratch",
            Written(1, 0, micro_batch, 1, "a", "delta"),
            in_blocks((b"%08d" % i, value) for i in range(micro_batch, 20_000, 5)),
            first_micro_batch=micro_batch,
            last_micro_batch=micro_batch,
        )
        for micro_batch in micro_batches
    )
    tracemalloc.start()
    try:
        whole = compact(blobs, tmp_path / "scratch", files, 0, Written(1, 0, 9, 1, "a", "delta"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (whole[0].entries, whole[0].size > 19_000_000) == (19_999, True)
    # Some megabytes of each file are read ahead.
    assert peak < 35_000_000


def sized(*sizes: int) -> list[ShardFile]:
    from dataclasses import replace

    return [replace(delta(i + 1, 1), size=size) for i, size in enumerate(sizes)]


def test_files_of_similar_size_are_merged() -> None:
    assert worth_merging([]) is None
    assert worth_merging(sized(10, 10, 10)) is None
    assert worth_merging(sized(10, 10, 10, 10)) == 0
    assert worth_merging(sized(1000, 10, 10, 10, 10)) == 1
    assert worth_merging(sized(80, 10, 10, 10, 10)) == 0, "newer files have half its size"
    assert worth_merging(sized(1000, 100, 9, 1)) is None


@pytest.mark.contract("STORE-06")
@pytest.mark.parametrize("size", [lambda i: 100, lambda i: 1 + 997 * i % 1000, lambda i: 10_000 - i, lambda i: 1 + i])
def test_merging_rewrites_little(size: object) -> None:
    sizes: list[int] = []
    fresh = rewritten = 0
    for i in range(2_000):
        new = size(i)  # type: ignore[operator]
        fresh += new
        sizes.append(new)
        first = worth_merging(sized(*sizes))
        if first is not None:
            rewritten += sum(sizes[first:])
            sizes[first:] = [sum(sizes[first:])]
        assert len(sizes) <= 16
    assert rewritten < 16 * fresh
