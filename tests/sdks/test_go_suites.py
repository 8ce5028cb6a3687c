"""The Go SDK's own tests of runners, on the job server: those that need no other system.

The list of what does not pass is complete: each entry must fail, and nothing else may.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from arcbeam.cli import main
from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from tests.sdks.goprograms import built

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark")]

_SDK = "github.com/apache/beam/sdks/v2/go"
_SECONDS = 1200.0
_OUTCOME = re.compile(r"^--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)


class Suite(NamedTuple):
    """A package of tests.

    Attributes:
        package: below the SDK.
        fails: the tests that fail, with the reason.
        ends_never: the tests that cannot be run, with the reason.
    """

    package: str
    fails: dict[str, str] = {}  # noqa: RUF012  # never changed
    ends_never: dict[str, str] = {}  # noqa: RUF012  # as above


SUITES = [
    Suite(
        "test/integration/primitives",
        fails={
            "TestTriggerAfterProcessingTime": "expects what arrives after a trigger has finished in a pane of its own. "
            "In the model, a finished trigger closes its window, and what follows is dropped. The SDK runs the test "
            "on no runner: it is left out for all of them",
        },
        ends_never={
            "TestDrain": "never ends, unless somebody drains it; see `test_drain_truncates_restrictions`",
            "TestOomParDo": "takes all memory, to see whether Dataflow stores a profile of the heap",
        },
    ),
    Suite("test/integration/synthetic"),
    Suite("test/integration/wordcount"),
    Suite("test/regression"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    server = JobServer(ServerSettings(folder=tmp_path_factory.mktemp("jobs")), SparkExecutor)
    yield server
    server.stop()


def _jobs(server: JobServer) -> int:
    """Return how many jobs the server has had."""
    shown = CliRunner().invoke(main.main, ["jobs", f"--endpoint={server.endpoint}", "--json", "--limit=0"])
    return len(json.loads(shown.stdout))


@pytest.mark.contract("API-02", "API-03")
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.package)
def test_suite_of_the_sdk(server: JobServer, tmp_path: Path, suite: Suite) -> None:
    binary = built(f"{_SDK}/{suite.package}", tmp_path, "test", "-c")
    command = [str(binary), "-test.v", f"-test.timeout={_SECONDS:.0f}s", "--runner=universal"]
    command += [f"--endpoint={server.endpoint}", "--environment_type=LOOPBACK"]
    if suite.ends_never:
        command.append(f"-test.skip=^({'|'.join(suite.ends_never)})$")
    before = _jobs(server)
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=_SECONDS + 60)
    outcomes = {name: outcome for outcome, name in _OUTCOME.findall(ran.stdout)}
    assert "SKIP" not in outcomes.values(), ran.stdout
    assert {name for name, outcome in outcomes.items() if outcome == "FAIL"} == set(suite.fails), ran.stdout
    known = subprocess.run([str(binary), "-test.list=."], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert {*outcomes, *suite.ends_never} == set(known.stdout.split())
    assert _jobs(server) - before >= len(outcomes), "some tests have not run here"
