"""How the cost of the same work grows: with executors, elements, keys and shards.

    python benchmarks/scaling.py --record
    python benchmarks/scaling.py --what executors,shards --runs 1

Map, and group by key and sum. Each setting runs in a fresh process with its own Spark; every result is checked. One
parameter varies; the rest is as in `BASE`. Prints tables; with --record, writes them between their markers in
benchmarks/records.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from bench.memory import Sampler
from bench.report import as_markdown, as_text, replace_section
from bench.scaled import CONF

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 3600  # seconds
M = 1_000_000
_TAG = "BENCH_SCALING"
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Setting:
    """The parameters of a run.

    Attributes:
        executors: number of executors with one core each; 0: driver and executor are one JVM with `threads` concurrent
            tasks.
        threads: of that JVM.
    """

    executors: int = 0
    threads: int = 2
    elements: int = 4 * M
    keys: int = 100_000
    shards: int = 10

    @property
    def master(self) -> str:
        return f"local-cluster[{self.executors},1,1024]" if self.executors else f"local[{self.threads}]"

    @property
    def cores(self) -> int:
        """The number of this machine's cores that it can use."""
        return min(self.executors or self.threads, os.cpu_count() or 1)

    def cells(self) -> list[str]:
        return [f"`{self.master}`", _short(self.elements), _short(self.keys), f"{self.shards:,}"]


@dataclass(frozen=True, slots=True)
class Figure:
    """What one setting took.

    Attributes:
        seconds: seconds of each run, by work.
        python: peak MiB of all Python processes together, including the driver.
        error: why there are no figures.
    """

    seconds: dict[str, list[float]]
    python: float = 0.0
    error: str = ""


BASE = Setting()
LARGE = replace(BASE, elements=16 * M)
WHAT: dict[str, list[Setting]] = {
    "executors": [replace(BASE, executors=n) for n in (1, 2, 4)] + [replace(BASE, threads=n) for n in (1, 2, 4)],
    "elements": [replace(BASE, elements=n * M) for n in (1, 4, 16)],
    "keys": [replace(LARGE, keys=n) for n in (100, 100_000, 5 * M)],
    "shards": [replace(BASE, shards=n) for n in (10, 1_000)],
}


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    figures: dict[Setting, Figure] = {}
    for what in options.what:
        for setting in _scaled(WHAT[what], options.elements):
            if setting not in figures:
                figures[setting] = _measure(setting, options.runs)
    tables = {what: _table(_scaled(WHAT[what], options.elements), figures) for what in options.what}
    for what, table in tables.items():
        print(f"\n{what}\n{as_text(table)}")
    failed = [f"{s.master}, {s}: {f.error}" for s, f in figures.items() if f.error]
    print("\n".join(failed))
    if options.record:
        replace_section(ROOT / "benchmarks" / "records.md", _section(tables, options.runs), "scaling")
    return 1 if failed else 0


def _scaled(settings: list[Setting], elements: int | None) -> list[Setting]:
    return [replace(one, elements=min(one.elements, elements or one.elements)) for one in settings]


def _measure(setting: Setting, runs: int) -> Figure:
    """Measure one setting, in a separate process."""
    sizes = (setting.elements, setting.keys, setting.shards, runs)
    command = [sys.executable, "-m", "bench.scaled", setting.master, *map(str, sizes)]
    folder = str(Path(__file__).resolve().parent)
    paths = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", _TAG: "1"}
    print(f"{setting.master} {sizes} …", end=" ", file=sys.stderr, flush=True)
    with Sampler(f"{_TAG}=1", jvm=False) as memory:
        try:
            done = subprocess.run(
                command, cwd=folder, env=os.environ | settings, capture_output=True, text=True, timeout=TIMEOUT
            )
            error = "" if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2] or str(done.returncode)
        except subprocess.TimeoutExpired:
            error = f"not done after {TIMEOUT} s"
    seconds = {} if error else json.loads(done.stdout.strip().rpartition("\n")[2])
    outcome = error or ", ".join(f"{name} {statistics.median(took):.2f} s" for name, took in seconds.items())
    print(outcome, file=sys.stderr, flush=True)
    return Figure(seconds, memory.python / _MIB, error)


def _table(settings: list[Setting], figures: dict[Setting, Figure]) -> list[list[str]]:
    """Return a row per setting. For both works: seconds, M elements per second, µs of a core per element."""
    each = ("s", "M elements/s", "µs·core/element")
    table = [["master", "elements", "keys", "shards", *(f"{w}: {u}" for w in ("map", "group") for u in each), "MiB"]]
    for setting in settings:
        figure, cells = figures[setting], []
        for name in ("map", "group"):
            if figure.error:
                cells += ["failed", "-", "-"]
                continue
            seconds = statistics.median(figure.seconds[name])
            cost = seconds * setting.cores / setting.elements * 1e6
            cells += [f"{seconds:.2f}", f"{setting.elements / seconds / M:.2f}", f"{cost:.2f}"]
        table.append([*setting.cells(), *cells, f"{figure.python:.0f}"])
    return table


def _section(tables: dict[str, list[list[str]]], runs: int) -> str:
    day = datetime.datetime.now().astimezone().date().isoformat()
    titles = {"executors": "More executors", "elements": "More elements", "keys": "More keys", "shards": "More shards"}
    parts = [f"{titles[what]}:\n\n{as_markdown(table)}" for what, table in tables.items()]
    cores = os.cpu_count()
    parts.append(
        f"{day}; {cores} cores; median of {runs}, after a small run of the same work; "
        f"{', '.join(f'`{setting}`' for setting in CONF[:1])}. "
        "`local-cluster[n,1,1024]`: n executors of one core and 1 GiB; `local[n]`: n concurrent tasks in one JVM. "
        f"µs·core: wall clock times the usable cores, at most {cores}. "
        "MiB: peak of all Python processes together, with the driver and the workers of both works."
    )
    return "\n\n".join(parts)


def _short(number: int) -> str:
    for size, unit in ((M, " M"), (1_000, " k")):
        if number >= size and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    def chosen(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in WHAT]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(WHAT)}")
        return [name for name in WHAT if name in text.split(",")]

    parser = argparse.ArgumentParser(prog="benchmarks/scaling.py", description=__doc__)
    parser.add_argument("--what", type=chosen, default=list(WHAT), help=f"of {','.join(WHAT)} (default: all)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each work and setting (default 3)")
    parser.add_argument("--elements", type=int, help="maximum elements (default: up to 16 M)")
    parser.add_argument("--record", action="store_true", help="write benchmarks/records.md")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
