"""Damage to manifests and floors: each error has a remedy, and the remedy works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from arcbeam.model.commits import CommitMode
from arcbeam.model.files import Shard
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import (
    DamagedFileError,
    FencedError,
    IndeterminateError,
    MissingFileError,
    NewerFormatError,
    StoreError,
)
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import UnreadableHead, read_manifest, read_newest
from arcbeam.store.log.commitlog import CommitLog, Committed, Conflict
from arcbeam.store.log.inspection import inspect
from arcbeam.store.log.savepoints import copy_savepoint, pinned, unpinned
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest.names import Written, manifest_name
from arcbeam.store.manifest.values import Abandoned, ManifestKind
from arcbeam.store.shards.compaction import publish, scan
from arcbeam.store.shards.shardfile import in_blocks
from arcbeam.testing import Faults, UnreliableBlobs
from tests.golden import check_message
from tests.store.damage import newer
from tests.store.samples import delta, opened, read_head

pytestmark = pytest.mark.contract("STORE-05")


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda data: data[:60] + bytes([data[60] ^ 4]) + data[61:],
    "cut": lambda data: data[:-7],
    "empty": lambda data: b"",
    "newer": newer,
}


def micro_batch(log: CommitLog, savepoint: str = "") -> str:
    """Commit a micro-batch with one file that replaces all earlier ones; return the file's name."""
    file = delta(log.head.micro_batch + 1, log.epoch)
    log.blobs.put(file.name, b"x")
    draft = log.draft(log.head.time, shards=(Shard(1, 0, (file,)),))
    assert isinstance(log.propose(pinned(draft, savepoint) if savepoint else draft), Committed)
    return file.name


def damaged(blobs: DurableBlobs, number: int, how: str = "flipped") -> None:
    name = manifest_name(number)
    blobs.put(name, DAMAGE[how](blobs.get(name)))


def files(blobs: DurableBlobs) -> dict[str, bytes]:
    return {info.name: blobs.get(info.name) for info in blobs.list("")}


@pytest.mark.parametrize(
    ("blobs", "how"),
    [*(("memory", how) for how in DAMAGE), ("folder", "flipped"), ("hadoop", "empty"), ("s3", "cut")],
    indirect=["blobs"],
)
def test_remedy_for_damage_works(blobs: DurableBlobs, how: str) -> None:
    log = opened(blobs)
    kept = micro_batch(log, "safe")
    micro_batch(log)
    damaged(blobs, 2, how)
    before = files(blobs)
    with pytest.raises(NewerFormatError if how == "newer" else DamagedFileError) as damage:
        opened(blobs)
    assert f"'manifests/{2:012}' in '{blobs}'" in damage.value.message
    check_message(f"newest-manifest-{'newer' if how == 'newer' else 'damaged'}", damage.value.remedy)
    with pytest.raises(StoreError, match=r"'other' in '.*'\n.*: safe"):
        opened(blobs, savepoint="other")
    assert files(blobs) == before, "no file is changed"
    resumed = opened(blobs, savepoint="safe", now=7)
    assert (resumed.head.micro_batch, resumed.head.epoch, resumed.head.kind) == (3, 2, ManifestKind.OPENING)
    assert [file.name for shard in resumed.head.shards for file in shard.files] == [kept]
    assert resumed.head.abandoned == (Abandoned(2, 2, 1),), "no copy on any host at the lost micro-batch is used again"
    assert [pin.name for pin in resumed.head.pins] == ["safe"]
    assert isinstance(log.propose(log.draft(Timestamp(9))), Conflict), "the driver of the lost micro-batch is fenced"
    micro_batch(resumed)
    again = opened(blobs)
    assert (again.head.micro_batch, again.head.abandoned) == (5, (Abandoned(2, 2, 1),))
    assert blobs.get(manifest_name(2)) == before[manifest_name(2)]


def test_remedy_without_savepoint_says_so(memory: DurableBlobs) -> None:
    log = opened(memory)
    micro_batch(log)
    damaged(memory, 1)
    with pytest.raises(DamagedFileError, match=f"manifests/{1:012}") as damage:
        opened(memory)
    check_message("newest-manifest-damaged-without-savepoint", damage.value.remedy)
    with pytest.raises(StoreError, match="'x'"):
        opened(memory, savepoint="x")
    damaged(memory, 0)
    with pytest.raises(DamagedFileError, match=f"manifests/{1:012}"):
        opened(memory, savepoint="x")
    with pytest.raises(DamagedFileError, match=f"manifests/{1:012}"):
        inspect(memory)


def test_several_damaged_manifests_are_skipped(memory: DurableBlobs) -> None:
    log = opened(memory)
    for name in ("a", "b", "", "c"):
        micro_batch(log, name)
    damaged(memory, 3)
    damaged(memory, 4, "newer")
    newest = read_newest(memory)
    assert isinstance(newest, UnreadableHead)
    assert (newest.micro_batch, newest.before and newest.before.micro_batch) == (4, 2)
    with pytest.raises(StoreError, match=": a, b"):
        opened(memory, savepoint="c")
    assert opened(memory, savepoint="b").head.abandoned == (Abandoned(3, 4, 2),)
    damaged(memory, 1)
    with pytest.raises(DamagedFileError, match=f"manifests/{1:012}"):
        opened(memory, savepoint="a")
    assert opened(memory, savepoint="b").head.micro_batch == 6


def test_running_driver_is_not_affected_by_damage(memory: DurableBlobs) -> None:
    log = opened(memory)
    micro_batch(log, "safe")
    micro_batch(log)
    damaged(memory, 2)
    micro_batch(log)
    assert read_head(memory) == log.head, "earlier manifests are not read"
    damaged(memory, 3)

    class Overtaken(UnreliableBlobs):
        """Let the running driver commit its next micro-batch just before a manifest is created."""

        def create(self, name: str, data: bytes) -> bool:
            if name.startswith("manifests/") and log.head.micro_batch == 3:
                micro_batch(log)
            return super().create(name, data)

    resumed = opened(Overtaken(memory, 1), savepoint="safe")
    assert (resumed.head.micro_batch, resumed.head.abandoned) == (5, (Abandoned(2, 4, 1),))


@pytest.mark.contract("STORE-03")
def test_unreadable_micro_batch_of_later_driver_fences(memory: DurableBlobs) -> None:
    micro_batch(opened(memory), "safe")

    class Slow(UnreliableBlobs):
        """Sleeps after recording its floor. Meanwhile another driver opens and deletes the savepoint, and its
        micro-batch is damaged."""

        def put(self, name: str, data: bytes) -> None:
            super().put(name, data)
            if name.startswith("floors/00000002"):
                other = opened(memory)
                other.propose(unpinned(other.draft(other.head.time), "safe"))
                damaged(memory, other.head.micro_batch)

    with pytest.raises(FencedError, match=r"epoch 3, .* epoch 2"):
        opened(Slow(memory, 1), savepoint="safe")
    assert opened(memory, savepoint="safe").head.micro_batch == 4, "a driver after both"


def test_savepoint_deleted_by_damaged_manifest_is_complete(memory: DurableBlobs) -> None:
    log = opened(memory)
    kept = micro_batch(log, "safe")
    for _ in range(4):
        micro_batch(log)
    assert isinstance(log.propose(unpinned(log.draft(Timestamp(9)), "safe")), Committed)
    Sweeper(log, keep=1).sweep()
    damaged(memory, log.head.micro_batch)
    resumed = opened(memory, savepoint="safe")
    assert memory.get(resumed.head.shards[0].files[0].name) == memory.get(kept) == b"x"
    for _ in range(4):
        micro_batch(resumed)
        Sweeper(resumed, keep=1).sweep()
    assert memory.get(kept) == b"x", "it is a savepoint again"


@pytest.mark.contract("STORE-07")
def test_sweep_keeps_files_while_manifest_is_unreadable(memory: DurableBlobs) -> None:
    log = opened(memory)
    micro_batch(log, "safe")
    lost = micro_batch(log)
    damaged(memory, 2)
    log = opened(memory, savepoint="safe")
    sweeper = Sweeper(log, keep=2)
    swept = sweeper.sweep()
    assert (swept.unreadable, swept.files) == ((manifest_name(2),), ())
    for _ in range(4):
        micro_batch(log)
        swept = sweeper.sweep()
    assert swept.unreadable == ()
    with pytest.raises(MissingFileError):
        memory.get(lost)
    assert memory.get(manifest_name(2)), "its name stays taken: it may be an opening"
    assert opened(memory).head.micro_batch == 8


def test_damaged_savepoint_keeps_all_files_until_deleted(memory: DurableBlobs) -> None:
    log = opened(memory)
    names = [micro_batch(log, "safe"), micro_batch(log), micro_batch(log), micro_batch(log)]
    damaged(memory, 1)
    sweeper = Sweeper(opened(memory), keep=0)
    assert sweeper.sweep().unreadable == (manifest_name(1),)
    log = opened(memory)
    assert all(memory.get(name) for name in names)
    assert isinstance(log.propose(unpinned(log.draft(Timestamp(9), shards=()), "safe")), Committed)
    assert set(Sweeper(log, keep=0).sweep().files) == set(names)


def test_copy_does_not_need_newest_manifest(memory: DurableBlobs, tmp_path: Path) -> None:
    log = opened(memory)
    written = Written(1, 0, 1, 1, "a", "delta")
    file = publish(memory, tmp_path / "s", written, in_blocks([(b"a", b"1")]), first_micro_batch=1, last_micro_batch=1)
    log.propose(pinned(log.draft(Timestamp(3), shards=(Shard(1, 0, (file,)),)), "safe"))
    micro_batch(log)
    damaged(memory, 2)
    newest = read_newest(memory)
    assert isinstance(newest, UnreadableHead)
    target = FolderBlobs(tmp_path / "copy", sync=False)
    with pytest.raises(StoreError, match=r"'x' in 'memory://'\n.*: safe"):
        copy_savepoint(memory, newest, "x", target, tmp_path / "s")
    copied = copy_savepoint(memory, newest, "safe", target, tmp_path / "s")
    assert list(scan(target, opened(target).head.shards[0].files)) == [(b"a", b"1")]
    damaged(target, copied.micro_batch + 1)
    damaged(target, copied.micro_batch)
    unreadable = read_newest(target)
    assert isinstance(unreadable, UnreadableHead)
    with pytest.raises(DamagedFileError, match=f"manifests/{copied.micro_batch + 1:012}"):
        copy_savepoint(target, unreadable, "safe", FolderBlobs(tmp_path / "other"), tmp_path / "s")


def test_readable_rest_is_inspected(memory: DurableBlobs) -> None:
    log = opened(memory)
    for name in ("safe", "", "", ""):
        micro_batch(log, name)
    damaged(memory, 2)
    damaged(memory, 4, "newer")
    found = inspect(memory)
    assert (found.micro_batch, [of.micro_batch for of in found.micro_batches]) == (3, [3, 1, 0])
    assert [pin.name for pin in found.savepoints] == ["safe"]
    first, second = found.damaged
    assert f"'{manifest_name(4)}' in 'memory://' has format 9" in first
    assert "or resume from a savepoint: 'safe' (micro-batch 1)" in first
    assert f"'{manifest_name(2)}' in 'memory://' is damaged" in second
    assert inspect(memory, savepoint="safe").micro_batch == inspect(memory, micro_batch=1).micro_batch == 1
    with pytest.raises(NewerFormatError, match=f"'{manifest_name(4)}'"):
        inspect(memory, micro_batch=4)
    with pytest.raises(DamagedFileError, match=f"'{manifest_name(2)}'"):
        inspect(memory, micro_batch=2)


@pytest.mark.parametrize(("memory", "micro_batches"), [("memory", 10), ("s3", 2)], indirect=["memory"])
def test_missing_manifest_is_reported_as_damage(memory: DurableBlobs, micro_batches: int) -> None:
    log = opened(memory)
    sweeper = Sweeper(log, keep=5)
    for _ in range(9):
        micro_batch(log)
        sweeper.sweep()
    assert (log.floor, inspect(memory, check=True).damaged) == (4, ())
    for number in (5, 6):
        memory.delete(manifest_name(number))
    damaged(memory, 4)
    found = inspect(memory, check=True, micro_batches=micro_batches)
    assert [of.micro_batch for of in found.micro_batches] == [9, 8, 7][:micro_batches]
    assert ["missing" in reported for reported in found.damaged] == [True, True, False]
    assert all(manifest_name(6 - i) in reported for i, reported in enumerate(found.damaged))
    assert "restore the file from a backup" in found.damaged[0]
    assert len(inspect(memory, micro_batches=4).damaged) == 1, (
        "of the micro-batches that are listed, if no check is asked for"
    )
    with pytest.raises(MissingFileError, match=manifest_name(5)):
        Sweeper(opened(memory), keep=5).sweep()


def floors(blobs: DurableBlobs) -> list[str]:
    return [info.name for info in blobs.list("floors")]


@pytest.mark.parametrize(
    ("memory", "slots", "how"),
    [("memory", [0], "cut"), ("memory", [1], "empty"), ("memory", [0, 1], "else"), ("s3", [0, 1], "else")],
    indirect=["memory"],
)
def test_damaged_floor_is_found_by_manifests(memory: DurableBlobs, slots: list[int], how: str) -> None:
    log = opened(memory)
    sweeper = Sweeper(log, keep=2)
    for i in range(9):
        micro_batch(log, "safe" if i == 2 else "")
        sweeper.sweep()
    assert len(floors(memory)) == 2
    for slot in slots:
        name = floors(memory)[slot]
        memory.put(name, {"cut": memory.get(name)[:9], "empty": b"", "else": b"something else here"}[how])
    assert read_head(memory) == log.head
    found = inspect(memory)
    assert all(floors(memory)[slot] in reported for slot, reported in zip(slots, found.damaged, strict=True))
    log = opened(memory)
    assert (log.head.micro_batch, log.epoch) == (10, 2)
    assert read_manifest(memory, log.floor).kind == ManifestKind.MICRO_BATCH
    sweeper = Sweeper(log, keep=2)
    for _ in range(5):
        micro_batch(log)
        sweeper.sweep()
    assert read_head(memory) == log.head
    assert inspect(memory).damaged == ()
    assert opened(memory, savepoint="safe").head.micro_batch == 16


@pytest.mark.parametrize("newest", ["opening", "copy"])
def test_damaged_floor_of_new_job_is_found(memory: DurableBlobs, tmp_path: Path, newest: str) -> None:
    log, blobs = opened(memory), memory
    if newest == "copy":
        micro_batch(log)
        log.propose(pinned(log.draft(Timestamp(3), shards=()), "safe"))
        blobs = FolderBlobs(tmp_path / "copy", sync=False)
        copy_savepoint(memory, log.head, "safe", blobs, tmp_path / "s")
    for name in floors(blobs):
        blobs.put(name, b"?")
    log = opened(blobs)
    assert log.head.micro_batch == (1 if newest == "opening" else 3)
    assert log.floor == (0 if newest == "opening" else 2)


def test_lost_floor_is_named(memory: DurableBlobs) -> None:
    opened(memory)
    name = floors(memory)[0]
    memory.put(name, b"?")
    damaged(memory, 0)
    before = files(memory)
    with pytest.raises(DamagedFileError, match=f"'{name}' in 'memory://'") as damage:
        opened(memory)
    check_message("floor-damaged", str(damage.value), NAME=name)
    assert files(memory) == before


def test_ended_job_is_not_finished_from_savepoint(memory: DurableBlobs) -> None:
    log = opened(memory)
    micro_batch(log, "safe")
    log.propose(log.draft(Timestamp(8), mode=CommitMode.DONE))
    damaged(memory, 2)
    with pytest.raises(DamagedFileError):
        opened(memory, finish=True)
    assert opened(memory, savepoint="safe", finish=True).head.mode == CommitMode.RUNNING


def shard_file(blobs: DurableBlobs, number: int, epoch: int) -> str:
    """Write a task's file for a micro-batch that may never be committed."""
    name = delta(number, epoch).name
    blobs.put(name, b"x")
    return name


def unlisted(blobs: DurableBlobs) -> UnreliableBlobs:
    """Return the store with stale listings: without recent names, and with deleted ones."""
    return UnreliableBlobs(blobs, 1, Faults(stale=1.0))


@pytest.mark.contract("STORE-03", "STORE-07")
@pytest.mark.parametrize("lag", [False, True])
def test_job_without_any_manifest_is_refused(memory: DurableBlobs, lag: bool) -> None:
    log = opened(memory)
    names = [micro_batch(log) for _ in range(5)]
    manifests = {info.name: memory.get(info.name) for info in memory.list("manifests")}
    for name in manifests:
        memory.delete(name)
    before = files(memory)
    for look in (opened, read_newest, inspect):
        with pytest.raises(MissingFileError) as lost:
            look(unlisted(memory) if lag else memory)
        assert f"'{names[0]}' in 'memory://'" in lost.value.message
        assert manifest_name(0) in lost.value.message
        check_message("manifests-missing", lost.value.remedy)
    assert files(memory) == before
    for name, data in manifests.items():
        memory.put(name, data)
    assert opened(memory).head.micro_batch == 6, "the remedy works"


def test_job_that_never_had_a_manifest_begins(memory: DurableBlobs) -> None:
    """A driver that died before its opening left an epoch, a floor, foreign files, and deleted names."""

    def die() -> None:
        raise KeyboardInterrupt

    memory.put("shards/README", b"x")
    lagging = UnreliableBlobs(memory, 1, Faults(stale=1.0))
    lagging.delete(shard_file(lagging, 1, 1))
    deaths = 0
    for calls in range(0, 80, 8):
        store = UnreliableBlobs(lagging, 1)
        store.interrupt(calls, die)
        try:
            opened(store)
        except KeyboardInterrupt:
            deaths += 1
        else:
            break
    head = read_head(memory)
    assert head is not None
    assert (head.micro_batch, head.epoch > 1, deaths > 2) == (0, True, True)
    left = shard_file(memory, 1, head.epoch)
    assert opened(memory).head.micro_batch == 1, "a file of a first micro-batch that was never committed is no evidence"
    assert memory.get(left) == b"x"


@pytest.mark.contract("STORE-03")
@pytest.mark.parametrize("memory", ["memory"], indirect=True)
@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize("requested", [0, 1])
def test_job_begun_by_another_driver_is_not_refused(memory: DurableBlobs, requested: int, swept: bool) -> None:
    class Overtaken(UnreliableBlobs):
        """After the search for the first manifest, let another driver open, and its tasks write."""

        def get(self, name: str) -> bytes:
            nonlocal requested
            try:
                return super().get(name)
            except MissingFileError:
                if name == manifest_name(0):
                    requested -= 1
                    if requested < 0 and not list(memory.list("manifests")):
                        other = opened(memory)
                        for _ in range(3):
                            micro_batch(other)
                        if swept:
                            Sweeper(other, keep=0).sweep()
                raise

    meanwhile = Overtaken(memory, 1)
    try:
        log = opened(meanwhile)
    except (FencedError, IndeterminateError):
        assert requested < 0
        log = opened(meanwhile)
    assert log.head.micro_batch >= 4
    micro_batch(log)
    assert Sweeper(log, keep=0).sweep().unreadable == ()


@pytest.mark.contract("STORE-07")
def test_job_on_files_of_lost_job_removes_none(memory: DurableBlobs) -> None:
    """No listing had them when the job began."""
    lost = shard_file(memory, 3, 1)
    data = memory.get(lost)
    memory.delete(lost)
    memory.put("epochs/00000001", b"{}")
    log = opened(memory)
    for _ in range(3):
        micro_batch(log)
    memory.put(lost, data)
    before = files(memory)
    with pytest.raises(MissingFileError, match=f"'{lost}' in 'memory://'"):
        Sweeper(log, keep=0).sweep()
    assert files(memory) == before
