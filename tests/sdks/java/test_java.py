"""Programs of the Java SDK on the job server: their workers run in the submitting program."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from arcbeam.cli import main
from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from tests.sdks.goprograms import Ran
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark"), pytest.mark.contract("API-03")]

MODULE = Path(__file__).parent
_SECONDS = 240.0


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Build the programs; skip the tests where that is impossible."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no `{program}` on this machine")
    target = tmp_path_factory.mktemp("java")

    def mvn(*goal: str) -> str:
        arguments = ["mvn", "-q", "-B", f"-Dtarget={target}", *goal]
        done = subprocess.run(arguments, cwd=MODULE, capture_output=True, text=True)
        return done.stdout + done.stderr if done.returncode else ""

    refused = mvn("dependency:build-classpath", f"-Dmdep.outputFile={target}/classpath")
    if refused:
        pytest.skip(f"Maven cannot download Beam's artifacts: {refused.strip().splitlines()[0]}")
    errors = mvn("compile")
    assert not errors, errors
    return ["java", "-cp", f"{target}/classes:{(target / 'classpath').read_text()}", "Programs"]


@pytest.fixture(scope="module")
def server(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    server = JobServer(ServerSettings(folder=tmp_path_factory.mktemp("jobs")), SparkExecutor)
    yield server
    server.stop()


def _runner(server: JobServer) -> list[str]:
    return ["--runner=PortableRunner", f"--jobEndpoint={server.endpoint}", "--defaultEnvironmentType=LOOPBACK"]


Run = Callable[..., Ran]
"""Runs a program to its end, with more arguments."""


@pytest.fixture
def run(command: list[str], server: JobServer, tmp_path: Path) -> Run:
    output = tmp_path / "output"
    output.mkdir()

    def run(program: str, *more: str) -> Ran:
        arguments = [*command, f"--program={program}", f"--output={output}", *_runner(server), *more]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=_SECONDS, cwd=output)
        collected = {path.name: sorted(path.read_text().splitlines()) for path in output.iterdir() if path.is_file()}
        return Ran(done.returncode, done.stdout + done.stderr, collected)

    return run


_EXPECTED = {
    "wordcount": {
        "counts": ["König: 1", "and: 2", "fool: 1", "king: 1", "queen: 1", "the: 3"],
        "lines": ["", "König", "and the fool", "the king and the queen"],
    },
    "grouping": {"groups": ["even [2, 4]", "odd [1, 3, 5]"], "large": ["all 100000 4999950000"]},
    "combining": {
        "joined": ["{1=1, 2=1, 3=1, 4=1, 5=2}"],
        "joinedperkey": ["KV{even, {2=1, 4=1}}", "KV{odd, {1=1, 3=1, 5=2}}"],
        "sums": ["KV{even, 6}", "KV{odd, 14}"],
        "fanout": ["KV{even, 6}", "KV{odd, 14}"],
        "mean": [str(20 / 6)],
        "empty": ["0"],
    },
    "sides": {
        "sides": [
            "a[1, 2, 3][1, 2, 3]3 6 3[a, b][1, 2][a, b]",
            "b[1, 2, 3][1, 2, 3]3 6 3[a, b][3][a, b]",
            "c[1, 2, 3][1, 2, 3]3 6 null[a, b]none[a, b]",
        ],
        "windowed": ["15 12", "3 3", "4 3"],
    },
    "outputs": {
        "even": ["0", "2", "4"],
        "odd": ["odd 1", "odd 3", "odd 5"],
        "flat": ["even 0", "even 2", "even 4", "odd 1", "odd 3", "odd 5"],
        "distinct": ["a", "b"],
    },
    "windows": {
        "fixed": [
            "even[0, 2] 0:10 ON_TIME 0",
            "even[14] 10:20 ON_TIME 0",
            "even[20, 22] 20:30 ON_TIME 0",
            "even[40] 40:50 ON_TIME 0",
            "odd[1, 3] 0:10 ON_TIME 0",
            "odd[17] 10:20 ON_TIME 0",
            "odd[21] 20:30 ON_TIME 0",
            "odd[61] 60:70 ON_TIME 0",
        ],
        "sliding": [
            "even[0, 2] -5:5 ON_TIME 0",
            "even[0, 2] 0:10 ON_TIME 0",
            "even[14] 10:20 ON_TIME 0",
            "even[14] 5:15 ON_TIME 0",
            "even[20, 22] 15:25 ON_TIME 0",
            "even[20, 22] 20:30 ON_TIME 0",
            "even[40] 35:45 ON_TIME 0",
            "even[40] 40:50 ON_TIME 0",
            "odd[1, 3] -5:5 ON_TIME 0",
            "odd[1, 3] 0:10 ON_TIME 0",
            "odd[17, 21] 15:25 ON_TIME 0",
            "odd[17] 10:20 ON_TIME 0",
            "odd[21] 20:30 ON_TIME 0",
            "odd[61] 55:65 ON_TIME 0",
            "odd[61] 60:70 ON_TIME 0",
        ],
        "sessions": [
            "even[0, 2] 0:7 ON_TIME 0",
            "even[14] 14:19 ON_TIME 0",
            "even[20, 22] 20:27 ON_TIME 0",
            "even[40] 40:45 ON_TIME 0",
            "odd[1, 3] 1:8 ON_TIME 0",
            "odd[17, 21] 17:26 ON_TIME 0",
            "odd[61] 61:66 ON_TIME 0",
        ],
    },
    "merging": {"merged": ["all[0, 3] 0:8 ON_TIME 0", "all[14] 14:19 ON_TIME 0"]},
    "ownwindows": {"groups": ["even [0, 2]", "odd [1, 3]"]},
    "triggers": {
        "panes": [
            "even[0, 2, 4, 6] 0:10 LATE 2",
            "even[0, 2, 4] 0:10 ON_TIME 1",
            "even[0, 2] 0:10 EARLY 0",
        ]
    },
    "state": {
        "state": [
            "even [0, 2, 4, 6, 8] 20 [x1, x2] 1 [0]false [m0][0, 0, 0, 2, 2]true",
            "even cleared []true[]",
            "odd [1, 3, 5, 7, 9] 25 [x1, x2] 1 [1]false [m1][]true",
            "odd cleared []true[m1]",
        ]
    },
    "timers": {
        "timers": [
            "even end [0, 2] 9999",
            "even end [14] 19999",
            "even expired [0, 2] 9999",
            "even expired [14] 19999",
            "even family x0 1",
            "even family x2 14001",
            "even family x2 2001",
            "even soon",
            "even soon",
            "odd end [1, 3] 9999",
            "odd expired [1, 3] 9999",
            "odd family x0 3001",
            "odd family x1 1001",
            "odd soon",
        ]
    },
    "owncoders": {
        "points": [
            "Point 0 [Point 2][Point -2][2@98][Point 2]",
            "Point 1 [Point 1, Point 3][Point -1, Point -3][3@97, 1@99][Point 1, Point 3]",
        ]
    },
    "coders": {"points": ["0 [Point 2]", "1 [Point 1, Point 3]"], "rows": ["a1 2", "bnull 1"]},
    "splitting": {"sum": ["999000"], "count": ["2000"], "different": ["1000"]},
    "periodic": {
        "counts": [
            "all[1000000000, 1000000500, 1000001000, 1000001500] 1000000:1000002 ON_TIME 0",
            "all[1000002000, 1000002500, 1000003000, 1000003500] 1000002:1000004 ON_TIME 0",
            "all[1000004000, 1000004500, 1000005000] 1000004:1000006 ON_TIME 0",
        ]
    },
    "finalizing": {"numbers": list("01234"), "finalized": list("01234")},
    "metrics": {"metrics": ["last 4", "seen 10", "sizes DistributionResult{sum=45, count=10, min=0, max=9}"]},
}


@pytest.mark.parametrize("program", _EXPECTED)
def test_program_has_the_expected_results(run: Run, program: str) -> None:
    ran = run(program)
    assert not ran.code, ran.log
    assert ran.collected == _EXPECTED[program]


def test_bounded_and_unbounded_sources_are_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lines1").write_text("a\nb\n")
    (tmp_path / "lines2").write_text("c\n")
    ran = run("reading", f"--input={tmp_path}/lines*")
    assert not ran.code, ran.log
    assert ran.collected == {"bounded": ["20"], "unbounded": ["20"], "text": list("abc"), "written": list("xyz")}


def test_marks_of_an_unbounded_source_are_finalized(run: Run) -> None:
    ran = run("source")
    assert not ran.code, ran.log
    assert ran.collected["groups"] == [
        "even[0, 2] 0:4 ON_TIME 0",
        "even[4, 6] 4:8 ON_TIME 0",
        "even[8] 8:12 ON_TIME 0",
        "odd[1, 3] 0:4 ON_TIME 0",
        "odd[5, 7] 4:8 ON_TIME 0",
        "odd[9] 8:12 ON_TIME 0",
    ]
    assert "10" in ran.collected["finalized"]


@pytest.mark.contract("API-06")
def test_failing_dofn_is_named_with_its_stack(run: Run) -> None:
    ran = run("failing")
    assert ran.code
    assert "java.lang.IllegalStateException: no three [while running 'Wrong/ParMultiDo(Fail)']" in ran.log
    assert "\tat Programs$FailFn.process(Programs.java:" in ran.log
    assert ran.collected["numbers"] == ["0", "1", "2"]


@pytest.mark.contract("API-04")
@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("ownsidewindows", "with windows of a type of its own in a Java worker"),
        ("entries", "entries of the state 'own' cannot be read"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(run: Run, program: str, what: str) -> None:
    ran = run(program)
    assert ran.code
    assert what in ran.log


@pytest.mark.contract("END-02", "SDF-12")
def test_drain_leaves_nothing_out(command: list[str], server: JobServer, tmp_path: Path) -> None:
    """An option of arcbeam is one of the program's: `checkpointDir`."""
    checkpoints, numbers = tmp_path / "checkpoints", tmp_path / "numbers"
    arguments = [*command, "--program=endless", f"--output={tmp_path}", f"--checkpointDir={checkpoints}"]
    with subprocess.Popen([*arguments, *_runner(server)], cwd=tmp_path) as submitter:
        try:
            until(lambda: numbers.exists() and len(numbers.read_text().split()) >= 50, "numbers", process=submitter)
            assert checkpoints.is_dir()
            running = CliRunner().invoke(main.main, ["jobs", f"--endpoint={server.endpoint}", "--json", "--running"])
            (job,) = json.loads(running.stdout)
            drained = CliRunner().invoke(main.main, ["drain", job["id"], f"--endpoint={server.endpoint}"])
        finally:
            submitter.kill()  # Java does not know that the job has ended then
    assert "DRAINED" in drained.stdout, drained.output
    found = sorted(map(int, numbers.read_text().split()))
    # The source divides into twenty, each with every twentieth number.
    for first in range(20):
        part = [each for each in found if each % 20 == first]
        assert part == list(range(first, 20 * len(part), 20))
