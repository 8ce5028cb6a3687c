"""A Go job has exact counts after three kills of a process. It fails if its LOOPBACK submitter is killed.

A single kill at each point is in `tests.sdks.test_kills`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from apache_beam.portability.api import beam_job_api_pb2_grpc as job_grpc
from click.testing import CliRunner

from arcbeam.cli import main
from tests.sdks.goprograms import GO_BOOT, built, process, programs_in
from tests.waiting import until

pytestmark = pytest.mark.long

_SECONDS = 240.0
_LEFT_SECONDS = 60.0
"""After the end of a job, no process of it may be left for longer."""
_WORKER = "--worker=true"
"""An argument of SDK workers."""
EXPECTED = sorted(f"{key} {count}" for key in range(3) for count in range(1, 21))


@pytest.fixture(scope="session")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("go")
    with programs_in(folder) as programs:
        yield programs, built(GO_BOOT, folder)


def environ_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    return ""


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    return ""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class GoJob:
    """The program "counting", on a server of its own. All of its processes have a mark in their environment.

    Args:
        folder: for all files.
        program: the Go program.
        environment: options of the environment.
    """

    def __init__(self, folder: Path, program: Path, environment: tuple[str, ...]) -> None:
        self._folder, self._program, self._environment = folder, program, environment
        self._mark = f"ARCBEAM_TEST_MARK={uuid.uuid4().hex}"
        self.output = folder / "output"
        self.output.mkdir()
        self.server: subprocess.Popen[bytes]
        self.endpoint = ""
        self.serve()
        self.submitter = self._start(
            [
                *(str(program), "--program=counting", f"--output={self.output}", "--runner=universal"),
                *(f"--endpoint={self.endpoint}", f"--worker_binary={program}", *environment),
            ],
            "submitter",
        )

    def _start(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        key, value = self._mark.split("=")
        environ = {**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", key: value}
        with (self._folder / name).open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environ, cwd=self._folder, start_new_session=True
            )

    def serve(self) -> None:
        """Start a server. One after another has the same jobs."""
        log = self._folder / "server"
        log.unlink(missing_ok=True)
        port = self.endpoint.rpartition(":")[2] or "0"
        command = [sys.executable, "-c", "from arcbeam.cli.main import main; main()", "serve", f"--port={port}"]
        command += [f"--folder={self._folder}/jobs", "--json", "--", "--spark_master=local[2]", "--shards=2"]
        self.server = self._start(command, "server")

        def started() -> bool:
            for line in log.read_text().splitlines() if log.exists() else ():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self.endpoint = json.loads(line)["endpoint"]
                    return True
            return False

        self.until(started)

    def until(self, condition: Callable[[], object], seconds: float = _SECONDS) -> None:
        until(condition, self.log, seconds=seconds)

    def log(self) -> str:
        return "".join((self._folder / name).read_text()[-20_000:] for name in ("submitter", "server"))

    def lines(self) -> set[str]:
        path = self.output / "counts"
        return set(path.read_text().splitlines()) if path.exists() else set()

    def state(self) -> str:
        shown = CliRunner().invoke(main.main, ["jobs", f"--endpoint={self.endpoint}", "--json"])
        jobs = json.loads(shown.stdout)
        return jobs[0]["state"] if jobs else ""

    def errors(self) -> str:
        """Return the job's messages of level ERROR, as a submitter gets them."""
        with grpc.insecure_channel(self.endpoint) as channel:
            stub = job_grpc.JobServiceStub(channel)
            (info,) = stub.GetJobs(job_pb.GetJobsRequest()).job_info
            stream = stub.GetMessageStream(job_pb.JobMessagesRequest(job_id=info.job_id), timeout=_SECONDS)
            messages = [each.message_response for each in stream]
        important = job_pb.JobMessage.JOB_MESSAGE_ERROR
        return "".join(each.message_text for each in messages if each.importance == important)

    def processes(self) -> list[int]:
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        return [pid for pid in pids if self._mark in environ_of(pid)]

    def victim(self, what: str) -> int:
        """Return the process to kill, as soon as there is one."""
        if what == "server":
            return self.server.pid
        workers: list[int] = []

        def look() -> bool:
            workers.extend(pid for pid in self.processes() if _WORKER in command_of(pid))
            return bool(workers)

        self.until(look)
        found = workers[0]
        while what == "spark" and "arcbeam.spark.daemon" not in command_of(found):
            found = parent_of(found)
        return found

    @property
    def messages(self) -> str:
        """What the submitter shows of the job."""
        return (self._folder / "submitter").read_text()

    def end(self) -> None:
        """End its processes."""
        for each in (self.submitter, self.server):
            # SUBTLE: once it has been waited for, its id may be that of another test's process.
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()


@pytest.fixture
def job(binaries: tuple[Path, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[GoJob]:
    program, boot = binaries
    environment = process(boot) if request.param == "PROCESS" else ("--environment_type=LOOPBACK",)
    job = GoJob(tmp_path, program, environment)
    yield job
    job.end()
    job.until(lambda: not job.processes(), _LEFT_SECONDS)


@pytest.mark.contract("API-05", "API-08", "STORE-04")
@pytest.mark.parametrize("job", ["PROCESS"], indirect=True)
@pytest.mark.parametrize("what", ["worker", "spark", "server"])
def test_counts_are_exact_after_repeated_kills(job: GoJob, what: str) -> None:
    for lines in (1, 20, 40):
        job.until(lambda lines=lines: len(job.lines()) >= lines)
        os.kill(job.victim(what), signal.SIGKILL)
        if what == "server":
            job.server.wait()
            job.serve()
    job.until(lambda: job.state() == "DONE")
    assert sorted(job.lines()) == EXPECTED
    if what == "worker":
        # An idle worker of Spark is missed by no task.
        assert re.search(r"try 1 of \d+: the SDK worker of the command '.*' is gone", job.messages), job.messages
    # The server and its Spark are still there, but no SDK worker.
    job.until(lambda: not any(_WORKER in command_of(pid) for pid in job.processes()), _LEFT_SECONDS)


@pytest.mark.contract("API-06", "API-08")
@pytest.mark.parametrize("job", ["LOOPBACK"], indirect=True)
def test_job_fails_without_its_loopback_submitter(job: GoJob) -> None:
    job.until(lambda: len(job.lines()) >= 1)
    os.kill(job.submitter.pid, signal.SIGKILL)
    job.until(lambda: job.state() == "FAILED")
    assert job.lines() < set(EXPECTED)
    assert "the program that submitted the job has ended" in job.errors()
