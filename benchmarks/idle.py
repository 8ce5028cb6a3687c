"""What an idle streaming job costs: its source is polled every ten seconds and has nothing.

    python benchmarks/idle.py [--seconds 300] [--poll 10] [--warm 200] [--master local[2,4]]

Prints micro-batches, and seconds of processor time per second of driver, JVM and workers: a hundredth is one per cent
of a core. The first polls follow each other immediately, so that Java has compiled what a micro-batch needs. In a job
that is idle from its start that takes an hour, in which a micro-batch costs two to three times as much. A table
compares the figures with their targets.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.timestamp import Timestamp

from arcbeam import ArcbeamRunner
from arcbeam.harness.streaming.counters import Counters
from arcbeam.options import SHARDS_MIN

sys.path.insert(0, str(Path(__file__).parent))
from bench.figures import Figure
from bench.processes import cpu_by_kind
from bench.report import as_text
from microbatchtime import EachMicroBatch, Seen


class Polled(EachMicroBatch):
    """Polls and finds nothing; writes a byte to a file for each poll."""

    def __init__(self, seconds: float, warm: int, polls: str) -> None:
        self._seconds, self._warm, self._polls = seconds, warm, polls

    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam()) -> Iterator[tuple[int, int]]:
        at = tracker.current_restriction().start
        if tracker.try_claim(at):
            with open(self._polls, "ab") as polls:
                polls.write(b".")
            yield from ()
            tracker.defer_remainder(Timestamp.of(time.time() + (self._seconds if at >= self._warm else 0.0)))


def main() -> None:
    """Run the job for a while."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--poll", type=float, default=10.0)
    parser.add_argument("--warm", type=int, default=200)
    parser.add_argument("--master", default="local[2,4]")
    options = parser.parse_args()
    micro_batches: list[float] = []
    note = Counters.ran

    def noted(this: Any, micro_batch: int, reports: Sequence[Any]) -> None:
        micro_batches.append(time.monotonic())
        note(this, micro_batch, reports)

    Counters.ran = noted  # type: ignore[method-assign]
    flags = ["--streaming", f"--spark_master={options.master}", f"--shards={SHARDS_MIN}"]
    p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(flags))
    polls = Path(tempfile.mkdtemp(), "polls")
    _ = p | beam.Create([1 << 30]) | beam.ParDo(Polled(options.poll, options.warm, str(polls))) | beam.ParDo(Seen())
    p.run()
    while len(micro_batches) <= options.warm:
        time.sleep(0.1)
    time.sleep(options.poll)
    before, begun = cpu_by_kind(), time.monotonic()
    polled, count = polls.stat().st_size, len(micro_batches)
    threading.Event().wait(options.seconds)
    after, took = cpu_by_kind(), time.monotonic() - begun
    # A poll is recorded before its micro-batch.
    count = len(micro_batches) - count
    polled = polls.stat().st_size - polled
    spent = {kind: (seconds - before.get(kind, 0.0)) / took for kind, seconds in after.items()}
    text = ", ".join(f"{kind} {share:.4f}" for kind, share in spent.items())
    sys.stdout.write(f"{count} micro-batches and {polled} polls in {took:.0f} s, one poll every {options.poll:g} s\n")
    sys.stdout.write(f"processor time per second: {text}; in total {sum(spent.values()):.4f}\n")
    figures = [
        Figure(
            f"idle: micro-batches per poll, after {options.warm} micro-batches",
            count / max(polled, 1),
            "micro-batches",
            1,
        ),
        Figure("… of a core, driver, JVM and workers", 100 * sum(spent.values()), "%", 2),
    ]
    table = [["what", "measured", "should be", ""], *(figure.cells() for figure in figures)]
    sys.stdout.write(f"{as_text(table)}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
