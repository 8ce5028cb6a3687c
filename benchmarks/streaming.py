"""What streaming pipelines do in a second: the third part of `make bench`.

    python benchmarks/streaming.py
    python benchmarks/streaming.py --work count,state --quick

Each work by arcbeam (`--streaming`, `local[2]`) and by hand-written Structured Streaming, in alternation, from the
start of the job to its last pane, each after a small run of the same; results are checked. Then micro-batches and
latency, which depend on the clock. Prints tables. With --record, or if everything was measured at full size, writes
them between their markers in benchmarks/records.md.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import Figure
from bench.peers import CORES, open_session
from bench.processor import processor_seconds
from bench.report import as_markdown, as_text, replace_section
from bench.streaming.works import WORKS, StreamWork
from bench.works.work import Answer, M

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
CLOCKS = {"wall": time.perf_counter, "processor": processor_seconds}
WARM_UP = 20_000
LIVE = ("steps", "latency", "exchanges")
LIVE_SECONDS = 120.0
PEERS = ("arcbeam", "structured", "native")
TITLES = {"arcbeam": "arcbeam", "structured": "Structured Streaming, Python", "native": "… without Python"}


@dataclass(slots=True)
class Series:
    """All runs of a work by a peer; each of its `streams` has `elements` elements."""

    elements: int
    streams: int = 1
    seconds: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def rate(self) -> float | None:
        """M elements per second; None if it failed or did not run."""
        if self.error or not self.seconds:
            return None
        return self.elements * self.streams / statistics.median(self.seconds) / M


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    # Structured Streaming passes times to Python in the process's time zone.
    os.environ["TZ"] = "UTC"
    time.tzset()
    logging.disable(logging.WARNING)
    print("starting Spark …", file=sys.stderr, flush=True)
    session = open_session()
    try:
        measured = {
            work: _measure(WORKS[work], session, _runs(options), options.elements, CLOCKS[options.clock])
            for work in options.work
            if work in WORKS
        }
        figures, failed = _live(options.work, options.seconds, quick=options.quick)
    finally:
        session.stop()
    tables = [table for table in (_rates(measured), _figures(figures)) if len(table) > 1]
    print("\n\n".join(map(as_text, tables)))
    failed = [
        f"{work}, {TITLES[peer]}: {s.error}" for work, of in measured.items() for peer, s in of.items() if s.error
    ]
    for line in failed:
        print(line)
    if options.record:
        few = f"{TITLES['structured']}: {options.runs_of_structured}"
        day = datetime.datetime.now().astimezone().date().isoformat()
        conditions = (
            f"{day}; `local[{CORES}]`; median of {options.runs} ({few}), in M elements/s (of all streams) from a job's "
            f"start to its last pane, after a small run of the same; micro-batches and latency: {options.seconds:g} s."
        )
        sizes = [["work", "what", "elements", f"elements, {TITLES['structured']}"]]
        sizes += [
            [name, WORKS[name].what, *(f"{of[peer].elements:,}" if peer in of else "-" for peer in PEERS[:2])]
            for name, of in measured.items()
        ]
        parts = [
            *map(as_markdown, tables),
            "Sizes:",
            as_markdown(sizes, left=2),
            *(f"- {line}" for line in failed),
            conditions,
        ]
        replace_section(ROOT / "benchmarks" / "records.md", "\n\n".join(parts), "streaming")
    return 1 if failed else 0


def _measure(
    work: StreamWork, session: SparkSession, runs: dict[str, int], most: int | None, clock: Callable[[], float]
) -> dict[str, Series]:
    """Measure the peers in alternation, each as often as requested. One that fails is skipped."""
    found: dict[str, Series] = {}
    for peer in runs:
        if _job(peer, work.name, session) is not None:
            size = work.structured_elements if peer == "structured" else work.elements
            found[peer] = Series(min(size, most or size), work.streams)
    for number in range(max(runs.values())):
        for peer, series in found.items():
            if series.error or number >= runs[peer]:
                continue
            job = _job(peer, work.name, session)
            assert job is not None
            try:
                _check(work, min(WARM_UP, series.elements), job)
                started = clock()
                answer = job(series.elements)
                seconds = clock() - started
                _compare(work, series.elements, answer)
                series.seconds.append(seconds)
                outcome = f"{series.elements * work.streams / seconds / M:.3g} M elements/s"
            except Exception as error:
                lines = [line for line in str(error).splitlines() if line.strip()]
                outcome = series.error = f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
            print(f"{work.name:<14} {number + 1}/{runs[peer]} {peer:<10} {outcome}", file=sys.stderr, flush=True)
    return found


def _job(peer: str, name: str, session: SparkSession) -> Callable[[int], Answer] | None:
    """Return the function that does a work; None if the peer does not do it."""
    if peer == "arcbeam":
        from bench.streaming import beam

        def run(elements: int) -> Answer:
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                return beam.run(name, elements, folder)

        return run
    from bench.streaming import structured

    structured.prepare(session)
    jobs = structured.JOBS if peer == "structured" else structured.NATIVE
    return (lambda elements: structured.run(session, jobs, name, elements)) if name in jobs else None


def _check(work: StreamWork, elements: int, job: Callable[[int], Answer]) -> None:
    _compare(work, elements, job(elements))


def _compare(work: StreamWork, elements: int, answer: Answer) -> None:
    if answer != (right := work.answer(elements)):
        raise ValueError(f"{work.name} of {elements}: {answer} instead of {right}")


def _live(works: list[str], seconds: float, *, quick: bool) -> tuple[list[Figure], list[str]]:
    """Return the figures that depend on the clock, and the errors."""
    from bench.streaming import live

    skipped = seconds / 3 if quick else live.SKIPPED_SECONDS
    kinds: dict[str, Callable[[], list[Figure]]] = {
        "steps": lambda: live.micro_batches(seconds, 10) if quick else live.micro_batches(seconds),
        "latency": lambda: live.latency(seconds, skipped),
        "exchanges": lambda: live.latency(seconds, skipped, per_second=100, exchanges=3),
    }
    figures: list[Figure] = []
    errors: list[str] = []
    for name in (name for name in LIVE if name in works):
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            figures += kinds[name]()
        except Exception as error:
            errors.append(f"{name}: {type(error).__name__}: {error}"[:300])
    return figures, errors


def _rates(measured: dict[str, dict[str, Series]]) -> list[list[str]]:
    table = [["work", "arcbeam", "should be", "", TITLES["structured"], "arcbeam is … times as fast", TITLES["native"]]]
    for name, of in measured.items():
        rates = {peer: of[peer].rate if peer in of else None for peer in PEERS}
        mine, other = rates["arcbeam"], rates["structured"]
        least, target = _least(WORKS[name], measured)
        verdict = "-" if mine is None or least is None else "met" if mine >= least else "missed"
        ratio = f"{mine / other:.1f}" if mine and other else "-"
        cells = {peer: "-" if rate is None else f"{rate:.3g}" for peer, rate in rates.items()}
        table.append([name, cells["arcbeam"], target, verdict, cells["structured"], ratio, cells["native"]])
    return table


def _least(work: StreamWork, measured: dict[str, dict[str, Series]]) -> tuple[float | None, str]:
    """Return the minimum of arcbeam's rate, and its text; None if the work to compare with was not measured."""
    if not work.beside:
        return work.target, f"≥ {work.target:g}"
    other = measured.get(work.beside, {}).get("arcbeam")
    rate = None if other is None else other.rate
    least = f"≥ {work.target:g} of {work.beside}"
    return (None, least) if rate is None else (work.target * rate, f"{least}: {work.target * rate:.3g}")


def _runs(options: argparse.Namespace) -> dict[str, int]:
    few = {"structured": options.runs_of_structured}
    return {peer: few.get(peer, options.runs) for peer in options.peers}


def _figures(figures: list[Figure]) -> list[list[str]]:
    return [["what", "measured", "should be", ""], *(figure.cells() for figure in figures)]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    known = [*WORKS, *LIVE]

    def chosen(names: tuple[str, ...] | list[str]) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            unknown = [name for name in text.split(",") if name not in names]
            if unknown:
                raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(names)}")
            return [name for name in names if name in text.split(",")]

        return parse

    parser = argparse.ArgumentParser(prog="benchmarks/streaming.py", description=__doc__)
    parser.add_argument("--work", type=chosen(known), default=known, help=f"of {','.join(known)} (default: all)")
    parser.add_argument("--peers", type=chosen(PEERS), default=list(PEERS), help=f"of {','.join(PEERS)} (default: all)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each work and peer (default 3)")
    parser.add_argument(
        "--runs-of-structured", type=int, help="runs of the slowest peer, which takes minutes (default: as --runs)"
    )
    parser.add_argument("--elements", type=int, help="maximum elements (default: each work's own, up to 4 M)")
    parser.add_argument(
        "--seconds", type=float, default=LIVE_SECONDS, help="how long micro-batches and latency are watched"
    )
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="wall clock, or what all processes spent")
    parser.add_argument("--quick", action="store_true", help="one small run of each: does everything work?")
    parser.add_argument("--record", action=argparse.BooleanOptionalAction, help="write benchmarks/records.md")
    options = parser.parse_args(arguments)
    options.runs_of_structured = options.runs_of_structured or options.runs
    if options.runs < 1 or (options.elements is not None and options.elements < 1) or options.seconds <= 0:
        parser.error("--runs and --elements must be at least 1, --seconds more than 0")
    if options.record is None:
        complete = options.work == known and options.peers == list(PEERS) and options.elements is None
        options.record = complete and options.clock == "wall" and not options.quick
    if options.quick:
        options.runs_of_structured = 1
        options.runs, options.elements, options.seconds = 1, options.elements or 5_000, min(options.seconds, 30.0)
    return options


if __name__ == "__main__":
    sys.exit(main())
