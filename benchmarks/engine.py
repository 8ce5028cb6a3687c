"""What the engine, the store and a chain do in a second on one core: a part of `make bench`.

    python benchmarks/engine.py
    python benchmarks/engine.py --work groups,timers --runs 5

Measures processor time where nothing waits for a disk, so that other loads matter less; the best of several runs,
because other loads only make figures worse. Prints a table. With --record, or if everything was measured at full size,
writes it between its markers in benchmarks/records.md.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable
from pathlib import Path

from bench.engine import commit, groups, state, time, times
from bench.figures import Figure, best
from bench.report import as_markdown, as_text, replace_section

ROOT = Path(__file__).resolve().parents[1]
M = 1_000_000


def _with_folder(work: Callable[[int, Path], list[Figure]]) -> Callable[[int], list[Figure]]:
    def run(size: int) -> list[Figure]:
        with state.scratch() as folder:
            return work(size, Path(folder))

    return run


_TURNS = 3
"""Runs of each comparison; the best counts."""
WORKS: dict[str, tuple[Callable[[int], list[Figure]], int]] = {
    "cells": (_with_folder(state.on_disk), M),
    "timers": (time.pending_timers, M),
    "disk-timers": (_with_folder(time.timers_on_disk), M),
    "groups": (groups.groups, 100_000),
    "stages": (groups.stages, 200_000),
    "commit": (_with_folder(lambda _, folder: commit.commits(16, folder)), 0),
    "copies": (_with_folder(state.copies), 1_024),
    "memory": (lambda size: state.memory(size / M), M),
    "memory-cells": (state.in_memory, M),
    "memory-timers": (time.timers_in_memory, M),
    "holds": (time.holds, 200_000),
    "order": (time.in_order, 200_000),
    "watermark": (lambda size: times.watermarks(size, _TURNS), 500_000),
}
"""The measured works, and their sizes: keys, timers, elements, MiB."""


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    figures: list[Figure] = []
    for name in options.work:
        work, size = WORKS[name]
        print(f"{name} …", file=sys.stderr, flush=True)
        once = name in ("memory", "copies", "watermark")
        figures += best([work(size // options.divide) for _ in range(1 if once else options.runs)])
    table = [["what", "measured", "should be", ""], *(figure.cells() for figure in figures)]
    print(as_text(table))
    if options.record:
        day = datetime.datetime.now().astimezone().date().isoformat()
        text = f"{day}; one core, its processor time (the disk's: wall clock); the best of {options.runs}."
        replace_section(ROOT / "benchmarks" / "records.md", f"{as_markdown(table)}\n\n{text}", "engine")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    def chosen(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in WORKS]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(WORKS)}")
        return [name for name in WORKS if name in text.split(",")]

    parser = argparse.ArgumentParser(prog="benchmarks/engine.py", description=__doc__)
    parser.add_argument("--work", type=chosen, default=list(WORKS), help=f"of {','.join(WORKS)} (default: all)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each work; one of the large ones (default 3)")
    parser.add_argument("--divide", type=int, default=1, help="divide all sizes by this number, for a trial")
    parser.add_argument("--record", action=argparse.BooleanOptionalAction, help="write benchmarks/records.md")
    options = parser.parse_args(arguments)
    if options.runs < 1 or options.divide < 1:
        parser.error("--runs and --divide must be at least 1")
    if options.record is None:
        options.record = len(options.work) == len(WORKS) and options.divide == 1
    return options


if __name__ == "__main__":
    sys.exit(main())
