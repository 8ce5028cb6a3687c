"""Another number of shards: committed as a whole or not at all, at a resume or offline."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from arcbeam.engine.rows.keyspace import END, Section, put_format
from arcbeam.engine.state.cells import BagCell, Cells
from arcbeam.errors import ArcbeamError, RequestRefusedError
from arcbeam.model.commits import CommitMode
from arcbeam.model.files import Shard
from arcbeam.model.plan import Channel, Plan, Routing, Stage
from arcbeam.model.rows import key_hash
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.errors import FencedError, IncompatibleStateError, StoreError
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.log.commitlog import Committed
from arcbeam.store.log.inspection import inspect
from arcbeam.store.log.savepoints import pinned
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest.names import Written
from arcbeam.store.manifest.values import Manifest
from arcbeam.store.shards.cache import HostCache
from arcbeam.store.shards.compaction import publish, scan
from arcbeam.store.shards.shardfile import in_blocks
from arcbeam.streaming.driverstate import Progress
from arcbeam.streaming.restore import rescaling
from arcbeam.streaming.restore.rescaling import rescale_stopped, resumed_from, stages_of
from arcbeam.streaming.restore.restore import RestoreOptions, Taken, restore
from arcbeam.streaming.restore.sharing import balanced
from arcbeam.testing.blobs import MemoryBlobs
from arcbeam.testing.views import MemoryView
from tests.golden import check_message
from tests.store.samples import version

pytestmark = pytest.mark.contract("STORE-05", "STORE-12")

_KEYS = [b"key-%d" % number for number in range(20)]
_STAGE = 2


def plan(stage: str = "sum") -> Plan:
    return Plan(
        "job",
        (
            Stage("s0", "read", (), b"", None, (0,), uid="read"),
            Stage("s1", "sum", (), b"", 0, (), uid=stage, shape="coder; windows; state s: bag<bytes>"),
        ),
        (Channel(0, "rows", Routing.KEYED, "", "", ("s0",), ("s1",)),),
        bounded=False,
    )


def taken(blobs: MemoryBlobs, how: RestoreOptions = RestoreOptions(), of: Plan | None = None) -> Taken:
    return restore(of or plan(), blobs, how, shards=4, now=Timestamp(1), driver="here")


def rows(keys: list[bytes], shards: int) -> list[MemoryView]:
    views = [MemoryView() for _ in range(shards)]
    for key in keys:
        view = views[key_hash(key) % shards]
        put_format(view)
        BagCell(Cells(view, _STAGE), "s").add(key, b"", b"of " + key)
    return views


def committed(blobs: MemoryBlobs, tmp_path: Path, mode: CommitMode = CommitMode.SUSPENDED) -> Taken:
    """A job with a micro-batch that has written the state of all keys, with savepoint 'safe'."""
    job = taken(blobs)
    files = [
        publish(
            blobs,
            tmp_path,
            Written(1, shard, 1, job.log.epoch, "a", "delta"),
            in_blocks(view.scan(b"")),
            first_micro_batch=1,
            last_micro_batch=1,
        )
        for shard, view in enumerate(rows(_KEYS, 4))
    ]
    draft = job.log.draft(
        Timestamp(2),
        mode=mode,
        shards=tuple(Shard(1, shard, (file,)) for shard, file in enumerate(files)),
        progress=Progress(("read",), "", {"read": 1, "sum": _STAGE}).encoded(),
    )
    assert isinstance(job.log.propose(pinned(draft, "safe")), Committed)
    return job


def state(blobs: MemoryBlobs, head: Manifest) -> Mapping[int, Mapping[bytes, bytes]]:
    return {shard.shard: dict(scan(blobs, shard.files)) for shard in head.shards}


def expected(shards: int) -> Mapping[int, Mapping[bytes, bytes]]:
    return {number: view.snapshot() for number, view in enumerate(rows(_KEYS, shards)) if len(view)}


def test_resume_takes_another_number_of_shards(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    committed(blobs, tmp_path)
    for shards in (5, 128, 3):
        job = taken(blobs, RestoreOptions(shards=shards))
        assert (job.shards, job.log.head.shape.shards) == (shards, shards)
        assert state(blobs, job.log.head) == expected(shards)
        assert inspect(blobs, check=True).problems == ()
    assert taken(blobs).rescaled_from is None
    assert taken(blobs).shards == 3, "it stays"
    # The savepoint still has its own number.
    assert resumed_from(blobs, "safe").shape.shards == 4  # type: ignore[union-attr]
    back = taken(blobs, RestoreOptions("safe"))
    assert (back.shards, back.rescaled_from, state(blobs, back.log.head)) == (4, None, expected(4))
    again = taken(blobs, RestoreOptions("safe", shards=2))
    assert (again.rescaled_from, state(blobs, again.log.head)) == (4, expected(2))


@contextlib.contextmanager
def processes(count: int) -> Iterator[None]:
    """Make several processes share even little state."""
    with patch.object(rescaling, "_SHARED", 0), patch.object(rescaling, "usable", return_value=count):
        yield


def test_processes_share_the_work(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    committed(blobs, tmp_path)
    with processes(2):
        job = taken(blobs, RestoreOptions(shards=5))
    assert state(blobs, job.log.head) == expected(5)
    assert inspect(blobs, check=True).problems == ()


def test_process_that_dies_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = MemoryBlobs()
    committed(blobs, tmp_path)
    before = known(read_newest(blobs))  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with processes(2), pytest.raises(ArcbeamError, match="a process that rescales state has ended with code 1"):
        rescale_stopped(blobs, 5, Timestamp(5))
    assert known(read_newest(blobs)) == before  # type: ignore[arg-type]


def test_groups_of_shards_are_balanced() -> None:
    assert balanced({0: 50, 1: 10, 2: 30, 3: 10}, 2) == [[0], [1, 2, 3]]
    assert balanced({4: 0, 2: 0}, 3) == [[2], [4]]
    assert balanced({}, 3) == []


def test_copies_on_hosts_follow(tmp_path: Path) -> None:
    blobs, cache = MemoryBlobs(), HostCache(tmp_path / "host")
    head = committed(blobs, tmp_path).log.head
    for shards in (4, 2, 5):
        if shards != 4:
            head = taken(blobs, RestoreOptions(shards=shards)).log.head
        for shard, wanted in expected(shards).items():
            view = cache.view(blobs, version(head, 1, shard))
            assert dict(view.scan(b"")) == wanted
            view.close()
    cache.release(head.job)


def test_state_moves_to_another_level_and_number_of_shards_together(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    committed(blobs, tmp_path)
    deeper = plan()
    between = Stage("s2", "pass", (), b"", 1, (0,), uid="pass")
    first = replace(deeper.stages[0], sinks=(1,))
    channels = (
        replace(deeper.channels[0], producers=("s2",)),
        Channel(1, "more", Routing.SPREAD, "", "", ("s0",), ("s2",)),
    )
    deeper = replace(deeper, stages=(first, between, deeper.stages[1]), channels=channels)
    job = taken(blobs, RestoreOptions(shards=5), deeper)
    assert [move.target for move in job.moved] == [2]
    assert {shard.level for shard in job.log.head.shards} == {2}
    assert state(blobs, job.log.head) == expected(5)


def test_running_driver_is_fenced(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    old = committed(blobs, tmp_path, CommitMode.RUNNING)
    taken(blobs, RestoreOptions(shards=5))
    old.log.propose(old.log.draft(Timestamp(3)))
    assert isinstance(old.log.fenced(), FencedError)


def test_crash_before_the_commit_changes_nothing(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    committed(blobs, tmp_path)
    before = known(read_newest(blobs))  # type: ignore[arg-type]
    many = 0

    def dies(*arguments: object, **more: object) -> object:
        nonlocal many
        many += 1
        if many == 3:
            raise StoreError("the disk is full", "")
        return publish(*arguments, **more)  # type: ignore[arg-type]

    with patch("arcbeam.store.shards.rewriting.publish", dies), pytest.raises(StoreError, match="the disk is full"):
        taken(blobs, RestoreOptions(shards=5))
    assert known(read_newest(blobs)) == before  # type: ignore[arg-type]
    assert state(blobs, before) == expected(4)
    job = taken(blobs)
    assert (job.shards, state(blobs, job.log.head)) == (4, expected(4))


def test_files_of_an_interrupted_rescale_are_swept(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    committed(blobs, tmp_path)
    before = set(blobs.data)
    written: list[str] = []

    def interrupted(*arguments: object, **more: object) -> object:
        if len(written) == 2:
            raise KeyboardInterrupt
        file = publish(*arguments, **more)  # type: ignore[arg-type]
        written.append(file.name)
        return file

    with patch("arcbeam.store.shards.rewriting.publish", interrupted), pytest.raises(KeyboardInterrupt):
        rescale_stopped(blobs, 5, Timestamp(5))
    assert set(written) <= set(blobs.data) - before
    job = taken(blobs)
    Sweeper(job.log).sweep()
    assert not set(written) & set(blobs.data)
    assert state(blobs, job.log.head) == expected(4)


def test_ended_job_is_not_rescaled(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    committed(blobs, tmp_path, CommitMode.DONE)
    assert taken(blobs, RestoreOptions(shards=4)).shards == 4
    before = dict(blobs.data)
    with pytest.raises(IncompatibleStateError) as refused:
        taken(blobs, RestoreOptions(shards=9))
    check_message("other-shards", str(refused.value))
    with pytest.raises(RequestRefusedError, match="it has ended"):
        rescale_stopped(blobs, 9, Timestamp(5))
    assert blobs.data == before
    forced = taken(blobs, RestoreOptions(shards=9, force=True))
    assert state(blobs, forced.log.head) == expected(9)


def test_offline_rescale_leaves_the_job_suspended(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    committed(blobs, tmp_path)
    opening, had = rescale_stopped(blobs, 5, Timestamp(5))
    assert (had, opening.mode, opening.shape.shards) == (4, CommitMode.SUSPENDED, 5)
    assert [pin.name for pin in opening.pins] == ["safe"]
    assert state(blobs, opening) == expected(5)
    with pytest.raises(RequestRefusedError, match="has 5 shards already"):
        rescale_stopped(blobs, 5, Timestamp(6))
    job = taken(blobs)
    assert (job.shards, job.log.head.mode, state(blobs, job.log.head)) == (5, CommitMode.RUNNING, expected(5))


def test_offline_rescale_of_a_running_job_needs_force(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    committed(blobs, tmp_path, CommitMode.RUNNING)
    with pytest.raises(RequestRefusedError, match="it is running, and a driver may run it"):
        rescale_stopped(blobs, 5, Timestamp(5))
    opening, _ = rescale_stopped(blobs, 5, Timestamp(5), force=True)
    assert state(blobs, opening) == expected(5)
    with pytest.raises(StoreError, match="there is no job"):
        rescale_stopped(MemoryBlobs(), 5, Timestamp(5))


def test_stage_whose_keys_are_unknown_is_refused_by_name(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    job = taken(blobs)
    view = MemoryView()
    put_format(view)
    cells = Cells(view, _STAGE)
    BagCell(cells, "s").add(b"k" * 500, b"", b"v")
    view.delete(cells.start(b"k" * 500, b"")[:-1] + bytes((Section.KEY,)) + END)
    name = Written(1, 0, 1, job.log.epoch, "a", "delta")
    file = publish(blobs, tmp_path, name, in_blocks(view.scan(b"")), first_micro_batch=1, last_micro_batch=1)
    progress = Progress(("read",), "", {"read": 1, "sum": _STAGE}).encoded()
    job.log.propose(job.log.draft(Timestamp(2), shards=(Shard(1, 0, (file,)),), progress=progress))
    for several in (contextlib.nullcontext(), processes(2)):
        with several, pytest.raises(ArcbeamError) as refused:
            taken(blobs, RestoreOptions(shards=5))
        check_message("rescale-long-key", str(refused.value))
    assert taken(blobs).shards == 4


def test_stages_with_states_or_timers_are_stateful() -> None:
    blobs = MemoryBlobs()
    log = taken(blobs).log
    shapes = ("", "state; timer", "coder; windows; timer t: event_time", "coder; windows; side input x")
    stages = tuple(replace(log.head.shape.stages[0], stage=f"s{n}", shape=shape) for n, shape in enumerate(shapes))
    head = replace(
        log.head,
        shape=replace(log.head.shape, stages=stages),
        progress=Progress(numbers={f"s{n}": n + 1 for n in range(3)}).encoded(),
    )
    assert {number: (of.name, of.stateful) for number, of in stages_of(head).items()} == {
        1: ("s0", False),
        2: ("s1", False),
        3: ("s2", True),
    }
