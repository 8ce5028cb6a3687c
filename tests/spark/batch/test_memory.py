"""Data larger than memory: groups, hot keys, persisted data, side inputs. The small variants are in every run.

Each case runs in its own process, whose Spark has the smallest heap that Spark accepts, or a little more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from arcbeam.spark.session.java import require_java

_CHECK = Path(__file__).resolve().parents[3] / "benchmarks" / "memory_check.py"


def checked(*arguments: str) -> dict[str, dict[str, Any]]:
    """Run the check; return its figures by case."""
    require_java()
    done = subprocess.run([sys.executable, str(_CHECK), *arguments], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-4000:]
    found = {figures["what"]: figures for figures in map(json.loads, lines)}
    assert all(figures["ok"] for figures in found.values())
    return found


@pytest.mark.contract("BAT-01", "BAT-02")
@pytest.mark.parametrize("what", [("hot",), pytest.param(("twice", "iter", "multimap"), marks=pytest.mark.long)])
def test_data_beyond_memory(what: tuple[str, ...]) -> None:
    found = checked(*what, "--mb", "150", "--heap", "450m", "--group_memory_mb", "8", "--shards", "2")
    for figures in found.values():
        assert figures["worker_mb"] < 400


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.contract("BAT-01")
@pytest.mark.parametrize("what", ["group", "hot", "reshuffle"])
def test_3_gb_through_an_exchange(what: str) -> None:
    """Over four times the size of the executor's heap, with all of the hot key's data in one partition."""
    found = checked(what, "--mb", "3000", "--heap", "600m")
    assert found[what]["worker_mb"] < 600
    assert found[what]["jvm_mb"] < 1500


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.contract("BAT-01")
def test_partition_of_3_gb() -> None:
    found = checked("hot", "--mb", "3000", "--heap", "600m", "--shards", "1")
    assert found["hot"]["worker_mb"] < 600


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.contract("BAT-01")
def test_output_with_two_readers_is_on_disk() -> None:
    found = checked("twice", "--mb", "1500", "--heap", "500m")
    assert found["twice"]["worker_mb"] < 600


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.contract("BAT-02")
@pytest.mark.parametrize("what", ["iter", "multimap"])
def test_side_input_of_1_gb(what: str) -> None:
    """The driver's heap is smaller; the workers stream it."""
    found = checked(what, "--mb", "1100", "--heap", "600m")
    assert found[what]["worker_mb"] < 600
