"""A job's folder after a power failure at any moment: all reported commits exist, complete, and the job resumes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from arcbeam.model.commits import CommitMode, Committable
from arcbeam.model.files import Shard
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import jobgraphs, requests
from arcbeam.store.log.chain import read_newest
from arcbeam.store.log.commitlog import Committed
from arcbeam.store.log.inspection import inspect
from arcbeam.store.log.requests import Answer, AnswerKind, RequestKind
from arcbeam.store.log.savepoints import pinned, unpinned
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest.jobgraphfile import JobGraph
from arcbeam.store.manifest.names import Written
from arcbeam.store.manifest.values import Manifest
from arcbeam.store.shards.cache import HostCache
from arcbeam.store.shards.compaction import compact, worth_merging
from tests.chaos.power import Recording, each_outcome
from tests.store.samples import opened, version

pytestmark = pytest.mark.contract("STORE-09")


class Run:
    """A driver whose micro-batches count up to their own number in two shards, and report their commits."""

    def __init__(self, folder: Path, scratch: Path, recording: Recording | None = None) -> None:
        scratch.mkdir(exist_ok=True)
        self.scratch, self.recording = scratch, recording
        self.cache = HostCache(scratch / "cache")
        script = scratch / "script.py"
        script.write_text("the script")
        self.blobs = FolderBlobs(folder)

        def kept(epoch: int, before: str) -> str:
            job_graph = JobGraph("job", b"pipeline", files=(jobgraphs.described("script.py", script),))
            return jobgraphs.keep(self.blobs, job_graph, {"script.py": script}, epoch, before)

        self.log = opened(self.blobs, job_graph=kept)
        self.report("committed", self.log.head.micro_batch)

    def report(self, *what: Any) -> None:
        if self.recording is not None:
            self.recording.note(what)

    def micro_batch(self, **changes: Any) -> None:
        log, shards = self.log, []
        number = log.head.micro_batch + 1
        for shard in (0, 1):
            at = version(log.head, 1, shard)
            view = self.cache.view(log.blobs, at)
            view.put(b"count", b"%d" % (counted(view) + 1))
            view.put(b"n%06d" % number, b"x" * 30)
            delta = self.cache.publish(log.blobs, at, Written(1, shard, number, log.epoch, "a", "delta"), view, number)
            view.close()
            assert delta is not None
            files = at.files
            if (first := worth_merging(files)) is not None:
                merged = Written(1, shard, number, log.epoch, "m", "snapshot")
                files = compact(log.blobs, self.scratch, files, first, merged)
            shards.append(Shard(1, shard, (*files, delta)))
        self.commit(shards=tuple(shards), committables=(Committable("write", b"part"),), **changes)

    def commit(self, name: str = "", given_up: str = "", **changes: Any) -> None:
        draft = self.log.draft(Timestamp(self.log.head.micro_batch + 1), **changes)
        if given_up:
            self.report("given up", given_up)
            draft = unpinned(draft, given_up)
        if name:
            draft = pinned(draft, name)
        assert isinstance(self.log.propose(draft), Committed)
        self.report("committed", draft.micro_batch)
        for pin in draft.pins:
            self.report("savepoint", pin.name, pin.micro_batch)

    def sweep(self) -> None:
        Sweeper(self.log, keep=1).sweep()


def counted(view: Any) -> int:
    """Return the counted numbers, which must be complete."""
    count = int(view.get(b"count") or b"0")
    assert count == sum(1 for _ in view.scan(b"n", b"o"))
    return count


def scenario(folder: Path, scratch: Path, recording: Recording) -> None:
    """Run two drivers, with a kept and a deleted savepoint, requests, merged files, sweeps, and a suspension."""
    run = Run(folder, scratch / "one", recording)
    run.micro_batch()
    requested = requests.ask(run.blobs, RequestKind.SAVEPOINT, "safe", Timestamp(1))
    recording.note(("requested", requested.id))
    run.micro_batch(name="safe")
    requests.answer(run.blobs, requested.id, Answer(AnswerKind.DONE, "", run.log.head.micro_batch))
    recording.note(("answered", requested.id))
    run.sweep()
    run.micro_batch(name="gone")
    for _ in range(3):
        run.micro_batch()
        run.sweep()
    run.micro_batch(given_up="gone")
    run.sweep()
    run = Run(folder, scratch / "two", recording)
    for _ in range(2):
        run.micro_batch()
        run.sweep()
    run.micro_batch(mode=CommitMode.SUSPENDED)


def promised(place: Path, notes: Sequence[Any]) -> None:
    """Check that all reported commits exist, and that the job resumes."""
    blobs = FolderBlobs(place / "above" / "job", sync=False)
    committed = max((note[1] for note in notes if note[0] == "committed"), default=-1)
    given_up = {note[1] for note in notes if note[0] == "given up"}
    newest = read_newest(blobs)
    if newest is None:
        assert committed < 0
    else:
        assert isinstance(newest, Manifest)
        assert newest.micro_batch >= committed
        named = {pin.name: pin.micro_batch for pin in newest.pins}
        for _, name, micro_batch in (note for note in notes if note[0] == "savepoint"):
            assert name in given_up or named[name] == micro_batch
        for name in ("", *named):
            found = inspect(blobs, savepoint=name, check=True)
            assert (found.damaged, found.problems) == ((), ())
        requested, answered = ({note[1] for note in notes if note[0] == what} for what in ("requested", "answered"))
        # A request stays until it is answered, and the answer can be read.
        assert requested - answered <= set(requests.waiting(blobs)) | {info.name[8:] for info in blobs.list("answers")}
    log = opened(blobs, force=True)
    assert log.head.micro_batch > committed
    log.propose(log.draft(Timestamp(100)))
    Sweeper(log, keep=1).sweep()
    for name in ("", *(pin.name for pin in log.head.pins)):
        assert inspect(blobs, savepoint=name, check=True).problems == ()


def recorded(tmp_path: Path) -> Recording:
    disk = tmp_path / "disk"
    (disk / "above").mkdir(parents=True)
    with Recording(disk) as recording:
        scenario(disk / "above" / "job", tmp_path, recording)
    return recording


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)], ids=["sampled", "all"])
def test_power_failure_loses_nothing_reported(tmp_path: Path, *, whole: bool) -> None:
    recording = recorded(tmp_path)
    folder = tmp_path / "outcomes"
    folder.mkdir()
    assert each_outcome(recording, folder, promised, 1000 if whole else 90, extremes=whole) > 60


class Killed(BaseException):
    """Replaces kill -9."""


def test_next_writer_syncs_leftovers_of_killed_one(tmp_path: Path) -> None:
    """A writer dies before each of its operations. Another one finds its folders, perhaps its name."""
    for at in itertools.count(1):
        disk = tmp_path / f"disk-{at}"
        (disk / "above").mkdir(parents=True)
        turns = itertools.count(1)

        def before(at: int = at, turns: Iterator[int] = turns) -> None:
            if next(turns) >= at:
                raise Killed

        recording = Recording(disk)
        recording.before, died = before, False
        folder = disk / "above" / "new" / "job"
        with recording:
            try:
                FolderBlobs(folder).put("shards/1/0/first", b"first")
                FolderBlobs(folder).create("manifests/1", b"manifest")
            except Killed:
                died = True
            recording.before = lambda: None
            FolderBlobs(folder).create("manifests/1", b"manifest")
            FolderBlobs(folder).put("shards/1/0/second", b"second")
            recording.note("reported")

        def promised(place: Path, notes: Sequence[Any]) -> None:
            blobs = FolderBlobs(place / "above" / "new" / "job", sync=False)
            if notes:
                assert (blobs.get("manifests/1"), blobs.get("shards/1/0/second")) == (b"manifest", b"second")

        outcomes = tmp_path / f"outcomes-{at}"
        outcomes.mkdir()
        each_outcome(recording, outcomes, promised, 30, extremes=True)
        if not died:
            break
    assert at > 10
