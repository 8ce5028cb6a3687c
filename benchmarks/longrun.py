"""Whether a streaming job stays stable over thousands of small micro-batches, by its use of processes and folders.

    nice python benchmarks/longrun.py [--micro-batches 5000] [--every 500] [--master local[2,4]]

A source outputs three numbers per micro-batch, which pass two exchanges to a DoFn with state, timers and a side input.
The side input changes with every micro-batch, in a window without an end. Prints a table as in benchmarks/records.md:
seconds per micro-batch (median of the last ones), processor time of all processes per micro-batch, memory (driver, JVM,
all workers), threads and open files, files and bytes in Spark's folder, the job's folder and this host's copies, and
the size of the manifest.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import trigger, userstate, window

from arcbeam import ArcbeamRunner
from arcbeam.harness.streaming.counters import Counters
from arcbeam.store.blobs.backends import open_blobs
from arcbeam.store.log.chain import read_newest
from arcbeam.streaming.task.finalizing import copies_folder

sys.path.insert(0, str(Path(__file__).parent))
from bench.processes import processes
from microbatchtime import EachMicroBatch

_HEAD = (
    "micro-batches", "s/micro-batch", "cpu/micro-batch", "driver MB", "JVM MB", "workers MB (n)", "threads d/j",
    "files d/j", "Spark files (MB)", "job files (MB)", "copies (MB)", "side files", "manifest B",
)  # fmt: skip


class Ticking(beam.DoFn):
    """Counts a key's elements, and sets a timer for the count."""

    SEEN = userstate.CombiningValueStateSpec("seen", sum)
    REPORT = userstate.TimerSpec("report", userstate.TimeDomain.REAL_TIME)

    def process(
        self,
        pair: tuple[int, int],
        newest: int,
        seen: Any = beam.DoFn.StateParam(SEEN),
        report: Any = beam.DoFn.TimerParam(REPORT),
    ) -> None:
        seen.add(1)
        report.set(time.time())

    @userstate.on_timer(REPORT)
    def tell(self) -> None:
        """Do nothing."""


def folder(path: Path) -> str:
    """Return how many files are below a folder, and their megabytes."""
    count = size = 0
    for at, _, names in os.walk(path):
        for name in names:
            try:
                size += os.stat(os.path.join(at, name)).st_size
                count += 1
            except OSError:
                continue
    return f"{count} ({size / 1e6:.1f})"


class Table:
    """A table with a row at a fixed interval of micro-batches."""

    def __init__(self, every: int, spark: Path, state: Path) -> None:
        self._every, self._spark, self._state = every, spark, state
        self._times = [time.perf_counter()]
        self._cpu = 0.0

    def watch(self) -> None:
        """Observe the job."""
        note = Counters.ran

        def noted(this: Any, micro_batch: int, reports: Sequence[Any]) -> None:
            note(this, micro_batch, reports)
            self._times.append(time.perf_counter())
            if micro_batch % self._every == 0:
                self._row(micro_batch)
                self._times = [time.perf_counter()]

        Counters.ran = noted  # type: ignore[method-assign]
        sys.stdout.write(f"| {' | '.join(_HEAD)} |\n|{'---|' * len(_HEAD)}\n")

    def _row(self, micro_batch: int) -> None:
        found = list(processes())
        cpu = sum(process.cpu for process in found)
        driver, jvm = (next(process for process in found if process.kind == kind) for kind in ("driver", "jvm"))
        workers = [process for process in found if process.kind == "worker"]
        took = [after - before for before, after in itertools.pairwise(self._times)]
        head: Any = read_newest(open_blobs(str(self._state)))
        size = (self._state / "manifests" / f"{head.micro_batch:012}").stat().st_size
        row = [
            micro_batch,
            f"{statistics.median(took):.2f}",
            f"{(cpu - self._cpu) / len(took):.2f}",
            driver.memory >> 20,
            jvm.memory >> 20,
            f"{sum(process.memory for process in workers) >> 20} ({len(workers)})",
            f"{driver.threads}/{jvm.threads}",
            f"{driver.files}/{jvm.files}",
            folder(self._spark),
            folder(self._state),
            folder(copies_folder()),
            len(head.side_files),
            size,
        ]
        self._cpu = cpu
        sys.stdout.write(f"| {' | '.join(map(str, row))} |\n")
        sys.stdout.flush()


def main() -> None:
    """Run the micro-batches."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--micro-batches", type=int, default=5000)
    parser.add_argument("--every", type=int, default=500)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--conf", action="append", default=[])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        spark, state = Path(where, "spark"), Path(where, "state")
        spark.mkdir()
        # Copies of other jobs do not count.
        os.environ["TMPDIR"] = tempfile.tempdir = where
        os.environ["SPARK_LOCAL_DIRS"] = str(spark)
        Table(options.every, spark, state).watch()
        flags = ["--streaming", f"--spark_master={options.master}", "--shards=2", f"--checkpoint_dir={state}"]
        flags += [f"--spark_conf={conf}" for conf in options.conf]
        p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(flags))
        numbers = p | beam.Create([options.micro_batches]) | beam.ParDo(EachMicroBatch())
        always = beam.WindowInto(
            window.GlobalWindows(),
            trigger=trigger.Repeatedly(trigger.AfterCount(1)),
            accumulation_mode=trigger.AccumulationMode.DISCARDING,
        )
        newest = numbers | beam.Values() | always | beam.CombineGlobally(max).without_defaults()
        _ = numbers | beam.ParDo(Ticking(), beam.pvalue.AsSingleton(newest))
        p.run().wait_until_finish()
    os._exit(0)


if __name__ == "__main__":
    main()
