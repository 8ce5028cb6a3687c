"""What tasks cost: micro-batches with almost no data and many tasks a level, and Spark jobs of the same shape alone.

    python benchmarks/bench/streaming/manytasks.py [--tasks 8,64,256] [--warm 2] [--micro-batches 4] [--master …]

The job has three levels and two exchanges (the pipeline of `microbatchtime.py`), and as many shards as tasks a level.
Beside it Spark runs the same data frames with a Python function that does nothing, but sends a row to each task of the
next level, as a task of arcbeam sends its watermark. Figures are processor time of driver, JVM and workers per
micro-batch, and per task: medians of the micro-batches after the first `--warm`. Cores are few, so the
wall clock is not that of a cluster.

With --record the table is written between its markers in benchmarks/records.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions
from pyspark import TaskContext
from pyspark.sql import DataFrame

from arcbeam import ArcbeamRunner
from arcbeam.spark.session.sessions import SessionOptions, open_session, prepared
from arcbeam.spark.streaming import cluster, streamingjob

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from microbatchtime import EachMicroBatch, Seen

from bench.processes import cpu_by_kind
from bench.report import as_markdown, as_text, replace_section

ROOT = Path(__file__).resolve().parents[3]
_LEVELS = 3
_KINDS = ("driver", "jvm", "worker")
_ROW = "task int, blob binary"
_MARKER = b"x" * 60


class Cost(NamedTuple):
    """Of a micro-batch: seconds of wall clock, and of processor time by kind of process."""

    wall: float
    cpu: dict[str, float]


class Costs:
    """What was measured; `of` measures one call."""

    def __init__(self) -> None:
        self.all: list[Cost] = []

    def of(self, call: Callable[[], object]) -> None:
        """Measure a micro-batch."""
        start, before = time.perf_counter(), cpu_by_kind()
        call()
        after = cpu_by_kind()
        spent = {kind: after.get(kind, 0.0) - before.get(kind, 0.0) for kind in _KINDS}
        self.all.append(Cost(time.perf_counter() - start, spent))


def of_arcbeam(tasks: int, micro_batches: int, master: str, costs: Costs) -> None:
    """Run a job; add what each of its micro-batches costs."""
    run = cluster.SparkCluster._run

    def measured(this: Any, *arguments: Any) -> None:
        costs.of(lambda: run(this, *arguments))

    with (
        tempfile.TemporaryDirectory() as folder,
        unittest.mock.patch.object(cluster.SparkCluster, "_run", measured),
        unittest.mock.patch.object(streamingjob, "default_parallelism", return_value=tasks),
    ):
        options = ["--streaming", f"--spark_master={master}", f"--shards={tasks}", f"--checkpoint_dir={folder}/state"]
        p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(options))
        _ = p | beam.Create([micro_batches]) | beam.ParDo(EachMicroBatch()) | beam.ParDo(Seen())
        result = p.run()
        result.wait_until_finish()


class Markers:
    """A task that reads all of its input, and sends a row to each task of the next level."""

    def __init__(self, tasks: int, *, last: bool) -> None:
        self._tasks, self._last = tasks, last

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        to = [context.partitionId()] if self._last else list(range(self._tasks))
        blobs = pa.array([_MARKER] * len(to), pa.binary())
        yield pa.RecordBatch.from_arrays([pa.array(to, pa.int32()), blobs], ["task", "blob"])


def of_spark(tasks: int, micro_batches: int, master: str, costs: Costs) -> None:
    """Run data frames of the same shape, in a session with the same settings."""
    spark = open_session(SessionOptions(master=master, daemon="arcbeam.spark.daemon"))
    with prepared(spark):
        for _ in range(micro_batches):
            frame: DataFrame = spark.range(0, tasks, 1, tasks)
            for level in range(_LEVELS):
                if level:
                    frame = frame.repartitionById(tasks, "task").sortWithinPartitions("task")
                frame = frame.mapInArrow(Markers(tasks, last=level == _LEVELS - 1).__call__, _ROW)
            costs.of(frame.collect)


SIDES = {"arcbeam": of_arcbeam, "spark": of_spark}


def one(side: str, tasks: int, options: argparse.Namespace) -> dict[str, float]:
    """Measure one side in a process of its own: its JVM is as warm as the other's. Return medians."""
    command = [sys.executable, __file__, f"--tasks={tasks}", f"--side={side}", f"--master={options.master}"]
    command += [f"--warm={options.warm}", f"--micro-batches={options.micro_batches}"]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def medians(costs: list[Cost]) -> dict[str, float]:
    """Return the figures of some micro-batches."""
    figures = {kind: statistics.median(cost.cpu[kind] for cost in costs) for kind in _KINDS}
    return {"wall": statistics.median(cost.wall for cost in costs), **figures}


def main(arguments: list[str] | None = None) -> int:
    """Measure all, and print a table."""
    options = _options(arguments)
    if options.side:
        costs = Costs()
        SIDES[options.side](options.tasks[0], options.warm + options.micro_batches, options.master, costs)
        sys.stdout.write(json.dumps(medians(costs.all[options.warm :])) + "\n")
        sys.stdout.flush()
        os._exit(0)
    rows = [["tasks a level", "", "s", *_KINDS, "ms a task"]]
    for tasks in options.tasks:
        for side in SIDES:
            found = one(side, tasks, options)
            spent = [found[kind] for kind in _KINDS]
            per_task = 1000 * sum(spent) / (_LEVELS * tasks)
            rows.append(
                [f"{tasks}", side, f"{found['wall']:.2f}", *(f"{each:.2f}" for each in spent), f"{per_task:.0f}"]
            )
            print(as_text([rows[0], rows[-1]]), file=sys.stderr, flush=True)
    print(as_text(rows))
    if options.record:
        day = datetime.datetime.now().astimezone().date().isoformat()
        text = f"{day}; `{options.master}`; per micro-batch of {_LEVELS} levels: wall clock, processor time by process."
        replace_section(ROOT / "benchmarks" / "records.md", f"{as_markdown(rows)}\n\n{text}", "manytasks")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/bench/streaming/manytasks.py", description=__doc__)
    parser.add_argument("--tasks", type=lambda text: [int(each) for each in text.split(",")], default=[8, 64, 256])
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=4, help="after the first --warm ones")
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--record", action="store_true", help="write benchmarks/records.md")
    options = parser.parse_args(arguments)
    if options.warm < 0 or options.micro_batches < 1 or min(options.tasks) < 1:
        parser.error("--warm must be 0 or more, --micro-batches and --tasks at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
