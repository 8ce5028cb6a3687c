"""Pipelines that fail or are cancelled, one after the other, beside another job in the same Spark session.

    python benchmarks/cancellations.py [--count 45] [--seed 1] [--interrupt]

Counts how often Spark restarted its Python daemon, which ends every Python worker of the session; how many times the
other job's only task ran; and how long the next pipeline took. With --interrupt, cancelled tasks are interrupted, as is
Spark's default.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam.spark.session import sessions

_DAEMON = "arcbeam.spark.daemon"
_INTERRUPT = "spark.sql.execution.interruptOnCancel"


def hold(folder: str) -> Iterator[int]:
    """The other job's work: records its worker, and lasts until it is released."""
    Path(folder, f"{os.getpid()}-{time.time_ns()}").touch()
    while not Path(folder, "released").exists():
        time.sleep(0.05)
    yield os.getpid()


def fail(x: int) -> int:
    """Fail for one element; take long for the others."""
    if x == 3:
        raise ValueError("on purpose")
    time.sleep(0.2)
    return x


def last(x: int) -> int:
    """Take longer than any caller waits."""
    time.sleep(0.5)
    return x


def daemons() -> set[int]:
    """Return the Python daemons of this process's Spark: children of its Java."""
    return {
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if _DAEMON in _read(folder / "cmdline") and _parent(_parent(folder.name)) == str(os.getpid())
    }


def _parent(pid: str) -> str:
    return (_read(Path("/proc", pid, "stat")).rpartition(")")[2].split() or ["", "", ""])[1]


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""


def submitted(options: PipelineOptions, work: Any, elements: list[Any]) -> Any:
    """Return a pipeline that runs."""
    pipeline = beam.Pipeline(options=options)
    _ = pipeline | beam.Create(elements) | beam.Reshuffle() | beam.FlatMap(work)
    return pipeline.run()


def measured(count: int, seed: int) -> dict[str, Any]:
    """Run everything, and return the results."""
    options = PipelineOptions(
        ["--runner=arcbeam.ArcbeamRunner", "--spark_master=local[3,4]", f"--spark_conf={sessions.FAIR}"]
    )
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        submitted(options, lambda x: [x], [0]).wait_until_finish()
        neighbour = submitted(options, hold, [folder])
        while not os.listdir(folder):
            time.sleep(0.05)
        seen = daemons()
        restarts, waited = 0, []
        for number in range(count):
            if number % 3 == 0:
                result = submitted(options, lambda x: [fail(x)], list(range(8)))
                with suppress(Exception):
                    result.wait_until_finish()
            else:
                result = submitted(options, lambda x: [last(x)], list(range(40)))
                threading.Event().wait(chance.uniform(0.05, 1.5))
                result.cancel()
            began = time.monotonic()
            submitted(options, lambda x: [x], [1, 2, 3]).wait_until_finish()
            waited.append(time.monotonic() - began)
            now = daemons()
            restarts += len(now - seen)
            seen = seen | now
        runs = len(os.listdir(folder))
        Path(folder, "released").touch()
        with suppress(Exception):
            neighbour.wait_until_finish()
        state = neighbour.state
    return {
        "pipelines": count,
        "restarts": restarts,
        "neighbour": state,
        "neighbour_runs": runs,
        "next_median": round(statistics.median(waited), 2),
        "next_most": round(max(waited), 2),
    }


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=45)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--interrupt", action="store_true")
    given = parser.parse_args()
    if given.interrupt:
        sessions._JOB_SETTINGS[_INTERRUPT] = "true"
    print(json.dumps(measured(given.count, given.seed)))


if __name__ == "__main__":
    main()
