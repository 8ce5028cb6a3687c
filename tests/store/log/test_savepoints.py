"""Savepoints: names for micro-batches, and complete copies of them."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from arcbeam.errors import RequestRefusedError
from arcbeam.model.commits import CommitMode, Committable, deletion, renaming
from arcbeam.model.files import Shard, SideFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import (
    DamagedFileError,
    FencedError,
    IndeterminateError,
    InvalidManifestError,
    LaterMicroBatchesError,
    MissingFileError,
    StoreError,
)
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.commitlog import CommitLog, Committed, Conflict
from arcbeam.store.log.inspection import inspect, savepoints
from arcbeam.store.log.savepoints import change_stopped, changed, copy_savepoint, pinned, renamed, unpinned
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.manifest.values import KEPT_OPENINGS, Pin
from arcbeam.store.shards.compaction import publish, scan
from arcbeam.store.shards.shardfile import in_blocks
from arcbeam.testing import Faults, UnreliableBlobs
from arcbeam.testing.blobs import MemoryBlobs
from tests.golden.texts import check_message
from tests.store.samples import opened, read_head

pytestmark = pytest.mark.contract("STORE-05")


def test_savepoint_name_is_valid_and_unique(memory: DurableBlobs) -> None:
    log = opened(memory)
    for name in ("", "a/b", ".x", "x" * 101, "a b"):
        with pytest.raises(StoreError, match=re.escape(repr(name))):
            pinned(log.draft(Timestamp(0)), name)
    log.propose(pinned(log.draft(Timestamp(7)), "before-2.0"))
    assert log.head.pins == (Pin("before-2.0", 1, Timestamp(7)),)
    with pytest.raises(StoreError, match=r"'before-2.0' .* 1\n"):
        pinned(log.draft(Timestamp(8)), "before-2.0")
    with pytest.raises(StoreError, match=r"'x'\n.*: before-2\.0"):
        unpinned(log.draft(Timestamp(8)), "x")


@pytest.fixture
def job(blobs: DurableBlobs, tmp_path: Path) -> CommitLog:
    """Return a job with a savepoint of one file, and a head that does not need the file."""
    log = opened(blobs)
    file = publish(
        blobs,
        tmp_path / "scratch",
        Written(1, 0, 1, log.epoch, "a", "delta"),
        in_blocks((b"k%06d" % i, b"v" * 50) for i in range(3_000)),
        first_micro_batch=1,
        last_micro_batch=1,
    )
    log.propose(pinned(log.draft(Timestamp(3), shards=(Shard(1, 0, (file,)),)), "safe"))
    log.propose(log.draft(Timestamp(4), shards=()))
    return log


@pytest.mark.contract("STORE-07")
def test_copy_is_complete_and_separate_job(job: CommitLog, tmp_path: Path) -> None:
    target = FolderBlobs(tmp_path / "copy", sync=False)
    copied = copy_savepoint(job.blobs, job.head, "safe", target, tmp_path / "scratch")
    job.propose(unpinned(job.draft(Timestamp(5)), "safe"))
    Sweeper(job, keep=0).sweep()
    assert read_head(target) == copied
    resumed = opened(target)
    assert (resumed.epoch, resumed.head.micro_batch) == (1, 2)
    assert resumed.head.job != job.head.job, "hosts must not mix their copies of state"
    assert sum(1 for _ in scan(target, resumed.head.shards[0].files)) == 3_000
    for _ in range(4):
        resumed.propose(resumed.draft(Timestamp(6), shards=()))
    Sweeper(resumed, keep=0).sweep()
    assert opened(target, savepoint="safe").head.shards == copied.shards
    with pytest.raises(StoreError, match="contains a job"):
        copy_savepoint(target, resumed.head, "safe", target, tmp_path / "scratch")


def test_copy_has_only_committables_that_are_perhaps_not_published(memory: DurableBlobs, tmp_path: Path) -> None:
    part = (Committable("write", b"part"),)

    def copied(name: str) -> tuple[Committable, ...]:
        target = MemoryBlobs()
        return copy_savepoint(memory, log.head, name, target, tmp_path / "scratch").committables

    log = opened(memory)
    log.propose(pinned(log.draft(Timestamp(1), committables=part), "one"))
    assert copied("one") == part
    # A commit that carries them says that they are not published; the one after it says that they are.
    log.propose(log.draft(Timestamp(2), committables=part))
    assert copied("one") == part
    log.propose(pinned(log.draft(Timestamp(3), committables=(Committable("write", b"next"),)), "two"))
    assert copied("one") == ()
    # The next driver has published nothing yet.
    log = opened(memory)
    assert (copied("one"), len(copied("two"))) == ((), 1)
    log.propose(log.draft(Timestamp(5)))
    assert copied("two") == ()
    # What a job abandons is perhaps never published.
    log = opened(memory, savepoint="one")
    log.propose(log.draft(Timestamp(6)))
    assert (copied("one"), len(copied("two"))) == ((), 1)


_A, _B, _C = (Committable("write", payload) for payload in (b"a", b"b", b"c"))


@pytest.mark.parametrize(
    ("earlier", "head", "kept"),
    [
        ((), (), False),
        ((), (_A,), False),
        ((_A,), (), False),
        ((_A,), (_B,), False),
        ((_A, _B), (_C,), False),
        ((_A,), (_A,), True),
        ((_A, _B), (_B, _A), True),
        ((_A, _B), (_A,), True),
        ((_A, _B), (_B,), True),
        ((_A,), (_B, _A), True),
        ((_A, _B), (_B, _C), True),
        # A publisher that was renamed has them under its new name.
        ((_A,), (Committable("renamed", b"a"),), True),
    ],
)
def test_committables_that_the_job_still_carries_are_copied(
    memory: DurableBlobs, tmp_path: Path, earlier: tuple[Any, ...], head: tuple[Any, ...], kept: bool
) -> None:
    log = opened(memory)
    log.propose(pinned(log.draft(Timestamp(1), committables=earlier), "one"))
    log.propose(log.draft(Timestamp(2), committables=head))
    found = copy_savepoint(memory, log.head, "one", MemoryBlobs(), tmp_path / "scratch").committables
    assert found == (earlier if kept else ())


def test_interrupted_copy_is_completed(job: CommitLog, tmp_path: Path) -> None:
    inner = FolderBlobs(tmp_path / "copy", sync=False)

    def die() -> None:
        raise IndeterminateError("the process dies")

    for calls in range(30):
        target = UnreliableBlobs(inner, 1, Faults())
        target.interrupt(calls, die)
        try:
            copied = copy_savepoint(job.blobs, job.head, "safe", target, tmp_path / "scratch")
            break
        except IndeterminateError:
            continue
    assert calls > 3
    assert read_head(inner) == copied


def test_missing_or_damaged_file_is_not_copied(memory: DurableBlobs, tmp_path: Path) -> None:
    log = opened(memory)
    file = publish(
        memory,
        tmp_path / "s",
        Written(1, 0, 1, 1, "a", "delta"),
        in_blocks([(b"a", b"1")]),
        first_micro_batch=1,
        last_micro_batch=1,
    )
    log.propose(pinned(log.draft(Timestamp(3), shards=(Shard(1, 0, (file,)),)), "safe"))
    target = FolderBlobs(tmp_path / "copy", sync=False)
    with pytest.raises(StoreError, match=r"'other' in 'memory://'\n.*: safe"):
        copy_savepoint(memory, log.head, "other", target, tmp_path / "s")
    data = memory.get(file.name)
    memory.put(file.name, data[:40] + bytes([data[40] ^ 1]) + data[41:])
    with pytest.raises(DamagedFileError, match=file.name):
        copy_savepoint(memory, log.head, "safe", target, tmp_path / "s")
    memory.delete(file.name)
    with pytest.raises(MissingFileError, match=file.name):
        copy_savepoint(memory, log.head, "safe", target, tmp_path / "s")
    assert read_head(target) is None


def test_side_inputs_are_copied_and_checked(memory: DurableBlobs, tmp_path: Path) -> None:
    log = opened(memory)
    name = written_name(Written(3, 0, 1, 1, "a", "side"))
    side = SideFile(3, 0, name, 5, crc32(b"right"))
    log.propose(pinned(log.draft(Timestamp(3), side_files=(side,)), "safe"))
    target = FolderBlobs(tmp_path / "copy", sync=False)
    for wrong in (b"wrong", b"righ", b"right and more"):
        memory.put(name, wrong)
        with pytest.raises(DamagedFileError, match=f"'{name}' in 'memory://'"):
            copy_savepoint(memory, log.head, "safe", target, tmp_path / "s")
    memory.put(name, b"right")
    copied = copy_savepoint(memory, log.head, "safe", target, tmp_path / "s")
    assert (copied.side_files, target.get(name)) == ((side,), b"right")


@pytest.mark.contract("STORE-07")
def test_changed_names_keep_needed_files(job: CommitLog, tmp_path: Path) -> None:
    sweeper = Sweeper(job, keep=2)
    (file,) = [info.name for info in job.blobs.list("shards")]

    def micro_batches(*changes: str) -> None:
        """Commit each change, then sweep; then commit micro-batches until none with the old names is kept."""
        for what in (*changes, *("",) * 4):
            draft = job.draft(Timestamp(9))
            job.propose(changed(draft, what) if what else draft)
            sweeper.sweep()

    micro_batches(renaming("safe", "kept"), "new", renaming("kept", "safe"), deletion("new"), renaming("safe", "last"))
    assert [pin.name for pin in job.head.pins] == ["last"]
    assert inspect(job.blobs, savepoint="last", check=True).problems == ()
    # A driver resumes from it, and deletes it: its own files are the head's now.
    job = opened(job.blobs, savepoint="last")
    sweeper = Sweeper(job, keep=2)
    micro_batches(deletion("last"))
    assert job.head.pins == ()
    assert [info.name for info in job.blobs.list("shards")] == [file]
    assert inspect(job.blobs, check=True).problems == ()
    job.propose(job.draft(Timestamp(9), shards=()))
    micro_batches()
    assert list(job.blobs.list("shards")) == []


def test_new_name_must_be_valid_and_free(memory: DurableBlobs) -> None:
    log = opened(memory)
    log.propose(pinned(log.draft(Timestamp(1)), "a"))
    log.propose(pinned(log.draft(Timestamp(2)), "delete"))
    draft = log.draft(Timestamp(3))
    for name, new, fault in (
        ("x", "y", "'x'"),
        ("a", "delete", "'delete' .* 2"),
        ("a", "b c", "'b c'"),
    ):
        with pytest.raises(StoreError, match=fault):
            renamed(draft, name, new)
    log.propose(renamed(draft, "a", "b"))
    assert log.head.pins == (Pin("b", 1, Timestamp(1)), Pin("delete", 2, Timestamp(2)))
    # A micro-batch whose name was deleted cannot become a savepoint again.
    late = replace(log.draft(Timestamp(4)), pins=(*log.head.pins, Pin("c", 3, Timestamp(3))))
    with pytest.raises(InvalidManifestError, match="'c' is of micro-batch 3"):
        log.propose(late)


def test_running_job_is_changed_only_by_force(memory: DurableBlobs) -> None:
    with pytest.raises(StoreError, match="'memory://'"):
        change_stopped(memory, deletion("a"), Timestamp(0))
    log = opened(memory)
    log.propose(pinned(log.draft(Timestamp(1)), "a"))
    with pytest.raises(RequestRefusedError, match="running"):
        change_stopped(memory, deletion("a"), Timestamp(0))
    assert list(memory.list("epochs/")) == list(memory.list("epochs/"))[:1], "the running driver can still delete"
    assert change_stopped(memory, deletion("a"), Timestamp(0), force=True).pins == ()
    assert isinstance(log.propose(log.draft(Timestamp(2))), Conflict)


@pytest.mark.contract("STORE-03")
def test_concurrent_resume_is_not_fenced(memory: DurableBlobs) -> None:
    log = opened(memory)
    log.propose(pinned(log.draft(Timestamp(1), mode=CommitMode.SUSPENDED), "a"))
    went_on: list[CommitLog] = []
    inner = memory

    class Meanwhile:
        """Let another driver resume the job when the epoch has begun."""

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        def create(self, name: str, data: bytes) -> bool:
            made = inner.create(name, data)
            if name.startswith("epochs/") and not went_on:
                went_on.append(opened(inner))
            return made

    with pytest.raises(FencedError):
        change_stopped(Meanwhile(), deletion("a"), Timestamp(2))  # type: ignore[arg-type]
    assert isinstance(went_on[0].propose(went_on[0].draft(Timestamp(3))), Committed)
    assert [pin.name for pin in went_on[0].head.pins] == ["a"]


def test_savepoint_before_committed_micro_batches_needs_the_flag(memory: DurableBlobs) -> None:
    log = opened(memory)
    log.propose(log.draft(Timestamp(1), pins=(Pin("before", 1, Timestamp(1)),)))
    assert opened(memory, savepoint="before", discard=False).head.micro_batch == 2
    log = opened(memory, savepoint="before", discard=False)
    assert log.head.micro_batch == 3, "an opening repeats what it follows"
    for micro_batch in (4, 5):
        log.propose(log.draft(Timestamp(micro_batch)))
    stored = list(memory.list(""))
    with pytest.raises(LaterMicroBatchesError, match="'before' would discard 2 later micro-batches") as caught:
        opened(memory, savepoint="before", discard=False)
    assert list(memory.list("")) == stored
    check_message("savepoint-before-committed-micro-batches", str(caught.value))
    log = opened(memory, savepoint="before")
    log.propose(log.draft(Timestamp(7)))
    with pytest.raises(LaterMicroBatchesError, match="discard 1 later micro-batch, which is"):
        opened(memory, savepoint="before", discard=False)
    log.propose(log.draft(Timestamp(8), mode=CommitMode.DRAINED))
    with pytest.raises(LaterMicroBatchesError) as caught:
        opened(memory, savepoint="before", discard=False)
    assert "to continue" not in str(caught.value)


def test_later_micro_batches_are_counted_without_any_opening(memory: DurableBlobs) -> None:
    log, time = opened(memory), itertools.count()

    def commit(savepoint: str = "") -> None:
        draft = log.draft(Timestamp(next(time)))
        log.propose(pinned(draft, savepoint) if savepoint else draft)

    def reopen(savepoint: str = "") -> CommitLog:
        for _ in range(KEPT_OPENINGS + 3):
            last = opened(memory, savepoint=savepoint)
            savepoint = ""
        return last

    def later() -> dict[str, int]:
        return {of.name: of.later for of in savepoints(memory)}

    commit("a")
    log = reopen()
    commit()
    log = reopen()
    commit("b")
    commit()
    assert later() == {"a": 3, "b": 1}
    log = reopen("b")
    assert later() == {"a": 2, "b": 0}
    commit()
    commit()
    log = reopen("a")
    # It is where it was at "a"; "b" is not on its way there.
    assert later() == {"a": 0, "b": 0}
    commit()
    assert later() == {"a": 1, "b": 1}
    with pytest.raises(LaterMicroBatchesError, match="discard 1 later micro-batch, which is"):
        opened(memory, savepoint="b", discard=False)
    log = reopen("b")
    commit()
    assert later() == {"a": 3, "b": 1}
