"""Processes of jobs with SDK workers are killed at each point: outputs are exact, and no process is left.

Each cell is a job. Jobs share a server until it is killed; then the next one has the job. Here is a sample with each
point, each victim and each SDK. The table of all:

    python -m tests.sdks.test_kills [SDK [VICTIM [POINT]]]

"-" stands for any.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.chaos.points import SDK_POINTS, SDK_VICTIMS
from tests.sdks.goprograms import GO_BOOT, PYTHON_BOOT, built, programs_in
from tests.sdks.trials import LEFT_SECONDS, Programs, Served, Trial

pytestmark = pytest.mark.long

SDKS = ("Go", "Python")


def cells() -> Iterator[tuple[str, str, str]]:
    """Yield all cells."""
    for sdk in SDKS:
        for victim in SDK_VICTIMS:
            for point in SDK_POINTS:
                yield sdk, victim, point


def sample() -> Iterator[tuple[str, str, str]]:
    """Yield a cell for each point; each victim is among them with each SDK."""
    for n, point in enumerate(SDK_POINTS):
        yield SDKS[n // len(SDK_VICTIMS) % 2], SDK_VICTIMS[n % len(SDK_VICTIMS)], point


@contextlib.contextmanager
def built_in(folder: Path) -> Iterator[Programs]:
    """Build the programs."""
    with programs_in(folder) as go:
        yield Programs(go, built(GO_BOOT, folder), built(PYTHON_BOOT, folder))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with built_in(tmp_path_factory.mktemp("programs")) as found:
        yield found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("served") / "server")
    yield served
    served.end()


@pytest.mark.contract("API-05", "API-08", "STORE-04")
@pytest.mark.parametrize(("sdk", "victim", "point"), list(sample()))
def test_outputs_are_exact_after_kill(
    programs: Programs, served: Served, sdk: str, victim: str, point: str, tmp_path: Path
) -> None:
    assert Trial(tmp_path, programs, served, sdk, victim, point).run().hit


@pytest.mark.contract("API-08", "BAT-06")
@pytest.mark.parametrize("victim", ["SDK worker", "worker"])
def test_attempt_that_spark_repeats_is_reported(programs: Programs, victim: str, tmp_path: Path) -> None:
    served = Served(tmp_path / "server", master="local[2,4]")
    (tmp_path / "trial").mkdir()
    try:
        trial = Trial(tmp_path / "trial", programs, served, "Go", victim, "in a bundle")
        assert trial.run().hit
        said = trial.messages()
    finally:
        served.end()
    lost = "the SDK worker of the command" if victim == "SDK worker" else r"a Python worker died: signal 9 \(SIGKILL\)"
    assert len(re.findall(rf"attempt 1 of task \d failed \(.*\); Spark ran it again: {lost}", said)) == 1, said
    assert "try 1 of" not in said


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
    said = served.messages(name)
    assert f"no {calls[0]}" in said, said
    assert f"'{step}'" in said, said
    assert "try 1 of" not in said, said
    served.until(lambda: not served.left(), "the end of its processes", LEFT_SECONDS)


def main(*which: str) -> int:
    """Try cells, and print the result of each, and how long outputs have paused; return how many went wrong."""
    wrong, pauses = 0, defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory() as building, contextlib.ExitStack() as stack:
        programs = stack.enter_context(built_in(Path(building)))
        served = Served(Path(building) / "server")
        stack.callback(served.end)
        for n, cell in enumerate(cells()):
            if any(wanted not in ("-", had) for wanted, had in zip(which, cell, strict=False)):
                continue
            began = time.monotonic()
            folder = Path(building, f"trial-{n}")
            folder.mkdir()
            try:
                result = Trial(folder, programs, served, *cell).run()
                said = "well" if result.hit else "NOT REACHED"
                pause = "-" if result.seconds is None else f"{result.seconds:.1f}"
                said += f" | {'yes' if result.retried else 'no'} | {pause} | {result.left_seconds:.1f}"
                pauses[f"{cell[0]}, {cell[1]}"] += [] if result.seconds is None else [result.seconds]
                wrong += not result.hit
            except AssertionError as e:
                first, _, rest = str(e).partition("\n")
                said, wrong = f"WRONG: {first}", wrong + 1
                sys.stderr.write(f"{', '.join(cell)}: {first}\n{rest}\n")
            sys.stdout.write(f"| {' | '.join(cell)} | {said} | {time.monotonic() - began:.0f} |\n")
            sys.stdout.flush()
    for victim, seconds in pauses.items():
        if seconds:
            sys.stdout.write(f"{victim}: new output after {median(seconds):.1f} s, at most {max(seconds):.1f} s\n")
    return wrong


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
