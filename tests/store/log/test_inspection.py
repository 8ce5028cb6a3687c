"""The content of a job's folder, as values."""

from __future__ import annotations

import struct
from pathlib import Path
from zlib import crc32

import pytest

from arcbeam.model.commits import Committable
from arcbeam.model.files import Shard, ShardFile, SideFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.log.inspection import inspect, savepoints
from arcbeam.store.log.savepoints import pinned
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest.names import Written, manifest_name, written_name
from arcbeam.store.manifest.values import HoldSummary, OutputWatermark, ResidualSummary, StageWatermarks
from arcbeam.store.shards.compaction import publish
from arcbeam.store.shards.shardfile import in_blocks
from tests.store.samples import opened

pytestmark = pytest.mark.contract("STORE-05")


@pytest.fixture
def job(memory: DurableBlobs, tmp_path: Path) -> CommitLog:
    log = opened(memory, driver="host-a")
    files = [
        publish(
            memory,
            tmp_path,
            Written(1, shard, 1, 1, "a", "delta"),
            in_blocks([*((b"k%02d" % i, b"v") for i in range(10 * (shard + 1))), (b"l", None)]),
            first_micro_batch=1,
            last_micro_batch=1,
        )
        for shard in (0, 2)
    ]
    draft = log.draft(
        Timestamp(10),
        shards=(Shard(1, 0, (files[0],)), Shard(1, 2, (files[1],))),
        watermarks=(StageWatermarks("count", Timestamp(3), Timestamp(2), (OutputWatermark("out", Timestamp(1)),)),),
        holds=(HoldSummary("count", 4, Timestamp(1), "a timer"),),
        residuals=(ResidualSummary("read", 2, 0.5, Timestamp(9)),),
        committables=(Committable("write", b""),),
    )
    log.propose(pinned(draft, "first"))
    log.propose(log.draft(Timestamp(20), shards=()))
    return log


def test_savepoints_are_read_from_their_manifests(memory: DurableBlobs, job: CommitLog) -> None:
    job.propose(pinned(job.draft(Timestamp(30), shards=()), "newest"))
    first, newest = savepoints(memory)
    assert (first.name, first.micro_batch, first.problem, first.later) == ("first", 1, "", 2)
    assert (newest.name, newest.micro_batch, newest.problem, newest.later) == ("newest", 3, "", 0)
    assert first.to_publish == 1


def test_inspection_has_content_of_folder(memory: DurableBlobs, job: CommitLog) -> None:
    found = inspect(memory, savepoint="first")
    assert (found.micro_batch, found.epoch, found.driver, found.committables) == (1, 1, "host-a", 1)
    assert [(s.stage, s.level, s.input, len(s.holds), len(s.residuals)) for s in found.stages] == [
        ("count", 1, 2, 1, 0),
        ("read", None, None, 0, 1),
    ]
    (level,) = found.levels
    assert (level.shards, level.files, level.entries, level.tombstones, level.largest) == (2, 2, 40, 2, 2)
    assert [pin.name for pin in found.savepoints] == ["first"]
    assert found.problems is None
    newest = inspect(memory)
    assert [(s.micro_batch, s.kind, s.written) for s in newest.micro_batches] == [
        (2, "micro-batch", 0),
        (1, "micro-batch", level.size),
        (0, "opening", 0),
    ]
    assert newest.levels == ()


def test_check_reads_files(memory: DurableBlobs, job: CommitLog) -> None:
    assert inspect(memory, micro_batch=1, check=True).problems == ()
    names = [file.name for shard in inspect_manifest_shards(job) for file in shard.files]
    data = memory.get(names[0])
    memory.put(names[0], data[:20] + b"\xff" + data[21:])
    memory.delete(names[1])
    problems = inspect(memory, micro_batch=1, check=True).problems
    assert problems is not None
    assert [name in problem for name, problem in zip(names, problems, strict=True)] == [True, True]


def test_check_reports_all_faults(memory: DurableBlobs, job: CommitLog, tmp_path: Path) -> None:
    def published(shard: int) -> ShardFile:
        written = Written(1, shard, 3, 1, "b", "delta")
        return publish(memory, tmp_path, written, in_blocks([(b"k", b"v")]), first_micro_batch=3, last_micro_batch=3)

    contents = [b"0123456789", b"abc", b"", b"x" * 100]
    sides = []
    for shard, content in enumerate(contents):
        name = written_name(Written(7, shard, 3, 1, "a", "side"))
        memory.put(name, content)
        sides.append(SideFile(7, shard, name, len(content), crc32(content)))
    files = [published(0), published(1), published(2)]
    shards = tuple(Shard(1, shard, (file,)) for shard, file in enumerate(files))
    job.propose(job.draft(Timestamp(30), shards=shards, side_files=tuple(sides)))
    assert inspect(memory, check=True).problems == ()

    start = struct.pack("<8sI", b"arcshard", 9)
    data = memory.get(files[0].name)
    memory.put(files[0].name, start + struct.pack("<I", crc32(start)) + data[len(start) + 4 :])
    memory.put(files[2].name, memory.get(files[2].name)[:-1])
    memory.put(sides[0].name, b"0123456788")
    memory.put(sides[1].name, b"ab")
    memory.put(sides[2].name, b"?")
    memory.delete(sides[3].name)
    memory.put(manifest_name(1), b"")  # of the savepoint
    problems = inspect(memory, check=True).problems
    assert problems is not None
    assert [problem.replace("'memory://'", "here") for problem in problems] == [
        f"shard file '{files[0].name}' in here has format 9; this version of arcbeam reads up to 1",
        f"shard file '{files[2].name}' in here is damaged: it does not have the {files[2].size} bytes of the manifest",
        f"side-input file '{sides[0].name}' in here is damaged: its content was changed",
        f"side-input file '{sides[1].name}' in here is damaged: it has 2 of 3 bytes",
        f"side-input file '{sides[2].name}' in here is damaged: it has more than 0 bytes",
        f"'{sides[3].name}' is missing in here",
        f"manifest '{manifest_name(1)}' in here is damaged: it does not begin as a manifest",
    ]


def inspect_manifest_shards(job: CommitLog) -> tuple[Shard, ...]:
    from arcbeam.store.log.chain import read_manifest

    return read_manifest(job.blobs, 1).shards


def test_missing_job_micro_batch_and_savepoint_are_errors(memory: DurableBlobs) -> None:
    with pytest.raises(StoreError, match="'memory://'"):
        inspect(memory)
    log = opened(memory)
    for _ in range(5):
        log.propose(log.draft(Timestamp(0)))
    Sweeper(log, keep=1).sweep()
    with pytest.raises(StoreError, match=r" 2 in 'memory://'\n.* 5;"):
        inspect(memory, micro_batch=2)
    with pytest.raises(StoreError, match="'x'"):
        inspect(memory, savepoint="x")
    assert [micro_batch.micro_batch for micro_batch in inspect(memory).micro_batches] == [5, 4]


def test_damaged_older_micro_batch_hides_nothing(memory: DurableBlobs, job: CommitLog) -> None:
    memory.put(manifest_name(1), b"Obj")
    found = inspect(memory)
    assert (found.micro_batch, [micro_batch.micro_batch for micro_batch in found.micro_batches]) == (2, [2, 0])
    (damage,) = found.damaged
    assert f"'{manifest_name(1)}' in 'memory://' is damaged" in damage
