"""`arcbeam savepoints`: those of a job that runs are changed by its driver, those of a stopped one here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from arcbeam.cli import main
from arcbeam.model.commits import CommitMode
from arcbeam.model.files import Shard
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import requests
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.log.inspection import inspect
from arcbeam.store.log.requests import Answer, Asked, Said
from arcbeam.store.log.savepoints import pinned
from arcbeam.store.manifest.names import Written, manifest_name
from arcbeam.store.shards.compaction import publish
from arcbeam.store.shards.shardfile import in_blocks
from tests.cli.test_control import driven
from tests.golden import check_message
from tests.store.samples import opened, read_head

pytestmark = pytest.mark.contract("OPS-02", "STORE-05")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main.main, ["savepoints", *arguments])


class Job:
    """A job in a folder, of two micro-batches with a file each, of which the first is savepoint 'early'."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "job")
        self.blobs = FolderBlobs(folder / "job", sync=False)
        self.log = opened(self.blobs)
        self._scratch = folder / "scratch"
        self.micro_batch(pin="early")
        self.micro_batch()

    def micro_batch(self, *, pin: str = "", mode: CommitMode = CommitMode.RUNNING) -> CommitLog:
        micro_batch = self.log.head.micro_batch + 1
        file = publish(
            self.blobs,
            self._scratch,
            Written(1, 0, micro_batch, self.log.epoch, "a", "delta"),
            in_blocks([(b"k%d" % micro_batch, b"v" * 50)]),
            first_micro_batch=micro_batch,
            last_micro_batch=micro_batch,
        )
        draft = self.log.draft(Timestamp(micro_batch * 1_000_000), shards=(Shard(1, 0, (file,)),), mode=mode)
        self.log.propose(pinned(draft, pin) if pin else draft)
        return self.log

    @property
    def names(self) -> Sequence[str]:
        head = read_head(self.blobs)
        assert head is not None
        return [pin.name for pin in head.pins]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_they_are_listed_with_what_each_needs_alone(job: Job, tmp_path: Path) -> None:
    job.micro_batch(pin="late", mode=CommitMode.SUSPENDED)
    result = invoke(job.path)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["name", "micro_batch", "recorded", "at", "job", "was", "size", "its", "own"]
    assert [(line[0], line[1], line[4]) for line in lines[1:]] == [
        ("early", "1", "running"),
        ("late", "3", "suspended"),
    ]
    early, late = json.loads(invoke(job.path, "--json").stdout)
    assert (early["own"], late["own"]) == (early["size"], 0), "what the newest micro-batch needs stays"
    assert early["size"] > 0
    opened(FolderBlobs(tmp_path / "new", sync=False))
    assert invoke(str(tmp_path / "new")).stdout == "no savepoints\n"
    assert invoke(str(tmp_path / "new"), "--json").stdout == "[]\n"


@pytest.mark.parametrize("by_path", [False, True])
def test_one_is_described_by_name_or_by_its_path(job: Job, by_path: bool) -> None:
    words = [f"{job.path}/savepoints/early"] if by_path else [job.path, "describe", "early"]
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    for told in ("1 of epoch 1", "running", "count", f"arcbeam inspect {job.path}/savepoints/early --check", "script"):
        assert told in result.stdout
    found = json.loads(invoke(*words, "--json").stdout)
    assert (found["name"], found["path"], found["stages"]) == ("early", f"{job.path}/savepoints/early", ["count"])


@pytest.mark.contract("END-03")
@pytest.mark.parametrize("mode", [CommitMode.SUSPENDED, CommitMode.DRAINED, CommitMode.DONE])
def test_of_a_stopped_job_they_are_changed_here_and_it_stands_as_it_stood(job: Job, mode: CommitMode) -> None:
    job.micro_batch(pin="last", mode=mode)
    result = invoke(job.path, "rename", "early", "before-2.0")
    assert (result.exit_code, result.stdout) == (0, "savepoint 'early' is called 'before-2.0' now\n"), result.output
    # The one that it was stopped with, too: the micro-batch itself stays.
    result = invoke(f"{job.path}/savepoints/last", "delete", "--json")
    assert json.loads(result.stdout) == {"savepoint": "last", "deleted": True}, result.output
    assert job.names == ["before-2.0"]
    head = read_head(job.blobs)
    assert head is not None
    assert (head.mode, head.shards) == (mode, job.log.head.shards)
    assert inspect(job.blobs, check=True).problems == ()
    assert inspect(job.blobs, savepoint="before-2.0", check=True).problems == ()
    if mode is CommitMode.SUSPENDED:
        on = opened(job.blobs)
        assert (on.head.mode, on.head.shards) == (CommitMode.RUNNING, job.log.head.shards)


def test_of_a_job_that_runs_its_driver_changes_them(job: Job) -> None:
    with driven(job.log, Answer(Said.TAKEN), Answer(Said.DONE, micro_batch=3)) as seen:
        assert invoke(job.path, "rename", "early", "old").stdout == "savepoint 'early' is called 'old' now\n"
    with driven(job.log, Answer(Said.DONE, micro_batch=3)) as deleted:
        assert invoke(job.path, "delete", "early").stdout == "savepoint 'early' is deleted\n"
    asked = [(request.what, request.savepoint, request.new) for request in (*seen, *deleted)]
    assert asked == [(Asked.RENAME, "early", "old"), (Asked.DELETE, "early", "")]
    assert job.names == ["early"], "nothing is done behind the driver's back"
    with driven(job.log, Answer(Said.REFUSED, "the job drains to savepoint 'old'")):
        result = invoke(job.path, "rename", "early", "old")
        check_message("savepoint-rename-refused", result.stderr, folder=job.path)


def test_where_nobody_answers_it_is_done_here_by_force(job: Job) -> None:
    result = invoke(job.path, "delete", "early", "--wait=0.01")
    assert result.exit_code == 1
    check_message("savepoint-delete-unanswered", result.stderr, folder=job.path)
    assert "--force does it here, if nothing runs the job" in result.stderr
    assert requests.waiting(job.blobs) == []
    assert "is asked for 'delete'" in invoke(job.path, "delete", "early", "--wait=0").stdout
    assert len(requests.waiting(job.blobs)) == 1
    assert invoke(job.path, "delete", "early", "--force").exit_code == 0
    assert job.names == []
    head = read_head(job.blobs)
    assert head is not None
    assert (head.epoch, head.mode) == (2, CommitMode.RUNNING)


def test_a_copy_is_a_job_of_its_own(job: Job, tmp_path: Path) -> None:
    target = str(tmp_path / "copy")
    result = invoke(job.path, "copy", "early", target, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["path"] == target
    assert json.loads(invoke(target, "--json").stdout)[0]["name"] == "early"
    assert inspect(FolderBlobs(tmp_path / "copy"), check=True).problems == ()
    assert "holds a job already" in invoke(job.path, "copy", "early", target).stderr
    assert "holds a job already" in invoke(f"{job.path}/savepoints/early", "copy", job.path).stderr


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["describe", "none"], "there is no savepoint 'none' in '{path}'\n  what to do: there are: early"),
        (["delete", "none"], "there is no savepoint 'none'\n  what to do: there are: early"),
        (["rename", "none", "new"], "there is no savepoint 'none'"),
        (["rename", "early", "early"], "savepoint 'early' exists already, of micro-batch 1"),
        (["rename", "early", "a/b"], "'a/b' is no name for a savepoint"),
        (["copy", "none", "{path}-copy"], "there is no savepoint 'none' in"),
    ],
)
def test_what_cannot_be_is_named_and_changes_nothing(
    job: Job, words: Sequence[str], told: str, *, stopped: bool
) -> None:
    if stopped:
        job.micro_batch(mode=CommitMode.SUSPENDED)
    before = sorted(info.name for info in job.blobs.list(""))
    result = invoke(job.path, *(word.format(path=job.path) for word in words))
    assert result.exit_code == 1
    assert told.format(path=job.path) in result.stderr
    assert sorted(info.name for info in job.blobs.list("")) == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["delete"], "'delete' takes NAME: got none"),
        (["rename", "early"], "'rename' takes NAME NEW: got 'early'"),
        (["copy", "early"], "'copy' takes NAME TARGET"),
        (["list", "early"], "'list' takes no name: got 'early'"),
        (["dance"], "'dance' is not one of"),
    ],
)
def test_wrong_usage(job: Job, words: Sequence[str], told: str) -> None:
    result = invoke(job.path, *words)
    assert result.exit_code == 2
    assert told in result.stderr
    assert "(the path names 'early')" in invoke(f"{job.path}/savepoints/early", "delete", "early").stderr


def test_a_path_that_is_no_job(tmp_path: Path) -> None:
    for action in ([], ["describe", "x"], ["rename", "x", "y"], ["delete", "x"], ["copy", "x", "y"]):
        result = invoke(str(tmp_path), *action)
        assert result.exit_code == 1
        assert "there is no job in" in result.stderr
    assert "there is no folder" in invoke(str(tmp_path / "none")).stderr


def test_one_that_cannot_be_read_is_told_beside_the_others(job: Job) -> None:
    job.micro_batch(pin="late")
    job.blobs.put(manifest_name(1), b"damage")
    result = invoke(job.path)
    assert result.exit_code == 1
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["early", "late"]
    assert "savepoint 'early': " in result.stderr
    assert manifest_name(1) in result.stderr
