"""The files that a sweep removes, and those that it never removes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
from typing_extensions import override

from arcbeam.model.files import Shard, SideFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import BlobInfo, DurableBlobs
from arcbeam.store.blobs.errors import MissingFileError
from arcbeam.store.log import jobgraphs, sweep
from arcbeam.store.log.chain import read_manifest
from arcbeam.store.log.commitlog import CommitLog, Committed
from arcbeam.store.log.inspection import inspect
from arcbeam.store.log.savepoints import pinned, unpinned
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest.jobgraphfile import JobGraph
from arcbeam.store.manifest.names import Written, manifest_name, written_name
from arcbeam.testing.blobs import MemoryBlobs
from tests.store.samples import delta, opened, read_head

pytestmark = pytest.mark.contract("STORE-07")


def micro_batch(log: CommitLog, name: str = "") -> str:
    """Commit a micro-batch whose delta replaces all earlier files; return the delta's name."""
    file = delta(log.head.micro_batch + 1, log.epoch)
    log.blobs.put(file.name, b"x")
    draft = log.draft(Timestamp(0), shards=(Shard(1, 0, (file,)),))
    assert isinstance(log.propose(pinned(draft, name) if name else draft), Committed)
    return file.name


def names(blobs: DurableBlobs, folder: str = "shards") -> list[str]:
    return [info.name for info in blobs.list(folder)]


def test_unnamed_files_are_swept(blobs: DurableBlobs) -> None:
    log = opened(blobs)
    files = [micro_batch(log) for _ in range(6)]
    swept = Sweeper(log, keep=2).sweep()
    assert swept.files == tuple(files[:3])
    assert swept.size == 3
    assert names(blobs) == files[3:], "of the head, and of the two micro-batches before it"
    assert swept.manifests == tuple(f"manifests/{i:012}" for i in range(4))
    assert [m.micro_batch for m in (read_head(blobs), read_manifest(blobs, 4)) if m] == [6, 4]
    assert Sweeper(log, keep=2).sweep().files == ()


def test_sweep_reads_no_manifest_of_its_driver(memory: DurableBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(memory)
    sweeper = Sweeper(log, keep=2)
    sweeper.committed()
    for _ in range(6):
        micro_batch(log)
        sweeper.committed()
    monkeypatch.setattr(sweep, "read_manifest", lambda blobs, number: pytest.fail(f"reads manifest {number}"))
    assert len(sweeper.sweep().files) == 3


def test_attempt_stays_until_micro_batch_is_decided(memory: DurableBlobs) -> None:
    log = opened(memory)
    attempt = delta(1, log.epoch).name
    memory.put(attempt, b"x")
    assert Sweeper(log).sweep().files == ()
    micro_batch(log)
    assert Sweeper(log).sweep().files == (attempt,)


def test_attempt_of_ended_driver_is_swept(memory: DurableBlobs) -> None:
    late = delta(7, opened(memory).epoch).name
    memory.put(late, b"x")
    future = delta(7, 3).name
    memory.put(future, b"x")
    assert Sweeper(opened(memory)).sweep().files == (late,)
    assert names(memory) == [future], "of a driver that is about to open"


def test_foreign_files_stay(memory: DurableBlobs) -> None:
    for name in ("shards/README", "shards/1/0/x.delta", "notes", "manifests/old"):
        memory.put(name, b"x")
    log = opened(memory)
    for _ in range(4):
        micro_batch(log)
    Sweeper(log, keep=0).sweep()
    for name in ("shards/README", "shards/1/0/x.delta", "notes", "manifests/old"):
        assert memory.get(name) == b"x"


def keeps(blobs: DurableBlobs, folder: Path, **files: bytes) -> Callable[[int, str], str]:
    """Store a job graph in a job's folder, with its content from the files."""
    paths = {name: folder / f"{name}-{hash(content)}" for name, content in files.items()}
    for name, path in paths.items():
        path.write_bytes(files[name])
    described = tuple(jobgraphs.described(name, path) for name, path in paths.items())
    return partial(jobgraphs.keep, blobs, JobGraph("words", repr(files).encode(), files=described), paths)


def is_whole(blobs: DurableBlobs, job_graph: str) -> bool:
    for file in jobgraphs.read(blobs, job_graph).files:
        jobgraphs.fetch(blobs, file, len)
    return True


def test_job_graphs_are_swept_with_last_manifest(blobs: DurableBlobs, tmp_path: Path) -> None:
    log = opened(blobs, job_graph=keeps(blobs, tmp_path, a=b"shared", b=b"first"))
    first = log.head.job_graph
    micro_batch(log, "safe")
    blobs.put("job_graphs/0123456789abcdef", b"of an earlier version")
    log = opened(blobs, job_graph=keeps(blobs, tmp_path, a=b"shared", b=b"second"))
    second, opening = log.head.job_graph, log.head.micro_batch
    log = opened(blobs, job_graph=keeps(blobs, tmp_path, a=b"shared", b=b"third"))
    third = log.head.job_graph
    waiting = keeps(blobs, tmp_path, c=b"of a driver that starts")(log.epoch + 1, third)
    for _ in range(3):
        micro_batch(log)
    swept = Sweeper(log, keep=1).sweep().files
    assert [name for name in swept if name.startswith("job_graphs/")] == [
        second,
        f"job_graphs/files/00000002-{sha256(b'second').hexdigest()}",
    ], "files that it shares with others, or that a savepoint needs, are kept"
    assert is_whole(blobs, first)
    assert is_whole(blobs, third)
    assert is_whole(blobs, waiting)
    assert inspect(blobs, micro_batch=opening).damaged == (), "an opening is kept for its name"
    assert inspect(blobs, micro_batch=opening).job_graph is None
    log.propose(unpinned(log.draft(Timestamp(0)), "safe"))
    for _ in range(4):
        micro_batch(log)
    swept = Sweeper(log, keep=1).sweep().files
    assert [name for name in swept if name.startswith("job_graphs/")] == [
        first,
        f"job_graphs/files/00000001-{sha256(b'first').hexdigest()}",
    ]
    assert is_whole(blobs, third)
    assert blobs.get("job_graphs/0123456789abcdef"), "an earlier version used names of the content alone"


def test_unreadable_job_graph_keeps_all_files(memory: DurableBlobs, tmp_path: Path) -> None:
    opened(memory, job_graph=keeps(memory, tmp_path, a=b"first"))
    log = opened(memory, job_graph=keeps(memory, tmp_path, a=b"second"))
    for _ in range(4):
        micro_batch(log)
    data = memory.get(log.head.job_graph)
    for damage in (lambda: memory.put(log.head.job_graph, data[:-1]), lambda: memory.delete(log.head.job_graph)):
        damage()
        assert not any(name.startswith("job_graphs/") for name in Sweeper(log, keep=0).sweep().files)
    memory.put(log.head.job_graph, data)
    assert len([name for name in Sweeper(log, keep=0).sweep().files if name.startswith("job_graphs/")]) == 2


def test_sweep_spares_job_graph_of_new_driver(tmp_path: Path) -> None:
    class Slow(MemoryBlobs):
        starts: Callable[[], object] | None = None

        def delete(self, name: str) -> None:
            starts, self.starts = self.starts, None
            if starts is not None:
                starts()
            super().delete(name)

    blobs, heads = Slow(), list[CommitLog]()
    again = keeps(blobs, tmp_path, a=b"comes again")
    opened(blobs, job_graph=again)
    log = opened(blobs, job_graph=keeps(blobs, tmp_path, a=b"other"))
    for _ in range(4):
        micro_batch(log)
    blobs.starts = lambda: heads.append(opened(blobs, job_graph=again))
    assert [name for name in Sweeper(log, keep=0).sweep().files if name.startswith("job_graphs/")]
    assert is_whole(blobs, heads[0].head.job_graph)
    assert is_whole(blobs, opened(blobs).head.job_graph)


def test_side_input_files_are_swept(memory: DurableBlobs) -> None:
    log = opened(memory)
    name = written_name(Written(3, 0, 1, 1, "a", "side"))
    memory.put(name, b"x")
    log.propose(log.draft(Timestamp(0), side_files=(SideFile(3, 0, name, 1, 0),)))
    assert Sweeper(log, keep=0).sweep().files == ()
    log.propose(log.draft(Timestamp(0), side_files=()))
    assert Sweeper(log, keep=0).sweep().files == (name,)


@pytest.mark.contract("STORE-05")
def test_savepoint_keeps_its_files_until_deleted(memory: DurableBlobs) -> None:
    log = opened(memory)
    kept = micro_batch(log, "before")
    files = [micro_batch(log) for _ in range(5)]
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


def test_openings_stay_for_their_names(memory: DurableBlobs) -> None:
    for _ in range(3):
        log = opened(memory)
        micro_batch(log)
    for _ in range(4):
        micro_batch(log)
    Sweeper(log, keep=1).sweep()
    assert names(memory, "manifests") == [f"manifests/{i:012}" for i in (2, 4, 8, 9)]
    assert read_head(memory) == log.head


def test_sweep_stops_during_takeover(memory: DurableBlobs) -> None:
    log = opened(memory)
    for _ in range(4):
        micro_batch(log)
    before = names(memory, "manifests")
    memory.put("epochs/00000002", b"{}")
    swept = Sweeper(log, keep=0).sweep()
    assert (swept.files, swept.manifests) == ((), ())
    assert names(memory, "manifests") == before


class Listing(MemoryBlobs):
    """A store whose listing lacks some names; notes what is deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.lacks: set[str] = set()
        self.deleted: list[str] = []

    @override
    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        return (info for info in super().list(prefix, after) if info.name not in self.lacks)

    @override
    def delete(self, name: str) -> None:
        self.deleted.append(name)
        super().delete(name)


@pytest.mark.parametrize("lacks", [(4,), (5,), (7,), (4, 5, 6, 7), ()])
def test_manifests_are_deleted_from_the_old_floor_on_whatever_is_listed(lacks: tuple[int, ...]) -> None:
    """A reader of the old floor must find out that it is one, so the floor's manifest is the first to go."""
    blobs = Listing()
    log = opened(blobs)
    sweeper = Sweeper(log, keep=0)
    for until in (4, 8):
        while log.head.micro_batch < until:
            micro_batch(log)
        if until == 8:
            blobs.deleted.clear()
            blobs.lacks = {manifest_name(number) for number in lacks}
        assert (sweeper.sweep().manifests, log.floor) == (
            tuple(manifest_name(number) for number in range(until - 4, until)),
            until,
        )
    assert [name for name in blobs.deleted if name.startswith("manifests")] == [
        manifest_name(number) for number in range(4, 8)
    ]
    assert sorted(name for name in blobs.data if name.startswith("manifests")) == [manifest_name(8)]


@pytest.mark.contract("STORE-05")
@pytest.mark.parametrize("seed", range(12))
def test_sweeps_between_savepoints_and_drivers_keep_what_counts(seed: int) -> None:
    """Savepoints are taken and deleted, drivers take over, and the number of micro-batches to keep changes."""
    memory = MemoryBlobs()
    chance, log, openings = random.Random(seed), opened(memory), {0}
    sweeper, fresh = Sweeper(log), seed % 2
    for number in range(50):
        match chance.choice(["commit", "commit", "pin", "unpin", "open", "sweep"]):
            case "commit":
                micro_batch(log)
            case "pin":
                micro_batch(log, f"of-{number}")
            case "unpin" if log.head.pins:
                draft = log.draft(Timestamp(0), shards=log.head.shards)
                log.propose(unpinned(draft, chance.choice(log.head.pins).name))
            case "open":
                log = opened(memory)
                openings.add(log.head.micro_batch)
                sweeper = Sweeper(log)
            case "sweep":
                sweeper = Sweeper(log) if fresh else sweeper
                sweeper._keep = chance.choice([0, 1, 3])
                sweeper.sweep()
                kept = {of: read_manifest(memory, of) for of in range(log.floor, log.head.micro_batch + 1)}
                pins = {pin.micro_batch for manifest in kept.values() for pin in manifest.pins}
                kept |= {of: read_manifest(memory, of) for of in pins}
                left = {name.rpartition("/")[2] for name in names(memory, "manifests")}
                assert {int(name) for name in left} - openings == kept.keys() - openings
                assert set(names(memory)) == {name for manifest in kept.values() for name in manifest.file_names()}
