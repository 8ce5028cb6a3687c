"""What a micro-batch with almost no work costs: median and slowest, and where the time goes.

    python benchmarks/microbatchtime.py [--micro-batches 200] [--warm 50] [--master local[2,4]] [--shards 16] [--json]
                                        [--toggle KEY=A,B]

A source outputs three numbers in each micro-batch, which pass two exchanges to a DoFn with state. For the
micro-batches after the first `warm`, it prints seconds of wall clock per micro-batch (median, 99th percentile), and
means of the parts: building the data frame, Spark's job, what the tasks of each level take in Python, and the rest
(proposal, manifest, publishing). It also prints what driver and workers spend on status and metrics (see
`bench.telling`), as processor time. `cpu` is seconds of processor time per micro-batch of driver, JVM and workers: on a
machine with other load, compare those. With `--toggle`, ten micro-batches run with one value of one or more of the
session's settings, ten with the other, and so on; this compares best. A table compares the figures with their targets.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate
from apache_beam.utils.timestamp import Timestamp

from arcbeam import ArcbeamRunner
from arcbeam.harness.streaming.counters import Counters
from arcbeam.options import SHARDS_MIN
from arcbeam.spark.streaming import cluster, dataframes

sys.path.insert(0, str(Path(__file__).parent))
from bench.figures import Figure
from bench.processes import cpu_by_kind
from bench.report import as_text
from bench.telling import Spent, of_workers, watch_driver, watch_worker

_AT_ONCE = 3
_BLOCK = 10


class Whole(OffsetRestrictionTracker):
    """A restriction that is not split: only what is deferred is split off."""

    def try_split(self, fraction_of_remainder: float) -> Any:
        return super().try_split(fraction_of_remainder) if fraction_of_remainder == 0 else None


class _Watched:
    """User code that lets its worker record what it spends on status and metrics.

    Attributes:
        folder: the folder for the records; "": nothing is recorded.
    """

    folder = ""

    def setup(self) -> None:
        if self.folder:
            watch_worker(self.folder)


class EachMicroBatch(_Watched, beam.DoFn, beam.RestrictionProvider):
    """Yields some numbers, and defers the rest to the next micro-batch.

    Attributes:
        moves: its watermark moves in each micro-batch; else it stays at the beginning of time.
    """

    moves = False

    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, element)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return Whole(restriction)

    def restriction_size(self, element: int, restriction: OffsetRange) -> int:
        return int(restriction.size())

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[tuple[int, int]]:
        at = tracker.current_restriction().start
        if self.moves:
            watermark.set_watermark(Timestamp.of(time.time()))
        if tracker.try_claim(at):
            yield from ((n, at) for n in range(_AT_ONCE))
            tracker.defer_remainder(Timestamp.of(time.time() + 0.01))


class Seen(_Watched, beam.DoFn):
    """Counts a key's elements."""

    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def process(self, pair: tuple[int, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> None:
        seen.add(1)


class Times:
    """Times of events by micro-batch; `folder` is the one for what workers spend on status and metrics."""

    def __init__(self, folder: str) -> None:
        self.begun: list[float] = []
        self.built: list[float] = []
        self.ended: list[float] = []
        self.levels: list[dict[str, float]] = []
        self.cpu: list[dict[str, float]] = []
        # What was spent on status and metrics before the micro-batches that count, and with them.
        self.telling: list[float] = []
        self._folder, self._driver = folder, Spent()

    def tell(self) -> None:
        """Record what has been spent so far."""
        self.cpu.append(cpu_by_kind())
        self.telling.append(self._driver.seconds + of_workers(self._folder))

    def watch(self, warm: int, toggled: dict[str, tuple[str, str]]) -> None:
        """Observe the cluster."""
        frame, run, reported = dataframes.MicroBatchFrames.of, cluster.SparkCluster._run, Counters.ran

        def timed_frame(this: Any, *args: Any) -> Any:
            start = time.perf_counter()
            found = frame(this, *args)
            self.built.append(time.perf_counter() - start)
            return found

        def timed_run(this: Any, *args: Any) -> None:
            if toggled and len(self.begun) % _BLOCK == 0:
                for key, values in toggled.items():
                    this._spark.conf.set(key, values[len(self.begun) // _BLOCK % 2])
            self.begun.append(time.perf_counter())
            if len(self.begun) % _BLOCK == 1 if toggled else len(self.begun) == warm:
                self.tell()
            run(this, *args)
            self.ended.append(time.perf_counter())

        def noted(this: Any, micro_batch: int, reports: Sequence[Any]) -> None:
            seconds: dict[str, float] = {}
            for report in reports:
                seconds[report.stage] = max(seconds.get(report.stage, 0.0), report.seconds)
            self.levels.append(seconds)
            reported(this, micro_batch, reports)

        dataframes.MicroBatchFrames.of = timed_frame  # type: ignore[method-assign]
        cluster.SparkCluster._run = timed_run  # type: ignore[method-assign]
        Counters.ran = noted  # type: ignore[method-assign]
        self._driver = watch_driver()


def figures(times: Times, warm: int) -> dict[str, Any]:
    """Return the results, without the first micro-batches."""
    begun, built, ended = times.begun[warm:], times.built[warm:], times.ended[warm:]
    whole = sorted(after - before for before, after in itertools.pairwise(begun))
    jobs = [end - start - build for start, end, build in zip(begun, ended, built, strict=False)]
    between = [after - end for end, after in zip(ended, begun[1:], strict=False)]
    stages = {name: statistics.mean(level.get(name, 0.0) for level in times.levels[warm:]) for name in times.levels[-2]}
    spent = {kind: seconds - times.cpu[0].get(kind, 0.0) for kind, seconds in times.cpu[-1].items()}
    return {
        "micro_batches": len(whole),
        "median": statistics.median(whole),
        "p99": whole[int(len(whole) * 0.99)],
        "build": statistics.mean(built),
        "job": statistics.mean(jobs),
        "between": statistics.mean(between),
        "telling": (times.telling[-1] - times.telling[0]) / len(begun),
        "stages": stages,
        "cpu": {kind: seconds / len(begun) for kind, seconds in spent.items()},
    }


def judged(found: dict[str, Any], warm: int) -> list[Figure]:
    """Compare a micro-batch's figures with their targets."""
    what = f"a micro-batch with little data, two exchanges, after {warm}"
    telling = 100 * found["telling"] / sum(found["cpu"].values())
    return [
        Figure(f"{what}: median of {found['micro_batches']}", found["median"], "s", 0.3),
        Figure("… the 99th of 100", found["p99"], "s", 1.0),
        Figure("… status and metrics, of its processor time", telling, "%", 2),
    ]


def compared(times: Times, warm: int) -> str:
    """Compare the figures of both settings, without the first micro-batches."""
    lines = []
    for which in range(2):
        blocks = [n for n in range(warm // _BLOCK, len(times.cpu) - 2) if n % 2 == which]
        whole = [
            times.begun[i + 1] - times.begun[i] for n in blocks for i in range(n * _BLOCK + 1, n * _BLOCK + _BLOCK - 1)
        ]
        cpu = {
            kind: statistics.median(times.cpu[n + 1][kind] - times.cpu[n][kind] for n in blocks) / _BLOCK
            for kind in times.cpu[0]
        }
        text = ", ".join(f"{kind} {seconds:.3f}" for kind, seconds in cpu.items())
        lines.append(f"{'AB'[which]}: median {statistics.median(whole):.3f} s; cpu per micro-batch: {text}\n")
    return "".join(lines)


def main() -> None:
    """Run the micro-batches, and print their times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--micro-batches", type=int, default=200)
    parser.add_argument("--warm", type=int, default=50)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--shards", type=int, default=SHARDS_MIN)
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("--moves", action="store_true", help="the source's watermark moves in each micro-batch")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--toggle", action="append", default=[], metavar="KEY=A,B")
    options = parser.parse_args()
    if options.micro_batches <= options.warm + 2:
        parser.error(f"--micro-batches counts all of them: it must be more than the {options.warm} of --warm, plus two")
    toggled = {key: tuple(values.split(",")) for key, _, values in (each.partition("=") for each in options.toggle)}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as spent:
        times = Times(spent)
        times.watch(options.warm, toggled)
        flags = [
            "--streaming",
            f"--spark_master={options.master}",
            f"--shards={options.shards}",
            f"--checkpoint_dir={folder}/state",
        ]
        flags += [f"--spark_conf={conf}" for conf in options.conf]
        p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(flags))
        each, seen = EachMicroBatch(), Seen()
        each.folder = seen.folder = spent
        each.moves = options.moves
        _ = p | beam.Create([options.micro_batches]) | beam.ParDo(each) | beam.ParDo(seen)
        result = p.run()
        result.wait_until_finish()
        times.tell()
    if toggled:
        sys.stdout.write(compared(times, options.warm))
        os._exit(0)
    found = figures(times, options.warm)
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    sys.stdout.write(
        f"{found['micro_batches']} micro-batches: median {found['median']:.3f} s, p99 {found['p99']:.3f} s\n"
    )
    sys.stdout.write(f"  build {found['build']:.3f}, job {found['job']:.3f}, between {found['between']:.3f}\n")
    sys.stdout.write(f"  status and metrics, processor time of driver and workers: {found['telling']:.4f}\n")
    for name, seconds in found["stages"].items():
        sys.stdout.write(f"  tasks of '{name}': {seconds:.3f}\n")
    cpu = ", ".join(f"{kind} {seconds:.3f}" for kind, seconds in found["cpu"].items())
    sys.stdout.write(f"  cpu per micro-batch: {cpu}\n")
    table = [["what", "measured", "should be", ""], *(figure.cells() for figure in judged(found, options.warm))]
    sys.stdout.write(f"{as_text(table)}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
