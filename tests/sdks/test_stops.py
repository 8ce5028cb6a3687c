"""Jobs in SDK workers are stopped in each way, and resumed without their program: outputs are exact."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from apache_beam.portability.api import beam_job_api_pb2_grpc as job_grpc
from click.testing import CliRunner

from arcbeam.cli import main
from arcbeam.errors import InvalidPipelineError
from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from arcbeam.runner.resume import resume
from tests.chaos.test_kills import processes
from tests.sdks import surviving
from tests.sdks.goprograms import GO_BOOT, PYTHON_BOOT, built, process
from tests.sdks.pools import PATH, ROOT, Pool
from tests.sdks.sampling import samples_of
from tests.sdks.surviving import KEYS, NUMBERS
from tests.sdks.trials import EXPECTED, LEFT_SECONDS, Programs
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark")]

_END = NUMBERS + 1
"""The limit at which a source ends."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    folder = tmp_path_factory.mktemp("programs")
    return Programs(built("./programs", folder), built(GO_BOOT, folder), built(PYTHON_BOOT, folder))


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = JobServer(ServerSettings(folder=tmp_path_factory.mktemp("jobs")), SparkExecutor)
    yield server.endpoint
    server.stop()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    pool = Pool(tmp_path / "pool")
    pool.start()
    yield pool
    pool.kill()


class Job:
    """The program "stopping" of one SDK.

    Args:
        folder: for its output.
        programs: built programs.
        endpoint: of the job server.
        sdk: "Go" or "Python".
    """

    def __init__(self, folder: Path, programs: Programs, endpoint: str, sdk: str) -> None:
        self.programs, self.endpoint, self._sdk = programs, endpoint, sdk
        self.output = folder / "output"
        self.output.mkdir()
        self._log = folder / "submitter"
        self._name = f"stopping-{folder.name}".replace("_", "-").lower()
        self.submitter: subprocess.Popen[bytes] | None = None
        self.result: Any = None
        self.folder = ""

    def submit(self, *options: str) -> None:
        """Submit it; by PROCESS, unless options say otherwise."""
        if self._sdk == "Go":
            command = self.programs.submission("Go", "stopping", self.output, self.endpoint, self._name)
            with self._log.open("ab") as log:
                self.submitter = subprocess.Popen([*command, *options], stdout=log, stderr=log, cwd=self.output)
            return
        given = [
            *("--runner=PortableRunner", f"--job_endpoint={self.endpoint}", f"--job_name={self._name}"),
            *("--experiments=disable_logging_submission_environment", "--allow_unsafe_triggers"),
            *(options if any("environment_type" in each for each in options) else (*self.by_process(), *options)),
        ]
        self.result = surviving.submitted("stopping", self.output, *given)

    def by_process(self) -> tuple[str, ...]:
        """Return the options of Python's PROCESS environment."""
        boot = self.programs.python_boot
        return process(boot, RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT="1", PATH=PATH, PYTHONPATH=str(ROOT))

    def allow(self, limit: int) -> None:
        """Allow the numbers below a limit."""
        partial = self.output / "partial"
        partial.write_text(str(limit))
        partial.replace(self.output / "limit")

    def reach(self, limit: int) -> None:
        """Allow the numbers below a limit, and wait until it has counted them."""
        self.allow(limit)
        until(lambda: len(set(self.lines("counts"))) >= limit)

    def ask(self, command: str, *arguments: str) -> str:
        """Run a command on the job; return what it prints."""
        shown = CliRunner().invoke(main.main, [command, self.id(), *arguments, f"--endpoint={self.endpoint}"])
        assert not shown.exit_code, shown.output
        return shown.stdout.strip()

    def id(self) -> str:
        """Return the id of its newest run at the job server."""
        shown = CliRunner().invoke(main.main, ["jobs", f"--endpoint={self.endpoint}"])
        return next(line.split()[0] for line in shown.stdout.splitlines() if self._name in line)

    def state(self) -> str:
        """Return the state of that run."""
        shown = CliRunner().invoke(main.main, ["jobs", f"--endpoint={self.endpoint}", "--json"])
        states: list[str] = [each["state"] for each in json.loads(shown.stdout) if each["name"] == self._name]
        return states[0]

    def suspend(self) -> None:
        """Suspend it, and end its program."""
        self.folder = self.ask("suspend").partition("/savepoints/")[0]
        self.leave()

    def leave(self) -> None:
        """End its program."""
        if self.submitter is not None:
            self.submitter.kill()
            self.submitter.wait()

    def lines(self, name: str) -> list[str]:
        path = self.output / name
        return sorted(path.read_text().splitlines()) if path.exists() else []

    def collected(self) -> dict[str, list[str]]:
        return {name: self.lines(name) for name in EXPECTED}


@pytest.fixture(params=["Go", "Python"])
def job(programs: Programs, endpoint: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    job = Job(tmp_path, programs, endpoint, request.param)
    yield job
    job.leave()
    until(lambda: not workers_of(job), "the end of the workers", seconds=LEFT_SECONDS)


def workers_of(job: Job) -> list[str]:
    """Return the command lines of the processes that boot programs were started for."""
    boots = [str(job.programs.go_boot), str(job.programs.python_boot)]
    return [command for _, _, command in processes() if any(boot in command for boot in boots)]


def after(limit: int) -> dict[str, list[str]]:
    """Return what the job outputs after it has counted the numbers below a limit."""
    before = {f"{key} {n // KEYS + 1}" for n in range(limit) for key in (n % KEYS,)}
    return {**EXPECTED, "counts": [line for line in EXPECTED["counts"] if line not in before]}


@pytest.mark.contract("API-08", "END-03", "STORE-05")
def test_resumed_without_its_program(job: Job) -> None:
    job.allow(40)
    job.submit()
    job.reach(40)
    assert job.ask("savepoint", "first").endswith("/savepoints/first")
    job.reach(80)
    job.suspend()
    job.allow(_END)
    result = resume(job.folder, ["--shards=3"])
    assert result.wait_until_finish() == "DONE"
    assert job.collected() == EXPECTED
    for path in job.output.iterdir():
        path.unlink()
    job.allow(_END)
    flags = ["--force_resume", "--discard_later_micro_batches"]
    assert resume(f"{job.folder}/savepoints/first", flags).wait_until_finish() == "DONE"
    assert job.collected() == after(40)


@pytest.mark.contract("PAGE-15")
@pytest.mark.parametrize("job", ["Go"], indirect=True)
def test_samples_leave_the_output_unchanged(job: Job) -> None:
    job.allow(10)
    job.submit()
    job.reach(10)
    found = samples_of(job.ask("savepoint").partition("/savepoints/")[0], job.allow, 10)
    job.suspend()
    job.allow(_END)
    assert resume(job.folder).wait_until_finish() == "DONE"
    assert job.collected() == EXPECTED
    assert found["main.allowedFn/Process"][0].isdigit(), "integers of Go are decoded"
    assert re.fullmatch(r"\([012], \d+\)", found["main.byThree"][0]), "it stays in the worker"
    assert re.fullmatch(r"'[012] \d+'", found["main.ordinalFn"][0])


@pytest.mark.contract("API-08", "END-02", "END-06")
def test_cancelled_and_drained(job: Job) -> None:
    job.allow(40)
    job.submit()
    job.reach(40)
    job.folder = job.ask("savepoint").partition("/savepoints/")[0]
    assert "CANCELLED" in job.ask("cancel")
    job.leave()
    result = resume(job.folder)
    job.reach(60)
    result.drain()
    assert result.wait_until_finish() == "DRAINED"
    each = 60 // KEYS
    assert job.collected() == {
        "counts": sorted(f"{key} {what}" for key in range(KEYS) for what in (*range(1, each + 1), f"total {each}")),
        "groups": sorted(f"{key} [{' '.join(map(str, range(key, 60, KEYS)))}]" for key in range(KEYS)),
    }


@pytest.mark.contract("API-05", "API-08", "END-03")
@pytest.mark.parametrize("job", ["Python"], indirect=True)
def test_pool_is_restarted(job: Job, pool: Pool) -> None:
    job.allow(40)
    job.submit(*pool.options)
    job.reach(40)
    pool.kill()
    pool.start()
    job.reach(80)
    job.suspend()
    pool.kill()
    job.allow(_END)
    began = time.monotonic()
    with pytest.raises(InvalidPipelineError, match=r"(?s)at localhost:\d+ does not answer.*start the worker pool"):
        resume(job.folder)
    assert time.monotonic() - began < 10
    pool.start()
    assert resume(job.folder).wait_until_finish() == "DONE"
    assert {name: sorted(set(lines)) for name, lines in job.collected().items()} == EXPECTED


@pytest.mark.contract("API-03", "END-03", "STORE-05")
@pytest.mark.parametrize("job", ["Python"], indirect=True)
def test_moved_between_environments(job: Job, pool: Pool, tmp_path: Path) -> None:
    folder = f"--checkpoint_dir={tmp_path}/job"
    for limit, options in ((30, ()), (60, pool.options), (90, ("--environment_type=LOOPBACK",))):
        job.allow(limit)
        job.submit(folder, *options)
        job.reach(limit)
        job.suspend()
    job.allow(_END)
    job.submit(folder)
    assert job.result.wait_until_finish() == "DONE"
    assert job.collected() == EXPECTED
    (seen,) = job.result.metrics().query(MetricsFilter().with_name("seen"))["counters"]
    assert seen.committed == 30, "since the job was resumed"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the submitter's threads end so
@pytest.mark.contract("API-08", "END-01")
def test_restarted_server_waits_for_pool(programs: Programs, pool: Pool, tmp_path: Path) -> None:
    settings = ServerSettings(folder=tmp_path / "jobs")
    server = JobServer(settings, SparkExecutor)
    try:
        job = Job(tmp_path, programs, server.endpoint, "Python")
        job.allow(40)
        job.submit(*pool.options)
        job.reach(40)
        server.stop()
        pool.kill()
        server = JobServer(settings, SparkExecutor)
        job.endpoint = server.endpoint
        with grpc.insecure_channel(server.endpoint) as channel:
            requested = job_pb.JobMessagesRequest(job_id=job.id())
            reported = job_grpc.JobServiceStub(channel).GetMessageStream(requested, timeout=60)
            assert any("cannot be reached" in each.message_response.message_text for each in reported)
        pool.start()
        job.allow(_END)
        until(lambda: job.state() == "DONE")
        assert {name: sorted(set(lines)) for name, lines in job.collected().items()} == EXPECTED
    finally:
        server.stop()
