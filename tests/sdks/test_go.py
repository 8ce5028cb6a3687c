"""Programs of the Go SDK on the job server: their results, and those of the SDK's own runner."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from arcbeam.cli import main
from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from tests.sdks.goprograms import GO_BOOT, Ran, built, process, programs_in, ran
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark")]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with programs_in(tmp_path_factory.mktemp("go")) as binary:
        yield binary


@pytest.fixture(scope="module")
def server(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    server = JobServer(ServerSettings(folder=tmp_path_factory.mktemp("jobs")), SparkExecutor)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(GO_BOOT, tmp_path_factory.mktemp("boot"))


Run = Callable[[str], Ran]
"""Runs a program to its end."""


@pytest.fixture
def loopback(programs: Path, server: JobServer, tmp_path: Path) -> Run:
    output = tmp_path / "loopback"
    output.mkdir()
    runner = ("--runner=universal", f"--endpoint={server.endpoint}", "--environment_type=LOOPBACK")
    return lambda program: ran(programs, program, output, *runner)


@pytest.fixture
def by_process(programs: Path, boot: Path, server: JobServer, tmp_path: Path) -> Run:
    output = tmp_path / "process"
    output.mkdir()
    runner = ("--runner=universal", f"--endpoint={server.endpoint}", f"--worker_binary={programs}", *process(boot))
    return lambda program: ran(programs, program, output, *runner)


@pytest.fixture(params=["loopback", "by_process"])
def here(request: pytest.FixtureRequest) -> Run:
    """Run a program on arcbeam, in each environment."""
    run: Run = request.getfixturevalue(request.param)
    return run


@pytest.fixture(scope="session")
def there(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a program on Prism, once."""

    @cache
    def run(program: str) -> Ran:
        assert program not in _NOT_ON_PRISM, _NOT_ON_PRISM[program]
        return ran(programs, program, tmp_path_factory.mktemp(program), "--runner=prism")

    return run


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
    "windowedstate",
    "clearing",
    "estimators",
    "dynamicsplits",
    "periodic",
    "heldtimers",
    "pagedgroups",
]

_NOT_ON_PRISM = {
    "timerfamilies": "a DoFn with two families of timers hangs there: only those of the first one fire",
    "draining": "Prism cannot drain a job, so the program never ends there",
    "dying": "the worker is in the submitting process there, so the program ends itself",
}
"""Programs whose results are compared with fixed ones, with what happened on Prism."""


@pytest.mark.contract("API-02", "API-03", "API-08")
@pytest.mark.parametrize("program", _PROGRAMS)
def test_results_equal_those_of_prism(here: Run, there: Run, program: str) -> None:
    found, expected = here(program), there(program)
    assert (found.code, expected.code) == (0, 0), found.log + expected.log
    assert found.collected == expected.collected


def test_early_and_late_panes_of_script(here: Run, there: Run) -> None:
    found, expected = here("triggers").collected, there("triggers").collected
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
    for mode in ("accumulating", "discarding"):
        assert _news(found[mode]) == _news(expected[mode])


def _news(panes: list[str]) -> dict[str, tuple[str, str]]:
    """Return the timing of each pane that has new contents, and whether it is the first one, by contents and window.

    Prism also puts out the accumulated contents at the ends of a window and of its lateness, if nothing has come since.
    In the model such panes are empty, and Go's panes are only for news. And for Prism a pane is never the last one if
    the watermark has passed both ends at once.
    """
    found: dict[str, tuple[str, str]] = {}
    for pane in sorted(panes, key=lambda line: int(line.split()[-1])):
        contents, timing, is_first, _, _ = pane.rsplit(maxsplit=4)
        found.setdefault(contents, (timing, is_first))
    return found


@pytest.mark.contract("API-06")
@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("failing", "no three [while running 'Wrong/main.fail']"),
        ("panicking", "panic: no three [while running 'Wrong/main.failFast']"),
    ],
)
def test_failing_dofn_is_named_and_not_retried(here: Run, there: Run, program: str, message: str) -> None:
    found, expected = here(program), there(program)
    assert found.code
    assert message in found.log
    assert "while executing Process for Plan" in found.log
    assert found.collected["numbers"] == ["0", "1", "2"]
    # The plans of bundles differ between runners, so of Prism's failure only what the DoFn says is compared.
    assert expected.code
    assert "no three" in expected.log


def test_user_metrics_are_returned(here: Run, there: Run) -> None:
    found = here("metrics")
    assert found.metrics() == {"last": 4, "seen": 10, "sizes": [10, 45, 0, 9]}
    # Not their transforms: Prism has another name for them.
    assert found.metrics() == there("metrics").metrics()


def test_families_of_timers_set_and_clear_each_other(loopback: Run) -> None:
    assert loopback("timerfamilies").collected["timers"] == [
        "even One 20002 2",
        "even Twoa 40000 202",
        "even Twoc 35000 102",
        "odd One 20003 4",
        "odd Twoa 40000 204",
        "odd Twoc 35000 104",
    ]


def test_finalizer_is_called_after_the_commit(here: Run, there: Run) -> None:
    found = here("finalizing").collected
    assert found["finalized"] == found["numbers"] == ["0", "1", "2", "3", "4"]
    # Prism never calls a finalizer.
    assert found["numbers"] == there("finalizing").collected["numbers"]


@pytest.mark.contract("END-02", "API-03", "SDF-12")
def test_drain_truncates_restrictions(programs: Path, boot: Path, server: JobServer, tmp_path: Path) -> None:
    command = [str(programs), "--program=draining", f"--output={tmp_path}", "--runner=universal"]
    command += [f"--endpoint={server.endpoint}", f"--worker_binary={programs}", *process(boot)]
    claimed = tmp_path / "claimed"

    def numbers() -> list[int]:
        return sorted(set(map(int, claimed.read_text().split()))) if claimed.exists() else []

    with subprocess.Popen(command, cwd=tmp_path) as submitter:
        try:
            until(lambda: len(numbers()) >= 3, "three numbers", process=submitter)
            running = CliRunner().invoke(main.main, ["jobs", f"--endpoint={server.endpoint}", "--json", "--running"])
            (job,) = json.loads(running.stdout)
            drained = CliRunner().invoke(main.main, ["drain", job["id"], f"--endpoint={server.endpoint}"])
        finally:
            submitter.kill()
    assert "DRAINED" in drained.stdout, drained.output
    assert numbers() == list(range(len(numbers()))), "nothing is left out"


@pytest.mark.contract("API-08")
def test_killed_worker_process_is_replaced(by_process: Run) -> None:
    ran = by_process("dying")
    assert not ran.code, ran.log
    assert ran.collected["numbers"] == sorted(map(str, range(10)))
    assert "died" in ran.collected
