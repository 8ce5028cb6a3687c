"""Simulated pipelines on Spark: their output is what the simulator's judges require.

    python -m tests.spark.streaming.test_replay A..B|N,M,… [--spark_remote=local[2]] [other options of pipelines]

replays more seeds than a test run does, and names those that fail. The exit code is 1 if any fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from arcbeam.spark.session.java import require_java
from simulator.__main__ import seeds_of
from simulator.scenario.kinds import TRIGGERS
from tests.spark.streaming.replay.choosing import AMONG, FEW, THERE_IS, best_seeds, has, seeds
from tests.spark.streaming.replay.running import chosen, replay, replay_suspended
from tests.spark.streaming.replay.windows import SDKS_TRIGGERS

_ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.usefixtures("spark")
@pytest.mark.contract("ENG-01", "ENG-02", "ENG-03", "ENG-05", "ENG-06", "ENG-08", "ENG-11", "ENG-12", "ENG-13")
@pytest.mark.contract("SDF-02", "SDF-04", "SDF-10", "SDF-11", "STORE-01", "STORE-05")
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.long] if n >= FEW else []) for n, seed in enumerate(seeds())]
)
def test_output_on_spark_satisfies_the_simulator(seed: int, tmp_path: Path) -> None:
    replay(seed, tmp_path)


@pytest.mark.usefixtures("spark")
@pytest.mark.contract("END-03", "STORE-04")
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.long] if n > 1 else []) for n, seed in enumerate(seeds())]
)
def test_resumed_job_has_output_of_undisturbed_job(seed: int, tmp_path: Path) -> None:
    replay_suspended(seed, tmp_path)


@pytest.mark.usefixtures("spark")
@pytest.mark.contract("STORE-12")
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.long] if n > 0 else []) for n, seed in enumerate(seeds())]
)
def test_rescaled_job_has_output_of_undisturbed_job(seed: int, tmp_path: Path) -> None:
    replay_suspended(seed, tmp_path, shards=(2, 5, 128, 3))


@pytest.mark.long
@pytest.mark.contract("API-01")
def test_output_on_spark_connect_satisfies_the_simulator() -> None:
    require_java()
    what = ",".join(map(str, seeds()))
    command = [sys.executable, "-m", "tests.spark.streaming.test_replay", what, "--spark_remote=local[2]"]
    run = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-5_000:]
    assert f"{len(seeds())} replayed" in run.stdout


def test_best_seeds_are_replayed() -> None:
    assert seeds() == best_seeds()


def test_expressible_pipelines_are_replayed() -> None:
    there = {what for seed in seeds()[:FEW] for what in has(seed)}
    assert [what for what in THERE_IS if what not in there] == []


def test_few_properties_are_left_out() -> None:
    """What the SDK cannot express: a property of one stage in six."""
    left_out = sum((chosen(seed).left_out for seed in AMONG), Counter())
    stages = sum(len(chosen(seed).pipeline.stages) for seed in AMONG)
    assert set(left_out) == {
        "a buffer until the job prepares to shut down",
        "empty panes both on time and at the close of a window",
    }
    assert left_out.total() < stages / 5


def test_each_trigger_exists_in_the_sdk() -> None:
    assert set(SDKS_TRIGGERS) == set(TRIGGERS)


def main(arguments: Sequence[str]) -> int:
    """Replay the given seeds."""
    what, *options = arguments
    requested = [int(each) for each in what.split(",")] if "." not in what else seeds_of(what)
    # As in `conftest`: workers import these tests.
    paths = [str(_ROOT / "src"), str(_ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    failed, left_out, counts = [], Counter[str](), Counter[str]()
    for seed in requested:
        with tempfile.TemporaryDirectory(prefix="replay-") as folder:
            try:
                found = replay(seed, Path(folder), options or ["--spark_master=local[2,4]"])
            except Exception:
                failed.append(seed)
                _say(f"seed {seed} FAILS\n{traceback.format_exc()}")
                continue
        left_out += found.expressed.left_out
        counts += Counter(stages=len(found.expressed.pipeline.stages), out=len(found.outs), dropped=len(found.drops))
        counts += Counter({"jobs resumed": found.cancelled > 0, "workers dead": found.died})
        _say(f"seed {seed}: {len(found.outs)} came out, {len(found.drops)} too late; nothing is wrong")
    _say(f"{len(requested)} replayed; {dict(counts)}; left out: {dict(left_out)}")
    _say(f"failed: {', '.join(map(str, failed)) or 'none'}")
    return 1 if failed else 0


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command speaks


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
