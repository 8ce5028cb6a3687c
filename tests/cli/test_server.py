"""`arcbeam serve`, `jobs` and `cancel`, as text and as JSON."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import grpc
import pytest
from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from click.testing import CliRunner, Result

from arcbeam.cli import main as arcbeam_command
from arcbeam.cli import server
from arcbeam.cli.main import with_output
from arcbeam.errors import InvalidPipelineError, SetupError
from arcbeam.jobs.client import JobSummary
from arcbeam.jobs.execution import JobEvents, JobState, Submission
from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.page.access.owntoken import own_token
from tests.golden import check_message
from tests.jobs.fakes import WAIT, Client, Fake, connected, serving

pytestmark = pytest.mark.contract("OPS-02")


@click.group()
@click.pass_context
def main(context: click.Context) -> None:
    context.obj = False


# Copies: a command keeps the help option that it makes first, and this group has another one.
main.add_command(copy(arcbeam_command.main.commands["jobs"]))
main.add_command(copy(arcbeam_command.main.commands["cancel"]))
main.command()(with_output(server.serving(Fake)))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def endpoint(client: Client) -> str:
    url: str = client.prepare().artifact_staging_endpoint.url
    return f"--endpoint={url}"


def test_jobs(client: Client) -> None:
    at = endpoint(client)
    id = client.run()
    client.states(id)
    result = invoke("jobs", at)
    assert result.exit_code == 0, result.output
    header, done, prepared = result.stdout.splitlines()
    assert header.split() == ["id", "name", "state", "started", "elapsed"]
    assert prepared.split()[1:] == ["words", "STOPPED"]
    assert done.split()[:3] == [id, "words", "DONE"]
    assert done.endswith(" s")
    rows = json.loads(invoke("jobs", at, "--json").stdout)
    assert rows[1]["started"] is None
    assert rows[0]["id"] == id
    assert rows[0]["elapsed"] >= 0
    assert datetime.fromisoformat(rows[0]["started"]).tzinfo is not None


@pytest.mark.contract("END-03")
def test_suspended_job_counts_as_started(client: Client, fake: Fake) -> None:
    def suspend(submission: Submission, events: JobEvents) -> JobState:
        events.running()
        return JobState.STOPPED

    fake.behave = suspend
    for _ in range(2):
        id = client.run()
        client.states(id)
    client.jobs.Run(job_pb.RunJobRequest(preparation_id=id))
    client.states(id)
    rows = json.loads(invoke("jobs", endpoint(client), "--json").stdout)
    assert [row["state"] for row in rows] == ["STOPPED"] * 3
    assert [row["started"] is not None for row in rows] == [False, True, True]
    assert [row["elapsed"] is not None and row["elapsed"] < 60 for row in rows] == [False, True, True]


def test_jobs_are_limited_and_filtered(client: Client, fake: Fake) -> None:
    at = endpoint(client)
    ended = [client.run() for _ in range(3)]
    for id in ended:
        client.states(id)
    fake.behave = fake.until_cancelled
    running = client.run()
    assert [row["id"] for row in json.loads(invoke("jobs", at, "--json").stdout)][:-1] == [running, *ended[::-1]]
    result = invoke("jobs", at, "--limit=2", "--json")
    assert [row["id"] for row in json.loads(result.stdout)] == [running, ended[2]]
    assert json.loads(result.stderr) == {"progress": {"more": 3}}
    assert "4 older jobs" in invoke("jobs", at, "--limit=1").stderr
    assert len(json.loads(invoke("jobs", at, "--limit=0", "--json").stdout)) == 5
    assert [row["id"] for row in json.loads(invoke("jobs", at, "--running", "--json").stdout)] == [running]


def test_cancel(client: Client, fake: Fake) -> None:
    fake.behave = fake.until_cancelled
    id = client.run()
    result = invoke("cancel", id, endpoint(client), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"id": id, "state": "CANCELLED"}
    assert invoke("cancel", id, endpoint(client)).stdout == f"{id} is CANCELLED\n"


@pytest.mark.contract("API-02")
def test_followers_of_cancelled_job_see_message(client: Client, fake: Fake) -> None:
    fake.behave = fake.until_cancelled
    id = client.run()
    invoke("cancel", id, endpoint(client))
    assert any("was cancelled" in text for text in client.errors(id))


def test_cancel_times_out(client: Client, fake: Fake) -> None:
    fake.behave = fake.until_cancelled
    fake.cancel_error = RuntimeError("no connection")
    id = client.run()
    result = invoke("cancel", id, endpoint(client), "--wait=0.05")
    assert result.exit_code == 1
    check_message("server-cancel-not-ended", result.stderr, job=id, at=endpoint(client))
    fake.cancel_error = None


def test_unknown_job_is_an_error(client: Client) -> None:
    result = invoke("cancel", "j-9", endpoint(client), "--json")
    assert result.exit_code == 1
    error = json.loads(result.stderr)["error"]
    assert error["type"] == "JobNotFoundError"
    assert "'j-9'" in error["message"]
    assert "arcbeam jobs" in error["remedy"]


def test_missing_server_is_an_error() -> None:
    result = invoke("jobs", "--endpoint=localhost:1")
    assert result.exit_code == 1
    check_message("no-job-server", result.stderr)


def test_server_with_token_refuses_commands_without(tmp_path: Path, fake: Fake) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "token").chmod(0o600)
    with serving(tmp_path / "jobs", fake, token="s3cret") as (server, _):
        at = f"--endpoint={server.endpoint}"
        without = invoke("jobs", at)
        assert without.exit_code == 1
        assert "--token-file" in without.stderr
        assert invoke("jobs", at, f"--token-file={tmp_path / 'token'}").exit_code == 0


def test_malformed_token_file_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"\n", b"two\nlines", b"\xff"):
        (tmp_path / "token").write_bytes(content)
        (tmp_path / "token").chmod(0o640)
        with pytest.raises(SetupError, match=str(tmp_path / "token")):
            server.token_of(tmp_path / "token")
    assert server.token_of(None) is None


@pytest.mark.contract("OPS-06")
@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660])
def test_token_file_of_all_users_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "token").chmod(mode)
    with pytest.raises(SetupError) as raised:
        server.token_of(tmp_path / "token")
    check_message("token-file-readable", str(raised.value), TMP=tmp_path, MODE=f"{mode:04o}")


def test_serve_refuses_a_port_in_use(tmp_path: Path, client: Client) -> None:
    port = endpoint(client).rpartition(":")[2]
    result = invoke("serve", f"--port={port}", f"--folder={tmp_path / 'other'}")
    assert result.exit_code == 1
    assert str(port) in result.stderr
    assert "serving" not in result.stdout


@pytest.mark.parametrize(("option", "name"), [("--no_such_option=3", "--no_such_option"), ("--shards=0", "--shards=0")])
def test_serve_refuses_invalid_defaults(tmp_path: Path, option: str, name: str) -> None:
    result = invoke("serve", "--port=0", f"--folder={tmp_path}", "--", option)
    assert result.exit_code == 1
    assert name in result.stderr
    assert "serving" not in result.stdout


def test_serve_refuses_open_address_without_protection(tmp_path: Path) -> None:
    result = invoke("serve", "--host=0.0.0.0", "--port=0", f"--folder={tmp_path}")
    assert result.exit_code == 1
    check_message("serve-needs-token-and-tls", result.stderr)


@contextmanager
def served(folder: Path, how: str = "waiting") -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run a server in a separate process, with jobs that run until they are cancelled. Yield its first output."""
    code = (
        "from tests.cli.test_server import main, waiting\n"
        f"main(['serve-{how}', '--port=0', '--page=0', '--folder', {str(folder)!r}, '--json', '--', '--shards=3'])\n"
    )
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def waiting() -> Fake:
    fake = Fake()
    fake.behave = fake.until_cancelled
    return fake


def stubborn() -> Fake:
    """A fake whose jobs resume with the next server, and need time to end."""
    fake = waiting()

    def ending(again: threading.Event) -> None:
        assert again.wait(WAIT)
        fake.cancelled.set()

    fake.resumable, fake.ending = True, ending
    return fake


main.command("serve-waiting")(with_output(server.serving(waiting)))
main.command("serve-stubborn")(with_output(server.serving(stubborn)))


@pytest.mark.contract("PAGE-03")
def test_page_is_served_while_spark_starts(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seen: list[str] = []

    def start(options: Mapping[str, Any]) -> None:
        token = {"Authorization": f"Bearer {own_token(port)}"}
        at = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(urllib.request.Request(f"{at}/", headers=token), timeout=WAIT) as page:
            seen.append(page.read().decode())
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(urllib.request.Request(f"{at}/job/a", headers=token), timeout=WAIT)
        raise SetupError("no Spark")

    main.command("serve-starting")(with_output(server.serving(waiting, start)))
    result = invoke("serve-starting", "--port=0", f"--page={port}", f"--folder={tmp_path}")
    assert f"starting Spark; the page is at http://127.0.0.1:{port}/" in result.stderr
    assert (result.exit_code, "no Spark" in result.stderr) == (1, True)
    assert "<strong>Starting</strong> This job server starts Spark." in seen[0]
    assert "No jobs." not in seen[0]


@pytest.mark.parametrize(
    ("number", "code", "state", "message"),
    [
        (signal.SIGTERM, 0, "CANCELLED", "the job server is stopping"),
        (signal.SIGINT, 0, "CANCELLED", "the job server is stopping"),
        (signal.SIGKILL, -9, "FAILED", "the job server ended while this job was RUNNING"),
    ],
)
@pytest.mark.contract("API-02")
def test_stopped_or_killed_server_ends_jobs(tmp_path: Path, number: int, code: int, state: str, message: str) -> None:
    folder = tmp_path / "jobs"
    with served(folder) as (process, output):
        assert output["folder"] == str(folder)
        assert invoke("jobs", f"--endpoint={output['endpoint']}", "--json").stdout == "[]\n"
        with connected(grpc.insecure_channel(output["endpoint"])) as client:
            id = client.run()
            stream = client.jobs.GetStateStream(job_pb.GetJobStateRequest(job_id=id), timeout=WAIT)
            assert [next(stream).state for _ in range(3)][-1] == job_pb.JobState.RUNNING
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with browser.open(output["page"].replace("?", f"job/{id}?"), timeout=WAIT) as page:
                assert "The job is running" in page.read().decode()
            process.send_signal(number)
            assert process.wait(30) == code
    with serving(folder, Fake()) as (_, client):
        assert client.states(id)[-1] == state
        texts = [m.message_response.message_text for m in client.messages(id)]
        assert any(message in text for text in texts)


@pytest.mark.contract("API-02", "END-03")
def test_second_signal_ends_waiting_server(tmp_path: Path) -> None:
    with (
        served(tmp_path, "stubborn") as (process, output),
        connected(grpc.insecure_channel(output["endpoint"])) as client,
    ):
        id = client.run()
        stream = client.jobs.GetStateStream(job_pb.GetJobStateRequest(job_id=id), timeout=WAIT)
        assert [next(stream).state for _ in range(3)][-1] == job_pb.JobState.RUNNING
        process.send_signal(signal.SIGTERM)
        texts = iter(client.jobs.GetMessageStream(job_pb.JobMessagesRequest(job_id=id), timeout=WAIT))
        assert any("resumes" in m.message_response.message_text for m in texts)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_options_of_one_job_are_no_defaults() -> None:
    assert server._defaults(("--shards=3", "--no_fusion")) == {"shards": 3, "no_fusion": True}
    assert server._defaults(()) == {}
    with pytest.raises(InvalidPipelineError, match=": --checkpoint_dir, --force_resume\n"):
        server._defaults(("--checkpoint_dir=/x", "--force_resume", "--shards=3"))


@pytest.mark.parametrize(("seconds", "text"), [(None, ""), (1.25, "1.2 s"), (61, "1 min 01 s"), (7325, "2 h 02 min")])
def test_durations(seconds: float | None, text: str) -> None:
    assert server._duration(seconds) == text


def test_elapsed_time_of_a_job() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    later, now = start + timedelta(seconds=5), start + timedelta(seconds=60)
    assert JobSummary("j", "n", "DONE", start, later).elapsed(now) == 5
    assert JobSummary("j", "n", "RUNNING", start, None).elapsed(now) == 60
    assert JobSummary("j", "n", "STOPPED", None, None).elapsed(now) is None


@pytest.mark.contract("API-02")
def test_spark_starts_before_the_first_job(tmp_path: Path, client: Client) -> None:
    started: list[Any] = []

    def start(options: Any) -> None:
        started.append((dict(options), threading.current_thread()))
        raise SetupError("no Java", "install one")

    main.command("serve-nothing")(with_output(server.serving(Fake, start)))
    result = invoke("serve-nothing", "--port=0", f"--folder={tmp_path / 'a'}", "--", "--shards=3")
    assert result.exit_code == 1
    assert "no Java" in result.stderr
    assert "serving" not in result.stdout
    ((options, thread),) = started
    assert options == {"shards": 3}
    assert thread is not threading.main_thread(), "Spark would replace the handler of Ctrl-C"
    # Errors of the server itself come first.
    port = endpoint(client).rpartition(":")[2]
    assert invoke("serve-nothing", f"--port={port}", f"--folder={tmp_path / 'b'}").exit_code == 1
    assert len(started) == 1


def test_interrupted_start_does_not_block() -> None:
    stopped, never = threading.Event(), threading.Event()
    stopped.set()
    server._unless(stopped, never.wait)  # type: ignore[arg-type]
    never.set()


def test_failed_start_releases_port_and_folder(tmp_path: Path) -> None:
    def ready() -> None:
        raise SetupError("no Java")

    with pytest.raises(SetupError, match="no Java"):
        JobServer(ServerSettings(tmp_path), Fake(), ready)
    with serving(tmp_path, Fake()) as (server, _):
        assert server.port
