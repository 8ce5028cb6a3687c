"""Programs of the Go SDK on the job server: their results, and those of the SDK's own runner."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from arcbeam.cli import main
from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from tests.sdks.goprograms import GO_BOOT, Ran, built, process, ran

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark")]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("./programs", tmp_path_factory.mktemp("go"))


@pytest.fixture(scope="module")
def server(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    server = JobServer(ServerSettings(folder=tmp_path_factory.mktemp("jobs")), SparkExecutor)
    yield server
    server.stop()


@pytest.fixture
def endpoint(server: JobServer) -> str:
    return server.endpoint


@pytest.fixture
def loopback(programs: Path, endpoint: str, tmp_path: Path) -> Callable[[str], Ran]:
    output = tmp_path / "arcbeam"
    output.mkdir()
    runner = ("--runner=universal", f"--endpoint={endpoint}", "--environment_type=LOOPBACK")
    return lambda program: ran(programs, program, output, *runner)


@pytest.fixture(scope="session")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(GO_BOOT, tmp_path_factory.mktemp("boot"))


@pytest.fixture
def by_process(programs: Path, boot: Path, endpoint: str, tmp_path: Path) -> Callable[[str], Ran]:
    output = tmp_path / "process"
    output.mkdir()
    runner = ("--runner=universal", f"--endpoint={endpoint}", f"--worker_binary={programs}", *process(boot))
    return lambda program: ran(programs, program, output, *runner)


@pytest.fixture
def prism(programs: Path, tmp_path: Path) -> Callable[[str], Ran]:
    output = tmp_path / "prism"
    output.mkdir()
    return lambda program: ran(programs, program, output, "--runner=prism")


_PROGRAMS = [
    "wordcount",
    "grouping",
    "sides",
    "windows",
    "windowedsides",
    "state",
    "maps",
    "orderedlist",
    "timers",
    "processingtime",
    "scriptedclock",
    "splitting",
    "checkpointing",
    "reading",
    "parts",
    "statistics",
    "coders",
    "lifecycle",
    "options",
    "writing",
    "combining",
    "moresides",
]


@pytest.mark.contract("API-02", "API-03")
@pytest.mark.parametrize("program", _PROGRAMS)
def test_results_equal_those_of_prism(
    loopback: Callable[[str], Ran], prism: Callable[[str], Ran], program: str
) -> None:
    here, there = loopback(program), prism(program)
    assert (here.code, there.code) == (0, 0), here.log + there.log
    assert here.collected == there.collected


def test_early_and_late_panes_of_script(loopback: Callable[[str], Ran]) -> None:
    found = loopback("triggers").collected
    assert found["accumulating"] == [
        "even[0 2 4 6 8] [0:10000) late false false 2",
        "even[0 2 4 6] [0:10000) early false false 1",
        "even[0 2] [0:10000) early true false 0",
        "even[10] [10000:20000) ontime true true 0",
        "odd[1] [0:10000) ontime true false 0",
    ]
    assert found["discarding"] == [
        "even[0 2] [0:10000) early true false 0",
        "even[10] [10000:20000) ontime true true 0",
        "even[4 6] [0:10000) early false false 1",
        "even[8] [0:10000) late false false 2",
        "odd[1] [0:10000) ontime true false 0",
    ]


@pytest.mark.contract("API-06")
@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("failing", "no three [while running 'Wrong/main.fail']"),
        ("panicking", "panic: no three [while running 'Wrong/main.failFast']"),
    ],
)
def test_failing_dofn_is_named_and_not_retried(loopback: Callable[[str], Ran], program: str, message: str) -> None:
    ran = loopback(program)
    assert ran.code
    assert message in ran.log
    assert "while executing Process for Plan" in ran.log
    assert ran.collected["numbers"] == ["0", "1", "2"]


@pytest.mark.parametrize("where", ["loopback", "by_process"])
def test_user_metrics_are_returned(request: pytest.FixtureRequest, where: str) -> None:
    ran: Callable[[str], Ran] = request.getfixturevalue(where)
    assert ran("metrics").metrics() == {"last": 4, "seen": 10, "sizes": [10, 45, 0, 9]}


def test_finalizer_is_called_after_the_commit(loopback: Callable[[str], Ran]) -> None:
    found = loopback("finalizing").collected
    assert found["finalized"] == found["numbers"] == ["0", "1", "2", "3", "4"]


@pytest.mark.contract("END-02", "API-03", "SDF-12")
def test_drain_truncates_restrictions(programs: Path, boot: Path, server: JobServer, tmp_path: Path) -> None:
    command = [str(programs), "--program=draining", f"--output={tmp_path}", "--runner=universal"]
    command += [f"--endpoint={server.endpoint}", f"--worker_binary={programs}", *process(boot)]
    claimed = tmp_path / "claimed"

    def numbers() -> list[int]:
        return sorted(set(map(int, claimed.read_text().split()))) if claimed.exists() else []

    with subprocess.Popen(command, cwd=tmp_path) as submitter:
        try:
            while len(numbers()) < 3:
                assert submitter.poll() is None
                time.sleep(0.05)
            running = CliRunner().invoke(main.main, ["jobs", f"--endpoint={server.endpoint}", "--json", "--running"])
            (job,) = json.loads(running.stdout)
            drained = CliRunner().invoke(main.main, ["drain", job["id"], f"--endpoint={server.endpoint}"])
        finally:
            submitter.kill()
    assert "DRAINED" in drained.stdout, drained.output
    assert numbers() == list(range(len(numbers()))), "nothing is left out"


@pytest.mark.contract("API-05", "API-08")
def test_process_gets_worker_binary_and_options(by_process: Callable[[str], Ran], prism: Callable[[str], Ran]) -> None:
    here, there = by_process("state"), prism("state")
    assert (here.code, there.code) == (0, 0), here.log + there.log
    assert here.collected == there.collected


@pytest.mark.contract("API-08")
def test_killed_worker_process_is_replaced(by_process: Callable[[str], Ran]) -> None:
    ran = by_process("dying")
    assert not ran.code, ran.log
    assert ran.collected["numbers"] == sorted(map(str, range(10)))
    assert "died" in ran.collected
