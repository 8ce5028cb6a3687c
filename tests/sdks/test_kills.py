"""Processes of jobs with SDK workers are killed at each point: outputs are exact, and no process is left.

Each cell of the matrix is a job. Jobs share a server until it is killed; then the next one has the job. The end of a
`pytest -s` shows for each victim how long outputs have paused.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.chaos.points import SDK_POINTS, SDK_VICTIMS
from tests.sdks.goprograms import GO_BOOT, PYTHON_BOOT, built, programs_in
from tests.sdks.trials import LEFT_SECONDS, Programs, Served, Trial

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    folder = tmp_path_factory.mktemp("programs")
    with programs_in(folder) as go:
        yield Programs(go, built(GO_BOOT, folder), built(PYTHON_BOOT, folder))


@pytest.fixture(scope="module")
def pauses() -> Iterator[dict[str, list[float]]]:
    """Seconds from each kill to the first new output, by SDK and victim."""
    found = defaultdict[str, list[float]](list)
    yield found
    for victim, seconds in found.items():
        sys.stdout.write(f"\n{victim}: new output after {median(seconds):.1f} s, at most {max(seconds):.1f} s")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("served") / "server")
    yield served
    served.end()


@pytest.mark.contract("API-05", "API-08", "STORE-04")
@pytest.mark.parametrize("point", SDK_POINTS)
@pytest.mark.parametrize("victim", SDK_VICTIMS)
@pytest.mark.parametrize("sdk", ["Go", "Python"])
def test_outputs_are_exact_after_kill(
    programs: Programs,
    served: Served,
    pauses: dict[str, list[float]],
    sdk: str,
    victim: str,
    point: str,
    tmp_path: Path,
) -> None:
    pause = Trial(tmp_path, programs, served, sdk, victim, point).run()
    if pause is not None:
        pauses[f"{sdk}, {victim}"].append(pause)


@pytest.mark.contract("API-08", "BAT-06")
@pytest.mark.parametrize("victim", ["SDK worker", "worker"])
def test_attempt_that_spark_repeats_is_reported(programs: Programs, victim: str, tmp_path: Path) -> None:
    served = Served(tmp_path / "server", master="local[2,4]")
    (tmp_path / "trial").mkdir()
    try:
        trial = Trial(tmp_path / "trial", programs, served, "Go", victim, "in a bundle")
        trial.run()
        reported = trial.messages()
    finally:
        served.end()
    lost = "the SDK worker of the command" if victim == "SDK worker" else r"a Python worker died: signal 9 \(SIGKILL\)"
    attempt = rf"attempt 1 of task \d failed \(.*\); Spark ran it again: on host \S+: {lost}"
    assert len(re.findall(attempt, reported)) == 1, reported
    assert "try 1 of" not in reported


@pytest.mark.contract("API-06")
@pytest.mark.parametrize(("sdk", "step"), [("Go", "Refuse/main.refuseFn"), ("Python", "Refuse")])
def test_user_exception_is_named_and_not_retried(
    programs: Programs, served: Served, sdk: str, step: str, tmp_path: Path
) -> None:
    name = f"refusing-{sdk.lower()}"
    served.begin(tmp_path)
    submitter = served.start(programs.submission(sdk, "refusing", tmp_path, served.endpoint, name), tmp_path / "log")
    served.until(lambda: served.state(name) == "FAILED", "the failure")
    assert submitter.wait(LEFT_SECONDS)
    # Two tasks of the micro-batch may fail, each of them once.
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == len(set(calls)) <= 2
    reported = served.messages(name)
    assert f"no {calls[0]}" in reported, reported
    assert f"'{step}'" in reported, reported
    assert "try 1 of" not in reported, reported
    served.until(lambda: not served.left(), "the end of its processes", LEFT_SECONDS)
