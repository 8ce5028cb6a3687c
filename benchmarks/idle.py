"""What a job in steps costs while nothing comes: a source that is polled every ten seconds, and has nothing to say.

    python benchmarks/idle.py [--seconds 300] [--poll 10] [--warm 200] [--master local[2,4]]

It prints steps, and seconds of processor time a second of driver, JVM and workers: a hundredth is one per cent of a
core. The first polls come at once, so that Java has compiled what a step needs; in a job that is idle from its start
that takes an hour, in which a step costs two to three times as much.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.timestamp import Timestamp

from arcbeam import ArcbeamRunner
from arcbeam.spark.steps.tally import Tally

sys.path.insert(0, str(Path(__file__).parent))
from bench.processes import cpu_by_kind
from steptime import EachStep, Seen


class Polled(EachStep):
    """Looks now and then, and finds nothing."""

    def __init__(self, seconds: float, warm: int) -> None:
        self._seconds, self._warm = seconds, warm

    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam()) -> Iterator[tuple[int, int]]:
        at = tracker.current_restriction().start
        if tracker.try_claim(at):
            yield from ()
            tracker.defer_remainder(Timestamp.of(time.time() + (self._seconds if at >= self._warm else 0.0)))


def main() -> None:
    """Runs it for a while."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--poll", type=float, default=10.0)
    parser.add_argument("--warm", type=int, default=200)
    parser.add_argument("--master", default="local[2,4]")
    options = parser.parse_args()
    steps: list[float] = []
    note = Tally.ran

    def noted(this: Any, step: int, reports: Sequence[Any]) -> None:
        steps.append(time.monotonic())
        note(this, step, reports)

    Tally.ran = noted  # type: ignore[method-assign]
    flags = ["--streaming", f"--spark_master={options.master}", "--shards=2"]
    p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(flags))
    _ = p | beam.Create([1 << 30]) | beam.ParDo(Polled(options.poll, options.warm)) | beam.ParDo(Seen())
    p.run()
    while len(steps) <= options.warm:
        time.sleep(0.1)
    time.sleep(options.poll)
    before, begun, count = cpu_by_kind(), time.monotonic(), len(steps)
    threading.Event().wait(options.seconds)
    after, took = cpu_by_kind(), time.monotonic() - begun
    spent = {kind: (seconds - before.get(kind, 0.0)) / took for kind, seconds in after.items()}
    told = ", ".join(f"{kind} {share:.4f}" for kind, share in spent.items())
    sys.stdout.write(f"{len(steps) - count} steps in {took:.0f} s, a poll each {options.poll:g} s\n")
    sys.stdout.write(f"processor time a second: {told}; in all {sum(spent.values()):.4f}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
