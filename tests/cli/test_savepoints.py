"""`arcbeam savepoints`: the driver changes savepoints of a running job, the command those of a stopped job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result

from arcbeam.cli import main
from arcbeam.model.commits import CommitMode
from arcbeam.model.files import Shard
from arcbeam.model.rows import SHARDS_MAX
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.errors import JobEndedError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import requests
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.log.inspection import inspect
from arcbeam.store.log.requests import Answer, AnswerKind, RequestKind
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
    """A job in a folder: two micro-batches with a file each; the first one is savepoint 'early'."""

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
            in_blocks([(b"\x10\0\1k%d" % micro_batch, b"v" * 50)]),
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


def test_list_shows_bytes_only_a_savepoint_needs(job: Job, tmp_path: Path) -> None:
    job.micro_batch(pin="late", mode=CommitMode.SUSPENDED)
    result = invoke(job.path)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["name", "micro_batch", "micro-batch", "started", "at", "job", "was", "size", "its", "own"]
    assert [(line[0], line[1], line[4]) for line in lines[1:]] == [
        ("early", "1", "running"),
        ("late", "3", "suspended"),
    ]
    early, late = json.loads(invoke(job.path, "--json").stdout)
    assert (early["own"], late["own"]) == (early["size"], 0), "the newest micro-batch needs its own files"
    assert early["size"] > 0
    opened(FolderBlobs(tmp_path / "new", sync=False))
    assert invoke(str(tmp_path / "new")).stdout == "no savepoints\n"
    assert invoke(str(tmp_path / "new"), "--json").stdout == "[]\n"


@pytest.mark.parametrize("by_path", [False, True])
def test_describe_accepts_name_or_path(job: Job, by_path: bool) -> None:
    words = [f"{job.path}/savepoints/early"] if by_path else [job.path, "describe", "early"]
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    for text in ("1 of epoch 1", "running", "count", f"arcbeam inspect {job.path}/savepoints/early --check", "script"):
        assert text in result.stdout
    found = json.loads(invoke(*words, "--json").stdout)
    assert (found["name"], found["path"], found["stages"]) == ("early", f"{job.path}/savepoints/early", ["count"])


@pytest.mark.contract("END-03")
def test_describe_gives_the_command_that_resumes_an_end(job: Job) -> None:
    job.micro_batch(pin="last", mode=CommitMode.DRAINED)
    text = invoke(job.path, "describe", "last").stdout
    assert "its script with --from_savepoint and --force_resume" in text
    assert "drained: its sources are at their end" in text
    assert "--force_resume" not in invoke(job.path, "describe", "early").stdout
    # Without it, that savepoint is refused.
    with pytest.raises(JobEndedError):
        opened(job.blobs, savepoint="last")
    assert opened(job.blobs, savepoint="last", force=True).head.mode is CommitMode.RUNNING


@pytest.mark.contract("END-03")
@pytest.mark.parametrize("mode", [CommitMode.SUSPENDED, CommitMode.DRAINED, CommitMode.DONE])
def test_command_changes_savepoints_of_stopped_job(job: Job, mode: CommitMode) -> None:
    job.micro_batch(pin="last", mode=mode)
    result = invoke(job.path, "rename", "early", "before-2.0")
    assert (result.exit_code, result.stdout) == (0, "savepoint 'early' is renamed to 'before-2.0'\n"), result.output
    # Also the savepoint with which it was stopped: the micro-batch itself stays.
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


def test_driver_changes_savepoints_of_running_job(job: Job) -> None:
    with driven(job.log, Answer(AnswerKind.TAKEN), Answer(AnswerKind.DONE, micro_batch=3)) as seen:
        assert invoke(job.path, "rename", "early", "old").stdout == "savepoint 'early' is renamed to 'old'\n"
    with driven(job.log, Answer(AnswerKind.DONE, micro_batch=3)) as deleted:
        assert invoke(job.path, "delete", "early").stdout == "savepoint 'early' is deleted\n"
    found = [(request.what, request.savepoint, request.new) for request in (*seen, *deleted)]
    assert found == [(RequestKind.RENAME, "early", "old"), (RequestKind.DELETE, "early", "")]
    assert job.names == ["early"], "only the driver changes names"
    with driven(
        job.log, Answer(AnswerKind.REFUSED, "the job is draining, and its last micro-batch will be savepoint 'old'")
    ):
        result = invoke(job.path, "rename", "early", "old")
        check_message("savepoint-rename-refused", result.stderr, folder=job.path)


def test_force_deletes_without_driver(job: Job) -> None:
    result = invoke(job.path, "delete", "early", "--wait=0.01")
    assert result.exit_code == 1
    check_message("savepoint-delete-unanswered", result.stderr, folder=job.path)
    assert "--force" in result.stderr
    assert requests.waiting(job.blobs) == []
    assert "'delete'" in invoke(job.path, "delete", "early", "--wait=0").stdout
    assert len(requests.waiting(job.blobs)) == 1
    assert invoke(job.path, "delete", "early", "--force").exit_code == 0
    assert job.names == []
    head = read_head(job.blobs)
    assert head is not None
    assert (head.epoch, head.mode) == (2, CommitMode.RUNNING)


def test_copy_is_separate_job(job: Job, tmp_path: Path) -> None:
    target = str(tmp_path / "copy")
    result = invoke(job.path, "copy", "early", target, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["path"] == target
    assert json.loads(invoke(target, "--json").stdout)[0]["name"] == "early"
    assert inspect(FolderBlobs(tmp_path / "copy"), check=True).problems == ()
    for words in ((job.path, "copy", "early", target), (f"{job.path}/savepoints/early", "copy", job.path)):
        refused = invoke(*words, "--json")
        assert refused.exit_code == 1
        assert f"'{words[-1]}'" in json.loads(refused.stderr.splitlines()[-1])["error"]["message"]


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["describe", "none"], ("'none'", "'{path}'", "early")),
        (["delete", "none"], ("'none'", "early")),
        (["rename", "none", "new"], ("'none'",)),
        (["rename", "early", "early"], ("'early'", "micro-batch 1")),
        (["rename", "early", "a/b"], ("'a/b'",)),
        (["copy", "none", "{path}-copy"], ("'none'",)),
    ],
)
def test_invalid_action_changes_nothing(job: Job, words: Sequence[str], names: Sequence[str], *, stopped: bool) -> None:
    if stopped:
        job.micro_batch(mode=CommitMode.SUSPENDED)
    before = sorted(info.name for info in job.blobs.list(""))
    result = invoke(job.path, *(word.format(path=job.path) for word in words))
    assert result.exit_code == 1
    for name in names:
        assert name.format(path=job.path) in result.stderr
    assert sorted(info.name for info in job.blobs.list("")) == before


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["delete"], "'delete' takes NAME: got none"),
        (["rename", "early"], "'rename' takes NAME NEW: got 'early'"),
        (["copy", "early"], "'copy' takes NAME TARGET"),
        (["list", "early"], "'list' takes no name: got 'early'"),
        (["dance"], "'dance' is not one of"),
    ],
)
def test_wrong_number_of_names_is_wrong_usage(job: Job, words: Sequence[str], text: str) -> None:
    result = invoke(job.path, *words)
    assert result.exit_code == 2
    assert text in result.stderr
    assert "(the path names 'early')" in invoke(f"{job.path}/savepoints/early", "delete", "early").stderr


def test_path_without_job_is_an_error(tmp_path: Path) -> None:
    for action in ([], ["describe", "x"], ["rename", "x", "y"], ["delete", "x"], ["copy", "x", "y"]):
        result = invoke(str(tmp_path), *action)
        assert result.exit_code == 1
        assert str(tmp_path) in result.stderr
    assert str(tmp_path / "none") in invoke(str(tmp_path / "none")).stderr


def test_damaged_savepoint_is_reported_with_the_others(job: Job) -> None:
    job.micro_batch(pin="late")
    job.blobs.put(manifest_name(1), b"damage")
    result = invoke(job.path)
    assert result.exit_code == 1
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["early", "late"]
    assert "savepoint 'early': " in result.stderr
    assert manifest_name(1) in result.stderr


def test_rescale_of_suspended_job(job: Job) -> None:
    assert invoke(job.path, "rescale", "5").exit_code == 1
    job.micro_batch(mode=CommitMode.SUSPENDED)
    result = invoke(job.path, "rescale", "5", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["shards"] == 5
    head = read_head(job.blobs)
    assert head is not None
    assert (head.shape.shards, head.mode) == (5, CommitMode.SUSPENDED)
    assert job.names == ["early"]


@pytest.mark.parametrize("words", [("rescale",), ("rescale", "0"), ("rescale", "many"), ("rescale", "2", "3")])
def test_rescale_takes_a_number_of_shards(job: Job, words: Sequence[str]) -> None:
    result = invoke(job.path, *words)
    assert result.exit_code == 2
    assert "SHARDS" in result.output or "number of shards" in result.output


@pytest.mark.parametrize("word", ["-3", "٣", str(SHARDS_MAX + 1), "9" * 11, "9" * 5000])
def test_number_of_shards_out_of_range_is_refused_before_the_job_is_read(job: Job, word: str) -> None:
    with patch("arcbeam.cli.savepoints.opened", side_effect=AssertionError):
        result = invoke(job.path, "rescale", word)
    assert result.exit_code == 2
    assert f"a number of shards, from 1 to {SHARDS_MAX}: got {word!r}" in result.output


def test_unknown_option_is_refused(job: Job) -> None:
    result = invoke(job.path, "rescale", "3", "--forse")
    assert (result.exit_code, "No such option" in result.output) == (2, True)


def test_savepoint_alone_is_not_rescaled(job: Job) -> None:
    result = invoke(f"{job.path}/savepoints/early", "rescale", "3")
    assert result.exit_code == 2
    assert "resume that with --shards" in result.output
