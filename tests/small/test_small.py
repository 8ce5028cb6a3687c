"""Suites pass with all caches and thresholds small.

Each test runs a suite in a separate process, because a process reads the switch (`arcbeam.sizes`) once. `apart.txt`
names the tests that need the normal sizes. `python -m tests.small.test_small PATH …` runs other suites.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from arcbeam.sizes.declaring import KINDS, SWITCH
from arcbeam.spark.session.java import require_java
from tests.spark.streaming.replay.choosing import seeds

_ROOT = Path(__file__).resolve().parents[2]
_APART = Path(__file__).with_name("apart.txt")
_SECONDS = 3000

SAMPLES = {
    # With small sizes, a random job takes a second.
    "engine": [
        "tests/engine/task",
        "--ignore=tests/engine/task/test_scripted_job.py",
        "--deselect=tests/engine/task/test_shard.py::test_job_outputs_everything_once",
        "--deselect=tests/engine/task/test_shard.py::test_driver_dying_anywhere_loses_and_repeats_nothing",
    ],
    "harness": [
        "tests/harness/streaming/test_stateful.py",
        "tests/harness/streaming/test_groupings.py",
        "tests/harness/bundle/test_windows.py",
        "tests/harness/transforms/test_aliasing.py",
        "tests/harness/transforms/test_groupby.py",
    ],
    "store": ["tests/store/shards", "tests/store/jobtemp/test_sidefiles.py"],
}
WHOLE = [
    "tests/engine",
    "tests/streaming",
    "tests/store/blobs",
    "tests/store/jobtemp",
    "tests/store/log",
    "tests/store/manifest",
    "tests/store/shards",
    "tests/harness/state",
    "tests/harness/stateful",
    "tests/harness/streaming",
    "tests/fnapi/stage/test_random_stateful.py",
]


def apart() -> list[str]:
    lines = _APART.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def run_small(arguments: Sequence[str]) -> None:
    """Run a Python module with the switch on, and fail if it fails."""
    paths = [str(_ROOT / "src"), str(_ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {SWITCH: ",".join(KINDS), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    run = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-10_000:] + run.stderr[-2_000:]


def run_suite(paths: Sequence[str], chosen: str = "not spark and not long") -> None:
    left_out = [f"--deselect={node}" for node in apart()]
    run_small(["pytest", "-q", "-p", "no:cacheprovider", "-m", chosen, *left_out, *paths])


@pytest.mark.parametrize("suite", SAMPLES)
def test_sample_passes_with_small_sizes(suite: str) -> None:
    run_suite(SAMPLES[suite])


def test_simulations_pass_with_small_sizes() -> None:
    run_small(["simulator", "--seeds", "0..24"])


@pytest.mark.long
@pytest.mark.parametrize("path", WHOLE)
def test_suite_passes_with_small_sizes(path: str) -> None:
    run_suite([path])


@pytest.mark.long
def test_more_simulations_pass_with_small_sizes() -> None:
    run_small(["simulator", "--seeds", "25..299"])


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds()[:6])
def test_replay_on_spark_passes_with_small_sizes(seed: int) -> None:
    require_java()
    run_small(["tests.spark.streaming.test_replay", str(seed)])


def test_deselected_tests_exist() -> None:
    for node in apart():
        path, _, name = node.partition("::")
        text = (_ROOT / path).read_text(encoding="utf-8")
        assert f"def {name.rpartition('::')[2]}(" in text or not name, node


if __name__ == "__main__":
    run_suite(sys.argv[1:])
