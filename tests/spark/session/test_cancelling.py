"""Jobs that share a session keep their Python workers when another one is cancelled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arcbeam.spark.session.sessions import interrupt, prepared, tagged
from tests.waiting import until


@pytest.fixture
def alone(spark: Any) -> Iterator[Any]:
    """Return the session, with a Python daemon that has no idle worker yet."""
    environment = spark.sparkContext.environment
    environment["ARCBEAM_TEST_DAEMON"] = os.urandom(8).hex()
    yield spark
    del environment["ARCBEAM_TEST_DAEMON"]


def holding(folder: str) -> Any:
    """Return a task that writes its name and ends when it is released."""

    def hold(batches: Any) -> Any:
        Path(folder, f"{os.getpid()}-{os.getppid()}").touch()
        until(Path(folder, "released").exists)
        yield from batches

    return hold


def run(spark: Any, job: str, task: Any) -> tuple[threading.Thread, list[Any]]:
    """Run one task of a job on its own thread; return the thread, and a list for its rows or its error."""
    found: list[Any] = []

    def collect() -> None:
        try:
            with tagged(spark, job):
                found.append(spark.range(1, numPartitions=1).mapInArrow(task, "id long").collect())
        except Exception as e:
            found.append(e)

    thread = threading.Thread(target=collect)
    thread.start()
    return thread, found


def workers(folder: Path) -> list[tuple[int, int]]:
    """Return the workers that run or have run such a task, and their daemons."""
    found = [file.name.split("-") for file in folder.iterdir() if "-" in file.name]
    return [(int(pid), int(daemon)) for pid, daemon in found]


@pytest.mark.contract("BAT-05")
def test_cancelled_start_does_not_end_neighbours_worker(alone: Any, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    tracker = alone.sparkContext.statusTracker()

    def runs(stages: int) -> bool:
        infos = [tracker.getStageInfo(id) for id in tracker.getActiveStageIds()]
        return sum(info.numActiveTasks for info in infos if info) == stages

    with prepared(alone):
        neighbour, kept = run(alone, "neighbour", holding(str(ours)))
        until(lambda: workers(ours))
        ((_, daemon),) = workers(ours)
        # From this point no worker starts.
        os.kill(daemon, signal.SIGSTOP)
        try:
            cancelled, failed = run(alone, "cancelled", holding(str(theirs)))
            until(lambda: runs(2))
            interrupt(alone, "cancelled")
            cancelled.join()
        finally:
            os.kill(daemon, signal.SIGCONT)
        (theirs / "released").touch()
        # Spark has released the cancelled task when another one runs in its place.
        after, rows = run(alone, "after", holding(str(theirs)))
        after.join()
        (ours / "released").touch()
        neighbour.join()
    assert isinstance(failed[0], Exception)
    assert [len(each) for each in (kept[0], rows[0])] == [1, 1]
    assert len(workers(ours)) == 1, "the neighbour's task ran once"
    assert {parent for _, parent in workers(ours) + workers(theirs)} == {daemon}


MEASURES = Path(__file__).parents[3] / "benchmarks" / "cancellations.py"


@pytest.mark.long
@pytest.mark.contract("BAT-05")
def test_failed_and_cancelled_jobs_keep_neighbours_worker() -> None:
    command = [sys.executable, str(MEASURES), "--count=45"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert (found["restarts"], found["neighbour"], found["neighbour_runs"]) == (0, "DONE", 1)
    noise = [line for line in done.stderr.splitlines() if " WARN " in line or " ERROR " in line]
    assert noise == [], "Spark must log nothing about a task that was cancelled on purpose"
