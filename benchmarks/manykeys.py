"""Whether a step costs what it touches, however much state there is; and how soon a job has its state back.

    python benchmarks/manykeys.py [--keys 100000,10000000] [--touched 10000] [--steps 60] [--master local[2,4]]

For each number of keys: a job gives all of them state, as fast as it can, and then touches some in each step. It prints
keys a second, the median step, and the bytes of its state. Then the job is suspended and goes on, twice, in the same
session: with the copies of its state on this host, and without; what is told is its first step with them, so that
neither Spark's start nor Python's is in it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.timestamp import Timestamp

from arcbeam import ArcbeamRunner
from arcbeam.spark.steps import cluster
from arcbeam.spark.steps.finalizing import copies_folder

sys.path.insert(0, str(Path(__file__).parent))
from bench.peers import open_session
from steptime import EachStep, Seen, Whole

CLAIM = 50_000
_PRIME = 2_654_435_761


class Keys(EachStep):
    """All keys, some thousands a claim; then some of them in each step."""

    def __init__(self, keys: int, touched: int, full: Path) -> None:
        self._keys, self._touched, self._full = keys, touched, full
        self._fills = -(-keys // CLAIM)

    def create_tracker(self, restriction: OffsetRange) -> Whole:
        return Whole(restriction)

    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam()) -> Iterator[tuple[int, int]]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            if at < self._fills:
                yield from ((key, at) for key in range(at * CLAIM, min((at + 1) * CLAIM, self._keys)))
                at += 1
                continue
            # Says, on the one host that there is, that all keys have been put out.
            self._full.touch()
            first = at * self._touched
            yield from ((n * _PRIME % self._keys, at) for n in range(first, first + self._touched))
            tracker.defer_remainder(Timestamp.of(time.time() + 0.01))
            return


class Watched:
    """When each step began and ended."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.ended: list[float] = []
        run = cluster.SparkCluster._run

        def timed(this: Any, *args: Any) -> None:
            self.begun.append(time.perf_counter())
            run(this, *args)
            self.ended.append(time.perf_counter())

        cluster.SparkCluster._run = timed  # type: ignore[method-assign]

    def clear(self) -> None:
        self.begun, self.ended = [], []

    def median(self, steps: int) -> float:
        return statistics.median(after - before for before, after in itertools.pairwise(self.begun[-steps:]))


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def measured(keys: int, touched: int, steps: int, watched: Watched, folder: Path) -> dict[str, Any]:
    """A job with so many keys."""
    full = folder.parent / "full"

    def run(until: int) -> Any:
        watched.clear()
        flags = ["--streaming", "--shards=2", f"--checkpoint_dir={folder}"]
        p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(flags))
        _ = p | beam.Create([1 << 40]) | beam.ParDo(Keys(keys, touched, full)) | beam.ParDo(Seen())
        result = p.run()
        wait(result, until)
        return result

    def wait(result: Any, until: int) -> None:
        while len(watched.ended) < until:
            if result.state in ("FAILED", "DONE"):
                raise RuntimeError(f"the job has ended: {result.state}")
            time.sleep(0.05)

    began = time.perf_counter()
    result = run(1)
    while not full.exists():
        wait(result, len(watched.ended) + 1)
    found: dict[str, Any] = {"keys": keys, "M keys/s": keys / (time.perf_counter() - began) / 1e6}
    # The step that came to the end of the keys, and one more that has some of them to put away.
    wait(result, len(watched.ended) + 2 + steps)
    result.suspend()
    found["state MB"] = size_of(folder) / 1e6
    found["step"] = watched.median(steps)
    for name in ("with copies", "without copies"):
        if name == "without copies":
            shutil.rmtree(copies_folder(), ignore_errors=True)
        result = run(5)
        found[name] = watched.ended[0] - watched.begun[0]
        found[f"{name}, a later step"] = watched.ended[4] - watched.begun[4]
        result.suspend()
    return found


def main() -> None:
    """Measures each number of keys."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", default="100000,10000000")
    parser.add_argument("--touched", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    session = open_session()
    watched = Watched()
    try:
        for keys in map(int, options.keys.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                found = measured(keys, options.touched, options.steps, watched, Path(folder) / "state")
            told = ", ".join(f"{what} {value:,.3f}" if what != "keys" else "" for what, value in found.items())
            sys.stdout.write(f"{keys:,} keys: {told.strip(', ')}\n")
            sys.stdout.flush()
    finally:
        session.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
