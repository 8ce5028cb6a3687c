"""`arcbeam savepoint`, `drain`, `suspend`, `cancel`: for a job of a server, and for a folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest
from click.testing import CliRunner, Result

from arcbeam.cli import control, main
from arcbeam.engine.protocol.reports import Counts, Restrictions
from arcbeam.jobs.client import JobClient
from arcbeam.jobs.execution import JobEvents, Submission
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs import backends
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import requests
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.log.endnote import EndNote, record_end
from arcbeam.store.log.requests import Answer, AnswerKind, Request, RequestKind
from arcbeam.store.log.savepoints import pinned
from arcbeam.streaming.driver.proposals import draft
from arcbeam.streaming.status.status import StageStatus, as_record
from arcbeam.testing.blobs import MemoryBlobs
from tests.golden import check_message
from tests.jobs.fakes import WAIT, Client, Fake
from tests.page import samples
from tests.store.samples import opened
from tests.streaming.jobs import LAYOUT, READERS, proposal, reported, staged
from tests.streaming.jobs import opened as steps_opened

pytestmark = pytest.mark.contract("OPS-02")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main.main, list(arguments))


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    """A job that has begun in a folder."""
    return opened(FolderBlobs(tmp_path / "job", sync=False))


@contextmanager
def driven(log: CommitLog, *answers: Answer, mode: CommitMode | None = None) -> Iterator[list[Request]]:
    """A driver that gives these answers to the first request, and commits that mode.

    As a real driver: it answers a drain before it commits; it commits everything else before it answers.
    """
    seen: list[Request] = []
    stopped = threading.Event()

    def drive() -> None:
        while not stopped.wait(0.01):
            for id in requests.waiting(log.blobs)[:1]:
                request = requests.read(log.blobs, id)
                assert request is not None
                seen.append(request)
                if mode is not None and request.what is not RequestKind.DRAIN:
                    log.propose(log.draft(max(log.head.time, Timestamp(1)), mode=mode))
                for answer in answers:
                    requests.answer(log.blobs, id, answer)
                if mode is not None and request.what is RequestKind.DRAIN:
                    log.propose(log.draft(max(log.head.time, Timestamp(1)), mode=mode))
                return

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield seen
    finally:
        stopped.set()
        thread.join(WAIT)


def test_savepoint_of_folder_prints_path(log: CommitLog, tmp_path: Path) -> None:
    done = Answer(AnswerKind.DONE, "savepoint 'safe' is micro-batch 3", 3)
    with driven(log, Answer(AnswerKind.TAKEN), done) as seen:
        result = invoke("savepoint", str(tmp_path / "job"), "safe")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'job'}/savepoints/safe\n"), result.output
    assert [(request.what, request.savepoint, request.micro_batch) for request in seen] == [
        (RequestKind.SAVEPOINT, "safe", 0)
    ]
    with driven(log, done) as seen:
        path = json.loads(invoke("savepoint", str(tmp_path / "job"), "--json").stdout)["path"]
    assert path == f"{tmp_path / 'job'}/savepoints/{seen[0].savepoint}"
    assert seen[0].savepoint.startswith("savepoint-")


@pytest.mark.contract("END-02")
def test_drain_of_folder_waits_for_end(log: CommitLog, tmp_path: Path) -> None:
    with driven(log, Answer(AnswerKind.DONE), mode=CommitMode.DRAINED):
        result = invoke("drain", str(tmp_path / "job"), "--savepoint=last")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'job'} is DRAINED\n"), result.output
    # A repeated command, after a lost answer, succeeds.
    result = invoke("drain", str(tmp_path / "job"), "--json")
    assert json.loads(result.stdout)["state"] == "DRAINED", result.output
    for command in (("drain", "--savepoint=other"), ("suspend",), ("savepoint",), ("cancel",)):
        assert_refused(tmp_path, *command, state="drained")


@pytest.mark.contract("END-02")
@pytest.mark.parametrize("as_json", [False, True])
def test_drain_reports_remaining_work_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    micro_batches = [
        staged("read", 0, 0, restrictions=Restrictions(2, 12.0)),
        staged("read", 0, 0, restrictions=Restrictions(2, 12.0)),
        staged("read", 0, 5, counts=Counts(fired=1200), leftover=True),
    ]
    log = steps_opened(FolderBlobs(tmp_path / "job", sync=False))
    # The job drains, and each poll commits one more micro-batch.
    modes = iter([*[CommitMode.DRAINING] * len(micro_batches), CommitMode.DRAINED])

    def micro_batch(seconds: float = 0.0) -> None:
        mode, number = next(modes), log.head.micro_batch + 1
        mine = micro_batches[number - 1] if mode is CommitMode.DRAINING else staged("read", 0, 9)
        command = replace(proposal(number, 0, reported(mine, level=0)), mode=mode, drains_to="last")
        log.propose(draft(log, LAYOUT, READERS, {"read": 1, "rates": 2, "join": 3}, command, {}))

    micro_batch()
    monkeypatch.setattr(control.time, "sleep", micro_batch)
    result = invoke("drain", str(tmp_path / "job"), *(["--json"] if as_json else []))
    assert result.exit_code == 0, result.output
    lines = result.stderr.splitlines()
    if as_json:
        found = [json.loads(line)["progress"] for line in lines]
        assert [each.get("micro_batch") for each in found] == [None, 1, 3], "nothing twice"
        assert {each["state"] for each in found} == {"DRAINING"}
        assert (found[1]["restrictions"], found[1]["backlog"]) == (2, 12.0)
        assert json.loads(result.stdout)["state"] == "DRAINED"
    else:
        assert len(lines) == 3
        assert "is draining, micro-batch 1: " in lines[1]
        assert "2 restriction(s) of 'read' " in lines[1]
        assert "micro-batch 3: 'read' " in lines[2]
        assert "1,200 timer(s) of 'read' " in lines[2]
        assert result.stdout.endswith(" is DRAINED\n")


def test_drain_waits_for_folder_that_drains_already(log: CommitLog, tmp_path: Path) -> None:
    log.propose(log.draft(Timestamp(1), mode=CommitMode.DRAINING))
    result = invoke("drain", str(tmp_path / "job"), "--wait=0.01")
    check_message("drain-not-ended", result.stderr, tmp=tmp_path)
    assert requests.waiting(log.blobs) == []
    result = invoke("drain", str(tmp_path / "job"), "--wait=0")
    assert (result.exit_code, result.stdout) == (0, ""), "the command does not wait"
    log.propose(log.draft(Timestamp(1), mode=CommitMode.DRAINED))
    assert invoke("drain", str(tmp_path / "job")).stdout == f"{tmp_path / 'job'} is DRAINED\n"


@pytest.mark.contract("END-03")
def test_suspend_of_folder_prints_savepoint(log: CommitLog, tmp_path: Path) -> None:
    with driven(log, Answer(AnswerKind.DONE), mode=CommitMode.SUSPENDED):
        result = invoke("suspend", str(tmp_path / "job"), "--savepoint=pause")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'job'}/savepoints/pause\n"), result.output
    for command in ("drain", "cancel", "savepoint"):
        assert_refused(tmp_path, command, state="suspended")
    # The savepoint was not made by this command, so the folder is what can be resumed.
    assert invoke("suspend", str(tmp_path / "job")).stdout == f"{tmp_path / 'job'}\n"
    assert_refused(tmp_path, "suspend", "--savepoint=other", state="suspended")


@pytest.mark.contract("END-03")
def test_repeated_suspend_prints_savepoint_again(log: CommitLog, tmp_path: Path) -> None:
    log.propose(pinned(log.draft(Timestamp(1), mode=CommitMode.SUSPENDED), "pause"))
    for named in ((), ("--savepoint=pause",)):
        result = invoke("suspend", str(tmp_path / "job"), *named, "--json")
        assert json.loads(result.stdout) == {"path": f"{tmp_path / 'job'}/savepoints/pause", "state": "STOPPED"}


@pytest.mark.contract("END-04")
@pytest.mark.parametrize("command", ["savepoint", "drain", "suspend", "cancel"])
def test_command_does_not_wait_for_failed_job(log: CommitLog, tmp_path: Path, command: str) -> None:
    record_end(log.blobs, EndNote(log.epoch, "FAILED", "ValueError: of the user's"))
    result = invoke(command, str(tmp_path / "job"))
    assert result.exit_code == 1
    check_message(f"{command}-refused-failed", result.stderr, tmp=tmp_path)
    assert requests.waiting(log.blobs) == []
    result = invoke(command, str(tmp_path / "job"), "--wait=0")
    assert (result.exit_code == 0) == (command != "cancel"), "a cancellation is not for the next driver"
    check_message("status-of-a-failed-job", invoke("status", str(tmp_path / "job")).stdout.splitlines()[0])
    ended = {"epoch": 1, "state": "FAILED", "why": "ValueError: of the user's", "time": ANY}
    assert json.loads(invoke("status", str(tmp_path / "job"), "--json").stdout)["ended"] == ended
    assert json.loads(invoke("inspect", str(tmp_path / "job"), "--json").stdout)["ended"] == ended
    lines = [" ".join(line.split()) for line in invoke("inspect", str(tmp_path / "job")).stdout.splitlines()]
    assert "ended: FAILED: ValueError: of the user's" in lines
    # A new driver takes over and runs the job.
    opened(log.blobs)
    check_message(f"{command}-unanswered", invoke(command, str(tmp_path / "job"), "--wait=0.01").stderr, tmp=tmp_path)
    assert "FAILED" not in invoke("status", str(tmp_path / "job")).stdout


def test_refusal_has_only_the_first_line_of_the_failure(log: CommitLog, tmp_path: Path) -> None:
    why = "ValueError: of the user's\n  File pipeline.py, line 1\n  what to do: correct the code"
    record_end(log.blobs, EndNote(log.epoch, "FAILED", why))
    check_message("suspend-refused-failed", invoke("suspend", str(tmp_path / "job")).stderr, tmp=tmp_path)


@pytest.mark.contract("END-03")
@pytest.mark.parametrize(("mode", "state"), [(CommitMode.SUSPENDED, "STOPPED"), (CommitMode.DONE, "DONE")])
def test_suspend_prints_state_of_finished_job(log: CommitLog, tmp_path: Path, mode: CommitMode, state: str) -> None:
    with driven(log, Answer(AnswerKind.DONE), mode=mode):
        result = invoke("suspend", str(tmp_path / "job"), "--json")
    assert json.loads(result.stdout)["state"] == state


@pytest.mark.contract("END-04")
def test_cancel_of_folder_waits_for_end(log: CommitLog, tmp_path: Path) -> None:
    with driven(log, Answer(AnswerKind.DONE)):
        result = invoke("cancel", str(tmp_path / "job"))
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'job'} is CANCELLED\n"), result.output


def test_command_prints_drivers_refusal(log: CommitLog, tmp_path: Path) -> None:
    with driven(log, Answer(AnswerKind.REFUSED, "the job is draining already")):
        result = invoke("suspend", str(tmp_path / "job"))
    assert result.exit_code == 1
    check_message("suspend-refused-by-driver", result.stderr, tmp=tmp_path)


@pytest.mark.parametrize("command", ["savepoint", "drain", "suspend", "cancel"])
def test_request_without_answer_is_withdrawn_or_left(log: CommitLog, tmp_path: Path, command: str) -> None:
    result = invoke(command, str(tmp_path / "job"), "--wait=0.01")
    assert result.exit_code == 1
    check_message(f"{command}-unanswered", result.stderr, tmp=tmp_path)
    assert requests.waiting(log.blobs) == []
    result = invoke(command, str(tmp_path / "job"), "--wait=0")
    assert result.exit_code == 0
    check_message(f"{command}-left", result.stdout, tmp=tmp_path)
    assert len(requests.waiting(log.blobs)) == 1


def test_interrupted_command_withdraws_request(log: CommitLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def interrupt(seconds: float) -> None:
        seen.append(len(requests.waiting(log.blobs)))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(control.time, "sleep", interrupt)
        result = invoke("suspend", str(tmp_path / "job"))
    assert (result.exit_code, result.stderr) == (130, "error: interrupted\n")
    assert seen == [1]
    assert requests.waiting(log.blobs) == []


def test_request_taken_during_withdrawal_continues(
    log: CommitLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def withdraw(blobs: DurableBlobs, request: Request) -> None:
        requests.answer(blobs, request.id, Answer(AnswerKind.TAKEN))

    monkeypatch.setattr(requests, "withdraw", withdraw)
    check_message("suspend-not-done", invoke("suspend", str(tmp_path / "job"), "--wait=0.01").stderr, tmp=tmp_path)


def test_output_hides_secrets_of_url(monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = MemoryBlobs()
    opened(blobs)
    monkeypatch.setattr(backends, "open_blobs", lambda url, made: blobs)
    url = "s3://key:secret@bucket/job"
    for wait in ("0.01", "0"):
        result = invoke("drain", url, f"--wait={wait}")
        assert "bucket/job" in result.output
        assert "secret" not in result.output


def test_request_in_progress_is_not_withdrawn(log: CommitLog, tmp_path: Path) -> None:
    with driven(log, Answer(AnswerKind.TAKEN)):
        result = invoke("drain", str(tmp_path / "job"), "--wait=0.5")
    check_message("drain-not-done", result.stderr, tmp=tmp_path)
    assert len(requests.waiting(log.blobs)) == 1


def test_drain_of_folder_without_job_fails(tmp_path: Path) -> None:
    for name in (".", "none"):
        result = invoke("drain", str(tmp_path / name), "--json")
        error = json.loads(result.stderr)["error"]
        assert (result.exit_code, error["type"]) == (1, "StoreError" if name == "." else "SetupError")
        assert str(tmp_path / name) in error["message"]


def assert_refused(tmp_path: Path, command: str, *options: str, state: str) -> None:
    result = invoke(command, str(tmp_path / "job"), *options)
    assert result.exit_code == 1
    check_message(f"{command}-refused-{state}", result.stderr, tmp=tmp_path)


def assert_soon(happens: threading.Event) -> None:
    assert happens.wait(WAIT)


def test_commands_control_jobs_of_server(client: Client, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_STATE_SECONDS", 0.05)
    at = f"--endpoint={client.prepare().artifact_staging_endpoint.url}"
    fake.behave = fake.until_cancelled
    id = client.run()
    assert invoke("savepoint", id, "safe", at).stdout == "/jobs/savepoints/safe\n"
    assert json.loads(invoke("suspend", id, at, "--json").stdout)["path"] == "/jobs/savepoints/named"
    result = invoke("drain", id, at, "--wait=0.5")
    assert result.exit_code == 1
    check_message("server-drain-not-ended", result.stderr, job=id, at=at)
    assert fake.requested == [("savepoint", "safe"), ("suspend", ""), ("drain", "")]
    # A protobuf Struct would turn integers into floats, and lose microseconds.
    fake.status = as_record(samples.status(1, samples.now(), micro_batch=7, watermark=2**62 + 1, causes=()))
    found = json.loads(invoke("status", id, at, "--json").stdout)
    assert found == {**json.loads(json.dumps(fake.status)), "overdue": None, "silent": None, "headline": ANY}
    assert found["headline"]["line"] == "OK: No watermark waits for anything."
    slow = threading.Event()
    fake.answer = lambda: assert_soon(slow)
    for command in ("suspend", "savepoint", "drain"):
        assert invoke(command, id, at, "--wait=0").exit_code == 2
        result = invoke(command, id, at, "--wait=0.05")
        assert result.exit_code == 1
        check_message(f"server-{command}-not-done", result.stderr, job=id)
    slow.set()
    # The command prints the status of the draining job until the job ends.
    drains = samples.with_cause(samples.status(1), text="the watermark is at 5: restriction 1.0 of 'a'")
    stage = StageStatus("Read", 0, Timestamp(0), Timestamp(0), None, (), restrictions=1, backlog=3.0)
    fake.status = as_record(replace(drains, micro_batch=8, stages=(stage,)))
    actions = iter([None, fake.cancelled.set])
    fake.answer = lambda: (next(actions) or (lambda: None))()
    result = invoke("drain", id, at)
    assert result.stdout == f"{id} is CANCELLED\n"
    (line,) = (line for line in result.stderr.splitlines() if "micro-batch 8" in line)
    assert line.startswith(f"{id} is draining, micro-batch 8: 1 restriction(s) of 'Read' ")
    assert line.endswith("; restriction 1.0 of 'a'")
    error = json.loads(invoke("suspend", "j-9", at, "--json").stderr)["error"]
    assert (error["type"], "'j-9'" in error["message"]) == ("JobNotFoundError", True)


@pytest.mark.parametrize("running", [False, True])
def test_job_of_server_that_has_not_ended_in_time_is_not_drained(client: Client, fake: Fake, running: bool) -> None:
    def until_cancelled(submission: Submission, events: JobEvents) -> None:
        if running:
            events.running()
        assert fake.cancelled.wait(WAIT)

    at = f"--endpoint={client.prepare().artifact_staging_endpoint.url}"
    fake.behave = until_cancelled
    id = client.run()
    result = invoke("drain", id, at, "--wait=1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{id} is still draining after 1 s" in result.stderr
    with JobClient(at.removeprefix("--endpoint=")) as jobs:
        assert jobs.end(id, 0.5) == ""
    fake.cancelled.set()
