"""Pipelines with ten elements in many stages, where only fixed costs count, beside other runners in one process.

    python benchmarks/bench/small.py [--shape "20 groups"] [--runs 7] [--record]

Peers: arcbeam; arcbeam with tasks of their own for each stage (`--disable_optimizations=local_exchange`); RDDs by hand
in the same session; Beam's local runner; Prism with a worker in this process, if there is Go. They take turns, after a
run of each to warm up; a time is from building the pipeline to its end. Then one more run of arcbeam shows the parts.
At last new processes measure the time from "Spark is ready" to the first element of their first pipeline.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.figures import Figure
from bench.peers import CORES, open_session
from bench.report import as_markdown, as_text, replace_section
from bench.sdks import servers

ROOT = Path(__file__).resolve().parents[2]
PAIRS = [(n % 5, n) for n in range(10)]
GROUPS, COMBINES, SUMS = 20, 60, 20


def _values(group: tuple[int, Any]) -> list[tuple[int, int]]:
    return [(group[0], value) for value in group[1]]


def _shifted(value: int, total: int) -> int:
    return (value + total) % 7


def groups(p: beam.Pipeline) -> None:
    """Many GroupByKeys in a row, with a FlatMap between them."""
    pairs = p | beam.Create(PAIRS)
    for n in range(GROUPS):
        pairs = pairs | f"Group {n}" >> beam.GroupByKey() | f"Values {n}" >> beam.FlatMap(_values)


def combines(p: beam.Pipeline) -> None:
    """Many combines of one input side by side, flattened and grouped."""
    pairs = p | beam.Create(PAIRS)
    sums = [pairs | f"Sum {n}" >> beam.CombinePerKey(sum) for n in range(COMBINES)]
    _ = sums | beam.Flatten() | beam.GroupByKey()


def side_inputs(p: beam.Pipeline) -> None:
    """Many global sums in a row, each a side input of the next step."""
    values = p | beam.Create(range(10))
    for n in range(SUMS):
        total = values | f"Sum {n}" >> beam.CombineGlobally(sum)
        values = values | f"Shift {n}" >> beam.Map(_shifted, beam.pvalue.AsSingleton(total))


def one_map(p: beam.Pipeline) -> None:
    """One Map."""
    _ = p | beam.Create(range(10)) | beam.Map(abs)


def _rdd_groups(context: Any) -> None:
    pairs = context.parallelize(PAIRS, CORES)
    for _ in range(GROUPS):
        pairs = pairs.groupByKey(CORES).flatMap(_values)
    pairs.collect()


def _rdd_combines(context: Any) -> None:
    pairs = context.parallelize(PAIRS, CORES)
    context.union([pairs.reduceByKey(int.__add__, CORES) for _ in range(COMBINES)]).groupByKey(CORES).collect()


def _rdd_side_inputs(context: Any) -> None:
    values = context.parallelize(range(10), CORES)
    for _ in range(SUMS):
        total = values.sum()
        values = values.map(lambda value, total=total: _shifted(value, total))
    values.collect()


def _rdd_one_map(context: Any) -> None:
    context.parallelize(range(10), CORES).map(abs).collect()


SHAPES: dict[str, tuple[Callable[[beam.Pipeline], None], Callable[[Any], None], float | None]] = {
    f"{GROUPS} GroupByKeys in a row": (groups, _rdd_groups, None),
    f"{COMBINES} combines side by side": (combines, _rdd_combines, None),
    f"{SUMS} sums as side inputs": (side_inputs, _rdd_side_inputs, None),
    "one Map": (one_map, _rdd_one_map, 0.25),
}
"""The pipeline, the same by hand with RDDs, and the most seconds of arcbeam; None: twice those of the local runner."""

ARCBEAM, DISTRIBUTED, RDD, LOCAL, PRISM = "arcbeam", "arcbeam, a task a stage", "RDDs", "local runner", "Prism"


def _beam(build: Callable[[beam.Pipeline], None], *options: str) -> Callable[[], None]:
    def run() -> None:
        pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
        build(pipeline)
        pipeline.run().wait_until_finish()

    return run


def _peers(build: Any, by_hand: Any, context: Any, prism: str) -> dict[str, Callable[[], None]]:
    ours = "--runner=arcbeam.ArcbeamRunner"
    peers = {
        ARCBEAM: _beam(build, ours),
        DISTRIBUTED: _beam(build, ours, "--disable_optimizations=local_exchange"),
        RDD: lambda: by_hand(context),
        LOCAL: _beam(build, "--runner=DirectRunner"),
    }
    if prism:
        peers[PRISM] = _beam(build, "--runner=PortableRunner", f"--job_endpoint={prism}", "--environment_type=LOOPBACK")
    return peers


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _measured(peers: dict[str, Callable[[], None]], runs: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in peers}
    for number in range(runs + 1):
        for name, work in peers.items():
            seconds = _seconds(work)
            if number:
                taken[name].append(seconds)
            print(f"  {number}/{runs} {name:<24} {seconds:.2f} s", file=sys.stderr, flush=True)
    return {name: statistics.median(each) for name, each in taken.items()}


_FIRST_ELEMENT = """
import logging, sys, time
logging.disable(logging.WARNING)
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from arcbeam.runner import runner
ready, opened, times = [], runner.open_session, sys.argv[1]
def open_session(options):
    session = opened(options)
    ready.append(time.time())
    return session
runner.open_session = open_session
def note(element):
    with open(times, "a") as file:
        print(time.time(), file=file)
with beam.Pipeline(options=PipelineOptions(["--runner=arcbeam.ArcbeamRunner"])) as p:
    p | beam.Create(range(10)) | beam.Map(note)
print(float(open(times).readline()) - ready[0])
"""
FIRST_ELEMENT, FIRST_ELEMENT_SECONDS = "first element of a process, after Spark is ready", 3.0


def _first_element(folder: Path, number: int) -> float:
    """Return the seconds from a ready session to the first element of the first pipeline, in a new process."""
    program = [sys.executable, "-c", _FIRST_ELEMENT, str(folder / f"first-{number}")]
    return float(subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout)


def _parts(build: Callable[[beam.Pipeline], None]) -> dict[str, float]:
    """Return the seconds of the parts of one run of arcbeam, by what they are."""
    from arcbeam.runner import job, runner
    from arcbeam.spark.batch import boundedjob

    spent: dict[str, float] = {}

    def timed(owner: Any, name: str, part: str) -> None:
        function = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[part] = spent.get(part, 0.0) + time.perf_counter() - began

        stack.callback(setattr, owner, name, function)
        setattr(owner, name, counted)

    with contextlib.ExitStack() as stack:
        for owner, name, part in (
            (runner, "pipeline_proto", "the SDK's proto"),
            (runner, "plan_of", "translation"),
            (runner, "worker_setup_for", "staging"),
            (boundedjob.BatchRun, "_build", "planning of data frames"),
            (boundedjob, "collected", "Spark jobs"),
            (boundedjob.BatchRun, "_tear_down", "tear-down"),
            (job.Job, "run", "the job"),
        ):
            timed(owner, name, part)
        pipeline = beam.Pipeline(options=PipelineOptions(["--runner=arcbeam.ArcbeamRunner"]))
        spent["the SDK's construction"] = _seconds(lambda: build(pipeline))
        whole = _seconds(lambda: pipeline.run().wait_until_finish())
    inside = ("planning of data frames", "Spark jobs", "tear-down")
    spent["the rest of the job"] = spent.pop("the job", 0.0) - sum(spent.get(part, 0.0) for part in inside)
    spent["the rest"] = whole - sum(seconds for part, seconds in spent.items() if part != "the SDK's construction")
    return spent


def main(arguments: list[str] | None = None) -> int:
    """Measure. Return how many targets are missed."""
    parser = argparse.ArgumentParser(prog="benchmarks/bench/small.py", description=__doc__)
    parser.add_argument("--shape", action="append", help=f"one of {'; '.join(SHAPES)} (default: all)")
    parser.add_argument("--runs", type=int, default=7, help="of each shape and peer")
    parser.add_argument("--record", action="store_true", help="write benchmarks/records.md")
    options = parser.parse_args(arguments)
    chosen = options.shape or list(SHAPES)
    if unknown := [name for name in chosen if name not in SHAPES]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {'; '.join(SHAPES)}")
    logging.disable(logging.WARNING)
    load = os.getloadavg()[0]
    session = open_session()
    figures: list[Figure] = []
    rows = [["shape", ARCBEAM, DISTRIBUTED, RDD, LOCAL, PRISM]]
    parts: list[str] = []
    with contextlib.ExitStack() as stack:
        stack.callback(session.stop)
        prism = ""
        if lacks := servers.missing():
            print(f"Prism is not measured: {lacks}", file=sys.stderr)
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            prism = stack.enter_context(servers.prism(Path(folder))).endpoint
        for name in chosen:
            print(name, file=sys.stderr, flush=True)
            build, by_hand, most = SHAPES[name]
            found = _measured(_peers(build, by_hand, session.sparkContext, prism), options.runs)
            rows.append([name, *(f"{found[peer]:.2f}" if peer in found else "-" for peer in rows[0][1:])])
            if most is None:
                figures.append(
                    Figure(f"{name}, against the local runner", found[ARCBEAM] / found[LOCAL], "× the time", 2)
                )
                figures.append(Figure(f"{name}, against RDDs", found[ARCBEAM] / found[RDD], "× the time", 1))
            else:
                figures.append(Figure(name, found[ARCBEAM], "s", most))
            if PRISM in found:
                figures.append(Figure(f"{name}, against Prism", found[ARCBEAM] / found[PRISM], "× the time", 1))
            spent = sorted(_parts(build).items(), key=lambda part: -part[1])
            parts.append(f"- {name}: " + ", ".join(f"{part} {seconds:.3f} s" for part, seconds in spent))
    with tempfile.TemporaryDirectory(prefix="bench-") as made:
        taken = [_first_element(Path(made), number) for number in range(options.runs)]
    figures.append(Figure(FIRST_ELEMENT, statistics.median(taken), "s", FIRST_ELEMENT_SECONDS))
    table = [["what", "measured", "should be", ""], *(figure.cells() for figure in figures)]
    today = datetime.datetime.now().astimezone().date().isoformat()
    conditions = f"{today}; `local[{CORES}]`, seconds, median of {options.runs}; load before: {load:.1f}."
    print(as_text(rows), as_text(table), "\n".join(parts), conditions, sep="\n\n")
    if options.record:
        text = "\n\n".join((as_markdown(rows), as_markdown(table), "\n".join(parts), conditions))
        replace_section(ROOT / "benchmarks" / "records.md", text, "small")
    return sum(figure.met is False for figure in figures)


if __name__ == "__main__":
    sys.exit(main())
