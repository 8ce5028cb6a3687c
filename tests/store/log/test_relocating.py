"""State of a stage whose level changes: it exists at the new level only, with any copies on hosts."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from arcbeam.model.commits import CommitMode
from arcbeam.model.files import Shard, ShardFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import IncompatibleStateError, MissingFileError
from arcbeam.store.blobs.objects import ObjectBlobs
from arcbeam.store.log.chain import read_manifest
from arcbeam.store.log.commitlog import CommitLog, Committed
from arcbeam.store.log.inspection import inspect
from arcbeam.store.log.relocating import StageMove, moves, relocated
from arcbeam.store.log.savepoints import pinned
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest.names import Written
from arcbeam.store.manifest.values import JobShape, Manifest, StageShape
from arcbeam.store.shards.cache import HostCache
from arcbeam.store.shards.compaction import compact
from tests.store.samples import version

pytestmark = pytest.mark.contract("STORE-05")

NUMBERS = {"a": 1, "b": 2, "c": 0x0301, "none": 9}
FORM = b"\x01"
SHARDS = 2
Levels = Mapping[str, int]


def shape(levels: Levels) -> JobShape:
    return JobShape("p", SHARDS, tuple(StageShape(s, n, "" if s == "none" else "cells") for s, n in levels.items()))


def row(stage: str, kind: int, key: bytes) -> bytes:
    return bytes((kind,)) + NUMBERS[stage].to_bytes(2, "big") + key


class Job:
    """A job whose stages have rows, and the expected rows."""

    def __init__(self, blobs: DurableBlobs, root: Path, levels: Levels) -> None:
        self.blobs, self.root = blobs, root
        self.hosts = [HostCache(root / f"host{n}") for n in range(2)]
        self.model: dict[tuple[str, int], dict[bytes, bytes]] = {}
        self.levels = dict(levels)
        self.log = self.opened(levels)

    def opened(self, levels: Levels, savepoint: str = "") -> CommitLog:
        moved: tuple[StageMove, ...] = ()

        def adapted(origin: Manifest) -> Manifest:
            nonlocal moved
            moved = moves(origin.shape, shape(levels), NUMBERS)
            return origin

        def filled(opening: Manifest) -> Manifest:
            return relocated(self.blobs, opening, moved, self.root / "scratch")

        wanted = shape(levels)
        log = CommitLog.open(
            self.blobs, wanted, Timestamp(0), savepoint=savepoint, force=True, discard=True, adapt=adapted, fill=filled
        )
        self.levels, self.log = dict(levels), log
        return log

    def micro_batch(
        self, changes: Mapping[tuple[str, int, bytes, int], bytes | None], host: int = 0, name: str = ""
    ) -> None:
        """Commit a micro-batch that changes rows; with a host, bring its copies to the head."""
        head, cache = self.log.head, self.hosts[host]
        shards = {(of.level, of.shard): of.files for of in head.shards}
        places = {(self.levels[stage], shard) for stage, _, _, shard in changes}
        for place in sorted(places):
            at = version(head, *place)
            view = cache.view(self.blobs, at)
            if not view.get(FORM):
                view.put(FORM, b"1")
            for (stage, kind, key, shard), value in changes.items():
                if (self.levels[stage], shard) != place:
                    continue
                of = self.model.setdefault((stage, shard), {})
                if value is None:
                    view.delete(row(stage, kind, key))
                    of.pop(row(stage, kind, key), None)
                else:
                    view.put(row(stage, kind, key), value)
                    of[row(stage, kind, key)] = value
            file = cache.publish(self.blobs, at, self.named(place), view, head.micro_batch + 1)
            view.close()
            if file:
                shards[place] = (*at.files, file)
        self.propose(shards, name)

    def merge(self) -> None:
        """Commit a micro-batch that merges each shard into one file."""
        shards = {(of.level, of.shard): of.files for of in self.log.head.shards}
        for place, files in shards.items():
            shards[place] = compact(self.blobs, self.root / "scratch", files, 0, self.named(place))
        self.propose(shards)

    def propose(self, shards: Mapping[tuple[int, int], tuple[ShardFile, ...]], name: str = "") -> None:
        draft = self.log.draft(Timestamp(0), shards=tuple(Shard(*at, files) for at, files in sorted(shards.items())))
        assert isinstance(self.log.propose(pinned(draft, name) if name else draft), Committed)

    def named(self, place: tuple[int, int]) -> Written:
        return Written(*place, self.log.head.micro_batch + 1, self.log.epoch, "x", "delta")

    def check(self) -> None:
        """Check that every host reads the rows of every stage, at the right level only."""
        head = self.log.head
        deepest = max(self.levels.values())
        assert all(of.level <= deepest for of in head.shards) or not any(self.model.values())
        for cache in self.hosts:
            for level in range(deepest + 1):
                for shard in range(SHARDS):
                    view = cache.view(self.blobs, version(head, level, shard))
                    found = [entry for entry in view.scan(b"") if entry[0] != FORM]
                    form = view.get(FORM)
                    view.close()
                    here = [stage for stage, at in self.levels.items() if at == level]
                    wanted = [entry for stage in here for entry in self.model.get((stage, shard), {}).items()]
                    assert found == sorted(wanted)
                    assert form == b"1" or not wanted


KEYS = st.sampled_from([b"", b"k", b"k" * 500, b"z"])
CHANGES = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.sampled_from([0x10, 0x20, 0x60]), KEYS, st.integers(0, SHARDS - 1)),
    st.none() | st.sampled_from([b"", b"v", b"w" * 2_000]),
    max_size=6,
)
LEVELS = st.fixed_dictionaries({stage: st.integers(0, 3) for stage in "abc"})
ACTS = st.one_of(
    st.tuples(st.just("step"), CHANGES, st.integers(0, 1)),
    st.tuples(st.just("step"), CHANGES, st.integers(0, 1)),
    st.tuples(st.just("move"), LEVELS, st.booleans()),
    st.tuples(st.just("merge"), st.none(), st.none()),
)


@settings(max_examples=40, deadline=None)
@given(LEVELS, st.lists(ACTS, max_size=8))
def test_state_follows_its_stage(levels: Levels, acts: list[tuple[str, object, object]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(ObjectBlobs(MemoryStore(), "memory://"), Path(folder), levels)
        for act, what, how in acts:
            if act == "step":
                job.micro_batch(what, how)  # type: ignore[arg-type]
            elif act == "move":
                job.opened(what)  # type: ignore[arg-type]
                if how:
                    job.check()
            elif job.log.head.shards:
                job.merge()
        job.check()


def begun(blobs: DurableBlobs, root: Path) -> Job:
    job = Job(blobs, root, {"a": 1, "b": 1, "c": 3})
    job.micro_batch({("a", 0x10, b"k", 0): b"1", ("b", 0x10, b"k", 0): b"2", ("c", 0x10, b"k", 1): b"3"})
    job.check()
    return job


def test_removed_level_does_not_return(blobs: DurableBlobs, tmp_path: Path) -> None:
    job = begun(blobs, tmp_path)
    job.opened({"a": 1, "b": 1, "c": 2})
    assert [of.level for of in job.log.head.shards] == [1, 2]
    job.micro_batch({("c", 0x10, b"k", 1): None, ("c", 0x10, b"other", 1): b"4"})
    # The copies of level 3 are older, and have the deleted key.
    job.opened({"a": 1, "b": 1, "c": 3})
    job.check()
    assert inspect(blobs, check=True).problems == ()


def test_savepoint_resumes_with_state_at_other_level(blobs: DurableBlobs, tmp_path: Path) -> None:
    job = begun(blobs, tmp_path)
    job.micro_batch({("a", 0x10, b"k", 0): b"10"}, name="safe")
    then = {place: dict(rows) for place, rows in job.model.items()}
    job.micro_batch({("a", 0x10, b"k", 0): b"11"})
    job.opened({"a": 2, "b": 1, "c": 1})
    job.micro_batch({("a", 0x10, b"k", 0): b"12"})
    Sweeper(job.log, keep=1).sweep()
    job.check()
    job.opened({"a": 4, "b": 1, "c": 3}, savepoint="safe")
    job.model = then
    job.check()


def test_files_of_lost_opening_are_swept(memory: DurableBlobs, tmp_path: Path) -> None:
    job = begun(memory, tmp_path)
    before = job.log
    filled: list[Manifest] = []

    def fill(opening: Manifest) -> Manifest:
        full = relocated(memory, opening, moves(shape(job.levels), wanted, NUMBERS), tmp_path / "scratch")
        if not filled:
            # The earlier driver commits a micro-batch first.
            assert isinstance(before.propose(before.draft(Timestamp(0))), Committed)
        filled.append(full)
        return full

    wanted = shape({"a": 2, "b": 1, "c": 3})
    log = CommitLog.open(memory, wanted, Timestamp(0), fill=fill)
    assert [opening.micro_batch for opening in filled] == [2, 3]
    lost, kept = (set(of.file_names()) - set(before.head.file_names()) for of in filled)
    assert set(log.head.file_names()) >= kept
    job.log, job.levels = log, {"a": 2, "b": 1, "c": 3}
    job.check()
    job.micro_batch({})
    assert lost <= set(Sweeper(log).sweep().files)
    for name in lost:
        with pytest.raises(MissingFileError):
            memory.get(name)
    job.check()


def test_ended_job_keeps_levels_of_state(memory: DurableBlobs, tmp_path: Path) -> None:
    job = begun(memory, tmp_path)
    job.log.propose(replace(job.log.draft(Timestamp(0)), mode=CommitMode.DRAINED))
    job.opened({"a": 0, "b": 1, "c": 2})
    job.check()


def test_unmoved_state_is_not_written(memory: DurableBlobs, tmp_path: Path) -> None:
    job = begun(memory, tmp_path)
    files = set(job.log.head.file_names())
    assert set(job.opened({"a": 1, "b": 1, "c": 3, "none": 2}).head.file_names()) == files
    assert set(job.opened({"a": 1, "b": 1, "c": 3, "none": 1}).head.file_names()) == files, "it has no state"
    assert read_manifest(memory, job.log.head.micro_batch).shape == shape({"a": 1, "b": 1, "c": 3, "none": 1})


def test_rows_of_two_formats_are_not_merged(memory: DurableBlobs, tmp_path: Path) -> None:
    job = begun(memory, tmp_path)
    job.micro_batch({("c", 0x10, b"k", 0): b"5"})
    at = version(job.log.head, 3, 0)
    view = job.hosts[0].view(memory, at)
    view.put(FORM, b"2")
    file = job.hosts[0].publish(memory, at, job.named((3, 0)), view, job.log.head.micro_batch + 1)
    view.close()
    assert file
    shards = {(of.level, of.shard): of.files for of in job.log.head.shards}
    job.propose({**shards, (3, 0): (*at.files, file)})
    with pytest.raises(IncompatibleStateError, match=r"level 3, .* level 1:"):
        job.opened({"a": 1, "b": 1, "c": 1})
