"""This host's copies of shards: at any version of a copy, a read returns the requested version."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from obstore.store import MemoryStore, S3Store

from arcbeam.model.files import FileKind
from arcbeam.store.blobs import hostcopies
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import (
    DamagedFileError,
    DecidedCommitError,
    IndeterminateError,
    MissingFileError,
    StoreError,
)
from arcbeam.store.blobs.objects import ObjectBlobs
from arcbeam.store.manifest.names import Written
from arcbeam.store.manifest.values import Abandoned, Opening, ShardVersion
from arcbeam.store.shards import cache as cache_module
from arcbeam.store.shards import space
from arcbeam.store.shards.cache import HostCache
from arcbeam.store.shards.compaction import compact
from arcbeam.testing import Faults, UnreliableBlobs

_P = b"p" * 480
_TAILS = (b"", b"\0", b"\1", b"\1x", b"x", _P, _P + b"1", _P + b"2", _P + _P)
KEYS = st.sampled_from(
    [
        b"",
        b"a",
        b"o" * 600,
        b"p",
        _P[:-1],
        _P[:-1] + b"q",
        b"q",
        b"\xff" * 480,
        b"\xff" * 481,
        *(_P + t for t in _TAILS),
    ]
)
CHANGES = st.dictionaries(KEYS, st.none() | st.sampled_from([b"", b"v", b"w" * 5_000]), max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(CHANGES, max_size=4), KEYS, st.none() | KEYS)
def test_keys_of_any_length_are_ordered(
    changes: list[dict[bytes, bytes | None]], start: bytes, end: bytes | None
) -> None:
    model: dict[bytes, bytes] = {}
    with tempfile.TemporaryDirectory() as folder, lmdb.open(folder, sync=False) as env:
        for change in changes:
            with env.begin(write=True) as txn:
                keys = sorted(change)
                space.write(txn, keys, [change[key] for key in keys], append=False)
            for key, value in change.items():
                model.pop(key, None)
                if value is not None:
                    model[key] = value
        with env.begin() as txn:
            assert list(space.scan(txn, b"", None)) == sorted(model.items())
            expected = sorted((k, v) for k, v in model.items() if start <= k and (end is None or k < end))
            assert list(space.scan(txn, start, end)) == expected
            for key in (start, *model):
                assert space.get(txn, key) == model.get(key)
        with env.begin(write=True) as txn:
            space.write(txn, sorted(model), [None] * len(model), append=False)
            with txn.cursor() as cursor:
                left = list(cursor.iternext(values=False))
            assert [key for key in left if not bytes(key).startswith(space.META)] == [], "no space is left"


class Host:
    """A job with one shard: its driver's view, and the expected content after every micro-batch."""

    def __init__(self, blobs: DurableBlobs, root: Path) -> None:
        self.blobs, self.root = blobs, root
        self.version = ShardVersion("job", 1, 0, 0, (), (Opening(0, "first"),), ())
        self.model: dict[bytes, bytes] = {}

    def written(self, kind: str = "delta") -> Written:
        return Written(1, 0, self.version.micro_batch + 1, 1, f"{kind[0]}.x", kind)

    def commit(self, cache: HostCache, changes: dict[bytes, bytes | None]) -> None:
        """Run a micro-batch on a host."""
        view = cache.view(self.blobs, self.version)
        for key, value in changes.items():
            if value is None:
                view.delete(key)
                self.model.pop(key, None)
            else:
                view.put(key, value)
                self.model[key] = value
        micro_batch = self.version.micro_batch + 1
        file = cache.publish(self.blobs, self.version, self.written(), view, micro_batch)
        view.close()
        files = self.version.files if file is None else (*self.version.files, file)
        self.version = replace(self.version, micro_batch=micro_batch, files=files)

    def compact(self, first: int) -> None:
        files = compact(self.blobs, self.root / "scratch", self.version.files, first, self.written("snapshot"))
        self.version = replace(self.version, micro_batch=self.version.micro_batch + 1, files=files)

    def read(self, cache: HostCache) -> list[tuple[bytes, bytes]]:
        view = cache.view(self.blobs, self.version)
        try:
            return list(view.scan(b""))
        finally:
            view.close()


class Hosts(RuleBasedStateMachine):
    """A shard that moves between two hosts, is compacted, and goes back to a savepoint."""

    def __init__(self, store: Any = None) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        root = Path(self.folder.name)
        self.caches = [HostCache(root / "a", map_bytes=1 << 16), HostCache(root / "b", map_bytes=1 << 16)]
        self.job = Host(ObjectBlobs(store or MemoryStore(), "memory://"), root)
        self.savepoint = (self.job.version, dict(self.job.model))

    def teardown(self) -> None:
        for cache in self.caches:
            cache.forget("job")
        self.folder.cleanup()

    @rule(host=st.integers(0, 1), changes=CHANGES)
    def micro_batch(self, host: int, changes: dict[bytes, bytes | None]) -> None:
        self.job.commit(self.caches[host], changes)

    @rule(host=st.integers(0, 1), changes=CHANGES)
    def attempt_that_does_not_count(self, host: int, changes: dict[bytes, bytes | None]) -> None:
        before = (self.job.version, dict(self.job.model))
        self.job.commit(self.caches[host], changes)
        self.job.version, self.job.model = before

    @rule(first=st.integers(0, 5))
    def compaction(self, first: int) -> None:
        if first < len(self.job.version.files):
            self.job.compact(first)

    @rule(host=st.integers(0, 1))
    def read(self, host: int) -> None:
        assert self.job.read(self.caches[host]) == sorted(self.job.model.items())

    @rule(host=st.integers(0, 1), seed=st.integers(0, 99))
    def read_that_breaks_off(self, host: int, seed: int) -> None:
        blobs, self.job.blobs = self.job.blobs, UnreliableBlobs(self.job.blobs, seed, Faults(unread=0.3))
        try:
            assert self.job.read(self.caches[host]) == sorted(self.job.model.items())
        except StoreError:
            pass
        finally:
            self.job.blobs = blobs

    @rule()
    def save(self) -> None:
        self.savepoint = (self.job.version, dict(self.job.model))

    @precondition(lambda self: self.job.version.micro_batch > self.savepoint[0].micro_batch)
    @rule()
    def resume(self) -> None:
        saved, head = self.savepoint[0], self.job.version
        gone = (*saved.abandoned, Abandoned(saved.micro_batch + 1, head.micro_batch))
        openings = (*saved.openings, Opening(head.micro_batch + 1, f"opening {next(_openings)}"))
        self.job.version = replace(saved, micro_batch=head.micro_batch + 1, abandoned=gone, openings=openings)
        self.job.model = dict(self.savepoint[1])

    @rule()
    def restore(self) -> None:
        micro_batch = self.job.version.micro_batch + 1
        opening = Opening(micro_batch, f"opening {next(_openings)}")
        self.job.version = replace(
            self.job.version, micro_batch=micro_batch, openings=(*self.job.version.openings, opening)
        )

    @rule()
    def go_on_in_a_copy_of_the_folder(self) -> None:
        """Restore the folder to the savepoint: a backup, or a copy in which another driver runs."""
        self.job.version, self.job.model = self.savepoint[0], dict(self.savepoint[1])
        self.restore()


_openings = count(1)
Hosts.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
test_a_shard_moves_between_hosts = pytest.mark.contract("STORE-02", "STORE-05", "STORE-06")(Hosts.TestCase)


@pytest.mark.contract("STORE-07")
def test_shard_on_s3_moves_between_hosts(s3: Callable[[], S3Store]) -> None:
    few = settings(max_examples=3, stateful_step_count=12, deadline=None)
    run_state_machine_as_test(lambda: Hosts(s3()), settings=few)


@pytest.fixture
def cache(tmp_path: Path) -> HostCache:
    return HostCache(tmp_path / "cache")


@pytest.fixture
def job(memory: DurableBlobs, tmp_path: Path) -> Host:
    return Host(memory, tmp_path)


def test_local_delta_is_not_fetched(cache: HostCache, job: Host, tmp_path: Path) -> None:
    job.commit(cache, {b"a": b"1"})
    job.commit(cache, {b"b": b"2"})
    job.blobs = UnreliableBlobs(job.blobs, 1, Faults(unread=1.0))
    assert job.read(cache) == [(b"a", b"1"), (b"b", b"2")]
    with pytest.raises(StoreError, match="no answer"):
        job.read(HostCache(tmp_path / "other"))


@pytest.mark.contract("STORE-05")
@pytest.mark.parametrize("memory", ["memory"], indirect=True)
@pytest.mark.parametrize("at", [3, 40, 5_000_000, -3, None])
def test_damaged_local_delta_is_fetched(cache: HostCache, job: Host, tmp_path: Path, at: int | None) -> None:
    """Damage in the header, in the first block, in a block after applied ones, at the end; or a truncated file."""
    job.commit(cache, {b"a": b"1"})
    assert job.read(cache) == [(b"a", b"1")]
    job.commit(cache, {b"k%04d" % i: b"x" * 50_000 for i in range(110)})
    (kept,) = (tmp_path / "cache").rglob("kept/*")
    data = bytearray(kept.read_bytes())
    if at is None:
        del data[-1]
    else:
        data[at] ^= 1
    kept.unlink()  # it may be a link to the durable file
    kept.write_bytes(data)
    assert job.read(cache) == sorted(job.model.items())
    assert list((tmp_path / "cache").rglob("kept/*")) == []


@pytest.mark.contract("STORE-07")
def test_state_is_kept_on_every_backend(blobs: DurableBlobs, tmp_path: Path) -> None:
    caches = [HostCache(tmp_path / "a"), HostCache(tmp_path / "b")]
    job = Host(blobs, tmp_path)
    for i in range(6):
        job.commit(caches[i % 2], {b"k%d" % (i % 4): b"v%d" % i, b"big%d" % i: bytes(100_000), b"k%d" % (i - 3): None})
    job.compact(2)
    job.commit(caches[0], {b"last": b"1"})
    for cache in (*caches, HostCache(tmp_path / "c")):
        assert job.read(cache) == sorted(job.model.items())


def test_absent_host_reads_merged_files(cache: HostCache, job: Host, tmp_path: Path) -> None:
    away = HostCache(tmp_path / "away")
    job.commit(cache, {b"a": b"1", b"b": b"1"})
    assert job.read(away) == [(b"a", b"1"), (b"b", b"1")]
    job.commit(cache, {b"a": None, b"c": b"2"})
    job.compact(0)
    assert job.read(away) == [(b"b", b"1"), (b"c", b"2")], "the snapshot does not say that 'a' is deleted"


def test_partly_changed_copy_is_rebuilt(cache: HostCache, job: Host, tmp_path: Path) -> None:
    away = HostCache(tmp_path / "away")
    job.commit(cache, {b"a": b"1"})
    job.read(away)
    job.commit(cache, {b"a": b"2", b"b": b"2"})
    job.commit(cache, {b"a": b"3", b"c": b"3"})

    def die() -> None:
        raise IndeterminateError("the process dies")

    inner, deaths = job.blobs, 0
    for calls in range(20):
        job.blobs = store = UnreliableBlobs(inner, 1)
        store.interrupt(calls, die)
        try:
            assert job.read(away) == sorted(job.model.items())
        except IndeterminateError:
            deaths += 1
    assert deaths > 4
    assert job.read(away) == sorted(job.model.items())


def test_late_attempt_is_refused(cache: HostCache, job: Host) -> None:
    job.commit(cache, {b"a": b"1"})
    before = job.version
    job.commit(cache, {b"a": b"2"})
    assert job.read(cache) == [(b"a", b"2")]
    with pytest.raises(DecidedCommitError, match="at micro-batch 2 here, but micro-batch 1"):
        cache.view(job.blobs, before)


def test_micro_batch_without_changes_writes_nothing(cache: HostCache, job: Host) -> None:
    job.commit(cache, {b"a": b"1"})
    job.commit(cache, {b"b": None})
    assert len(job.version.files) == 1
    assert job.version.micro_batch == 2


@pytest.mark.contract("STORE-02")
def test_missing_or_damaged_file_is_named(cache: HostCache, job: Host, tmp_path: Path) -> None:
    job.commit(cache, {b"a": b"1"})
    name = job.version.files[0].name
    data = job.blobs.get(name)
    job.blobs.put(name, data[:-1])
    other = HostCache(tmp_path / "other")
    with pytest.raises(DamagedFileError, match=f"'{name}' in 'memory://'"):
        job.read(other)
    job.blobs.delete(name)
    with pytest.raises(MissingFileError, match=f"'{name}' .*'memory://'"):
        job.read(other)
    job.blobs.put(name, data)
    assert job.read(other) == [(b"a", b"1")], "the failure has left nothing"


def test_full_map_grows(job: Host, tmp_path: Path) -> None:
    cache = HostCache(tmp_path / "small", map_bytes=1 << 16)
    job.commit(cache, {b"%04d" % i: b"x" * 1_000 for i in range(500)})
    job.commit(cache, {b"%04d" % i: b"y" * 1_000 for i in range(250)})
    assert len(job.read(cache)) == 500


def test_only_copies_of_other_boots_are_removed(cache: HostCache, job: Host, tmp_path: Path) -> None:
    boot = "7fc9761c-16ca-4b90-b474-000000000000"
    stale = tmp_path / "cache" / f"arcbeam-copies-{boot}"
    others = {"precious", boot, "arcbeam-copies", "arcbeam-copies-mine", f"{stale.name}-old", f"x{stale.name}"}
    for name in (*others, stale.name):
        (tmp_path / "cache" / name).mkdir(parents=True)
        (tmp_path / "cache" / name / "file").write_bytes(b"1")
    job.commit(cache, {b"a": b"1"})
    assert job.read(cache) == [(b"a", b"1")]
    assert stale.exists() == (not Path("/proc/sys/kernel/random/boot_id").exists())
    assert [name for name in others if not (tmp_path / "cache" / name / "file").exists()] == []


def test_forked_child_opens_copies_again(cache: HostCache, job: Host) -> None:
    job.commit(cache, {b"a": b"1"})
    assert job.read(cache) == [(b"a", b"1")]
    pid = os.fork()
    if not pid:
        os._exit(0 if job.read(cache) == [(b"a", b"1")] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert job.read(cache) == [(b"a", b"1")]


def test_forget_removes_copies_of_job(cache: HostCache, job: Host, tmp_path: Path) -> None:
    job.commit(cache, {b"a": b"1"})
    job.read(cache)
    cache.forget("job")
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []
    assert job.read(cache) == [(b"a", b"1")]


@pytest.mark.contract("STORE-11")
def test_long_unused_copies_are_removed(cache: HostCache, job: Host, tmp_path: Path) -> None:
    job.commit(cache, {b"a": b"1"})
    job.read(cache)
    (folder,) = (tmp_path / "cache").glob("arcbeam-copies-*/*")
    os.utime(folder / hostcopies.IN_USE, (0, 0))
    cache.sweep()
    assert folder.exists(), "this process uses them"
    cache.release("job")
    os.utime(folder / hostcopies.IN_USE)
    cache.sweep()
    assert folder.exists(), "they were used recently"
    os.utime(folder / hostcopies.IN_USE, (0, 0))
    cache.sweep()
    assert not folder.exists()
    assert job.read(cache) == [(b"a", b"1")]
    assert folder.exists()


def test_copy_removed_during_read_is_an_error(cache: HostCache, job: Host) -> None:
    job.commit(cache, {b"a": b"1", b"b": b"2"})
    view = cache.view(job.blobs, job.version)
    cache.forget("job")
    for reading in (lambda: view.get(b"a"), lambda: list(view.scan(b"")), lambda: view.get(b"long" * 200)):
        with pytest.raises(StoreError):
            reading()
    view.close()
    assert job.read(cache) == [(b"a", b"1"), (b"b", b"2")]


def test_snapshot_is_read_once_to_build_copy(cache: HostCache, job: Host) -> None:
    for i in range(5):
        job.commit(cache, {b"%d" % i: b"v", b"long" * 200: b"%d" % i})
    job.compact(0)
    assert [file.kind for file in job.version.files] == [FileKind.SNAPSHOT]
    cache.forget("job")
    assert job.read(cache) == [(b"%d" % i, b"v") for i in range(5)] + [(b"long" * 200, b"4")]


@pytest.mark.contract("STORE-05")
@pytest.mark.parametrize("memory", ["memory"], indirect=True)
@pytest.mark.parametrize("length", [0, 100, 5_000, "half", "page"])
def test_truncated_copy_is_rebuilt(job: Host, tmp_path: Path, length: int | str) -> None:
    root = tmp_path / "cache"
    job.commit(HostCache(root), {b"a%d" % i: bytes(1000) for i in range(500)})
    job.read(HostCache(root))
    cache_module._databases.close_below(root)
    # In a separate process: if the truncation is not detected, the process is killed.
    program = (
        "import sys, os; from pathlib import Path; from arcbeam.store.shards import cache\n"
        "path, length = Path(sys.argv[1]), sys.argv[2]\n"
        "import lmdb; database = lmdb.open(str(path.parent), map_size=1 << 20)\n"
        "pages = database.info()['last_pgno'] + 1\n"
        "known = {'half': path.stat().st_size // 2, 'page': pages * database.stat()['psize'] - 1}\n"
        "database.close()\n"
        "os.truncate(path, known[length] if length in known else int(length))\n"
        "assert cache._sound(path, 1 << 20).copy_of() is None\n"
    )
    (copy,) = root.rglob("data.mdb")
    subprocess.run([sys.executable, "-c", program, str(copy), str(length)], check=True)
    assert job.read(HostCache(root)) == sorted((b"a%d" % i, bytes(1000)) for i in range(500))


def test_appended_blocks_are_one_transaction_up_to_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_BATCH_BYTES", 1_000)
    monkeypatch.setattr(cache_module, "_BATCH_CHANGES", 2)
    short = [([b"%d" % n], [b"v"]) for n in range(5)]
    long = [([b"%d" % n], [bytes(600)]) for n in range(3)]
    assert [len(batch) for batch in cache_module._batches(short, append=False)] == [2, 2, 1]
    assert [len(batch) for batch in cache_module._batches(short, append=True)] == [5]
    assert [len(batch) for batch in cache_module._batches(long, append=True)] == [2, 1]


@pytest.mark.contract("STORE-05")
def test_foreign_file_is_replaced_by_copy(job: Host, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    job.commit(HostCache(root), {b"a": b"1"})
    job.read(HostCache(root))
    cache_module._databases.close_below(root)
    (copy,) = root.rglob("data.mdb")
    copy.write_bytes(bytes(copy.stat().st_size))
    assert job.read(HostCache(root)) == [(b"a", b"1")]


@pytest.mark.contract("STORE-10")
def test_copy_of_the_folder_before_its_restore_is_not_used(cache: HostCache, job: Host, tmp_path: Path) -> None:
    job.commit(cache, {b"a": b"1"})
    backup, model = job.version, dict(job.model)
    job.commit(cache, {b"a": b"2"})
    assert job.read(cache) == [(b"a", b"2")]
    micro_batch = backup.micro_batch + 1
    job.version = replace(
        backup, micro_batch=micro_batch, openings=(*backup.openings, Opening(micro_batch, "after the restore"))
    )
    job.model = model
    job.commit(HostCache(tmp_path / "other"), {b"b": b"3"})
    assert job.read(cache) == [(b"a", b"1"), (b"b", b"3")], "the copy was at the same micro-batch, with other content"
