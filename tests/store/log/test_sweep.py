"""What a sweep removes, and what it never does."""

from __future__ import annotations

import pytest

from arcbeam.model.files import Shard, SideFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import MissingFileError
from arcbeam.store.log.chain import read_manifest
from arcbeam.store.log.savepoints import pinned, unpinned
from arcbeam.store.log.steplog import Committed, StepLog
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest.names import Written, written_name
from tests.store.samples import delta, opened, read_head

pytestmark = pytest.mark.contract("STORE-07")


def step(log: StepLog, name: str = "") -> str:
    """A step whose delta takes the place of all files before; returns the delta's name."""
    file = delta(log.head.step + 1, log.epoch)
    log.blobs.put(file.name, b"x")
    draft = log.draft(Timestamp(0), shards=(Shard(1, 0, (file,)),))
    assert isinstance(log.propose(pinned(draft, name) if name else draft), Committed)
    return file.name


def names(blobs: DurableBlobs, folder: str = "shards") -> list[str]:
    return [info.name for info in blobs.list(folder)]


def test_what_no_manifest_names_any_more_goes(blobs: DurableBlobs) -> None:
    log = opened(blobs)
    files = [step(log) for _ in range(6)]
    swept = Sweeper(log, keep=2).sweep()
    assert swept.files == tuple(files[:3])
    assert swept.size == 3
    assert names(blobs) == files[3:], "of the head, and of the two steps before it"
    assert swept.manifests == tuple(f"manifests/{i:012}" for i in range(4))
    assert [m.step for m in (read_head(blobs), read_manifest(blobs, 4)) if m] == [6, 4]
    assert Sweeper(log, keep=2).sweep().files == ()


def test_an_attempt_of_the_running_step_stays_until_the_step_is_decided(memory: DurableBlobs) -> None:
    log = opened(memory)
    attempt = delta(1, log.epoch).name
    memory.put(attempt, b"x")
    assert Sweeper(log).sweep().files == ()
    step(log)
    assert Sweeper(log).sweep().files == (attempt,)


def test_an_attempt_of_a_driver_that_is_over_goes(memory: DurableBlobs) -> None:
    late = delta(7, opened(memory).epoch).name
    memory.put(late, b"x")
    future = delta(7, 3).name
    memory.put(future, b"x")
    assert Sweeper(opened(memory)).sweep().files == (late,)
    assert names(memory) == [future], "of a driver that is about to open"


def test_what_is_not_ours_stays(memory: DurableBlobs) -> None:
    for name in ("shards/README", "shards/1/0/x.delta", "notes", "manifests/old"):
        memory.put(name, b"x")
    log = opened(memory)
    for _ in range(4):
        step(log)
    Sweeper(log, keep=0).sweep()
    for name in ("shards/README", "shards/1/0/x.delta", "notes", "manifests/old"):
        assert memory.get(name) == b"x"


def test_side_inputs_are_files_like_others(memory: DurableBlobs) -> None:
    log = opened(memory)
    name = written_name(Written(3, 0, 1, 1, "a", "side"))
    memory.put(name, b"x")
    log.propose(log.draft(Timestamp(0), side_files=(SideFile(3, 0, name, 1),)))
    assert Sweeper(log, keep=0).sweep().files == ()
    log.propose(log.draft(Timestamp(0), side_files=()))
    assert Sweeper(log, keep=0).sweep().files == (name,)


@pytest.mark.contract("STORE-05")
def test_a_savepoint_keeps_its_files_until_it_is_given_up(memory: DurableBlobs) -> None:
    log = opened(memory)
    kept = step(log, "before")
    files = [step(log) for _ in range(5)]
    sweeper = Sweeper(log, keep=0)
    sweeper.sweep()
    assert names(memory) == [kept, files[-1]]
    log = opened(memory, savepoint="before")
    assert log.head.shards[0].files[0].name == kept
    log.propose(unpinned(log.draft(Timestamp(0), shards=()), "before"))
    sweeper = Sweeper(log, keep=0)
    assert sweeper.sweep().files == (kept, files[-1])
    with pytest.raises(MissingFileError):
        read_manifest(memory, 1)


def test_openings_are_kept_for_their_names(memory: DurableBlobs) -> None:
    for _ in range(3):
        log = opened(memory)
        step(log)
    for _ in range(4):
        step(log)
    Sweeper(log, keep=1).sweep()
    assert names(memory, "manifests") == [f"manifests/{i:012}" for i in (2, 4, 8, 9)]
    assert read_head(memory) == log.head


def test_nothing_is_removed_while_another_driver_takes_over(memory: DurableBlobs) -> None:
    log = opened(memory)
    for _ in range(4):
        step(log)
    before = names(memory, "manifests")
    memory.put("epochs/00000002", b"{}")
    swept = Sweeper(log, keep=0).sweep()
    assert (swept.files, swept.manifests) == ((), ())
    assert names(memory, "manifests") == before
