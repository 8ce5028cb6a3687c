"""`make bench`: the same work by arcbeam, hand-written PySpark and Beam's local runner, in alternation.

Prints a table, writes build/bench.json and, if everything was measured at its full size, the section of
benchmarks/records.md between its markers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.peers import NAMES, Peer, open_session, peers
from bench.processor import processor_seconds
from bench.report import (
    Conditions,
    Series,
    as_text,
    memory_table,
    replace_section,
    rows,
    section,
    speed_table,
    ways_table,
)
from bench.works.registry import WORKS
from bench.works.work import Work

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 20_000
"""Elements of the small run before each."""
CLOCKS = {"wall": time.perf_counter, "processor": processor_seconds}


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    logging.disable(logging.WARNING)
    works = [WORKS[name] for name in options.work]
    conditions = Conditions(options.runs, options.runs_of_ways, datetime.datetime.now().astimezone().date().isoformat())
    print("starting Spark …", file=sys.stderr, flush=True)
    session = open_session()
    try:
        contenders = peers(tuple(options.peers), session, CLOCKS[options.clock])
        series: list[Series] = []
        for work in works:
            able = [peer for peer in contenders if peer.does(work)]
            series += _measure(work, able, options.runs_of_ways if work.way else options.runs, options.elements)
            _write_rows(series)
    finally:
        session.stop()
    works_of, ways_of = ([s for s in series if s.work.way is way] for way in (False, True))
    if works_of:
        print(as_text(speed_table(works_of, options.peers)))
        print("\npeak memory, MiB: Python + JVM")
        print(as_text(memory_table(works_of, options.peers)))
    if ways_of:
        print("\nways to write it, M elements/s")
        print(as_text(ways_table(ways_of)))
    for failed in (s for s in series if s.error):
        print(f"\n{failed.work.name}, {failed.peer}: {failed.error}")
    if options.record:
        replace_section(ROOT / "benchmarks" / "records.md", section(series, options.peers, conditions))
    return 1 if any(s.error for s in series) else 0


def _measure(work: Work, contenders: list[Peer], runs: int, elements: int | None) -> list[Series]:
    """Measure one work: the peers alternate, once for memory, then `runs` times for speed. One that fails is skipped.

    For ways no memory is measured, so the first run only warms up what is shared.
    """
    series = []
    for peer in contenders:
        size = min(elements or work.elements, work.elements)
        series.append(Series(work, peer.name, min(size, work.local_elements) if peer.name == "local" else size))
    for number in range(runs + 1):
        for peer, one in zip(contenders, series, strict=True):
            if one.error:
                continue
            try:
                warm_up = min(WARM_UP, one.elements)
                # The first full run is for memory, and warms up for the others.
                if number == 0 and work.way:
                    # A process that is new for each run cannot warm up.
                    outcome = (
                        "warm" if peer.name == "local" else f"{peer.run(work, one.elements, warm_up):.2f} s, warming up"
                    )
                elif number == 0:
                    one.memory = peer.memory(work, one.elements, warm_up)
                    outcome = f"{one.memory.python:.0f} MiB of Python"
                else:
                    one.runs.append(peer.run(work, one.elements, warm_up))
                    outcome = f"{one.values[-1]:.3g} {one.unit}"
            except Exception as error:
                one.error = _first_line(error)
                one.runs.clear()
                outcome = f"failed: {one.error}"
            print(f"{work.name:<14} {number}/{runs} {peer.name:<8} {outcome}", file=sys.stderr, flush=True)
    return series


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def _write_rows(series: list[Series]) -> None:
    path = ROOT / "build" / "bench.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(rows(series), indent=1) + "\n", encoding="utf-8")


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return an argument type: names separated by commas, put in the order of the known ones."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
        return [name for name in known if name in names]

    return parse


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description=__doc__)
    parser.add_argument("--work", type=_names(WORKS), default=list(WORKS), help=f"of {','.join(WORKS)}")
    parser.add_argument("--peers", type=_names(NAMES), default=list(NAMES), help=f"of {','.join(NAMES)}")
    parser.add_argument("--elements", type=int, help="maximum number of elements (default: each work's own, up to 4 M)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each work and peer (default 5)")
    parser.add_argument("--runs-of-ways", type=int, default=3, help="runs of each way to write it and peer (default 3)")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="what to measure: wall clock, or processor time of all processes (for a machine with other load)",
    )
    parser.add_argument("--quick", action="store_true", help="one run of 100,000 elements: does everything work?")
    parser.add_argument(
        "--record",
        action=argparse.BooleanOptionalAction,
        help="write benchmarks/records.md (default: if everything was measured at full size)",
    )
    options = parser.parse_args(arguments)
    if min(options.runs, options.runs_of_ways) < 1 or (options.elements is not None and options.elements < 1):
        parser.error("--runs, --runs-of-ways and --elements must be at least 1")
    if options.quick:
        options.runs, options.runs_of_ways, options.elements = 1, 1, options.elements or 100_000
    if options.record is None:
        complete = len(options.work) == len(WORKS) and len(options.peers) == len(NAMES)
        options.record = complete and options.elements is None and options.clock == "wall"
    return options


if __name__ == "__main__":
    sys.exit(main())
