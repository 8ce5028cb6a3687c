"""What the driver of a large streaming job costs per micro-batch, without Spark: time, memory, requests, bytes.

    python benchmarks/driver.py [--shards 128,1024] [--levels 8] [--tasks 256] [--active 0.1] [--micro-batches 40]

It runs the machine, commit log, manifests, status and messages to and from tasks; the tasks are made up
(`bench/engine/driving.py`). The job's folder is obstore's store in memory, and requests are counted as an object store
bills them. Figures are processor time of this process: medians of the last half of the micro-batches, with Python's
garbage collector, which is also shown alone. Memory is what the process has more than before the job.

With --record the tables are written between their markers in benchmarks/records.md.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from bench.engine.driving import CountedBlobs, DrivenJob, MicroBatchCost, Size, Tasks
from bench.figures import Figure
from bench.report import as_markdown, as_text, replace_section
from obstore.store import MemoryStore

from arcbeam.store.blobs.objects import ObjectBlobs

ROOT = Path(__file__).resolve().parents[1]
_PARTS = ("reports", "assignments", "status")


class Collector:
    """Processor time of Python's garbage collector."""

    def __init__(self) -> None:
        self.seconds, self._began = 0.0, 0.0
        gc.callbacks.append(self._called)

    def _called(self, phase: str, _: object) -> None:
        if phase == "start":
            self._began = time.process_time()
        else:
            self.seconds += time.process_time() - self._began


def _memory() -> int:
    """Return the anonymous memory of this process in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))


def measured(size: Size, micro_batches: int, collector: Collector) -> dict[str, float]:
    """Run a job of that size, then recover it; return its figures by name."""
    inner = ObjectBlobs(MemoryStore(), "memory://job")
    blobs, tasks = CountedBlobs(inner), Tasks(size, inner)
    gc.collect()
    before = _memory()
    job = DrivenJob(size, blobs, tasks)
    costs: list[MicroBatchCost] = []
    collected: list[float] = []
    for number in range(micro_batches):
        spent = collector.seconds
        costs.append(job.micro_batch())
        collected.append(collector.seconds - spent)
        print(f"{number}: {costs[-1].seconds:.3f} s, {costs[-1].requests} requests", file=sys.stderr, flush=True)
    # The first micro-batches fill the state.
    late, memory = costs[micro_batches // 2 :], _memory() - before
    figures = {
        "seconds": statistics.median(of.seconds for of in late),
        "slowest": max(of.seconds for of in late),
        "collector": statistics.median(collected[micro_batches // 2 :]),
        **{part: statistics.median(of.parts[part] for of in late) for part in _PARTS},
        "requests": sum(of.requests for of in late) / len(late),
        "most requests": max(of.requests for of in late),
        "manifest": late[-1].manifest,
        "reports bytes": late[-1].reports,
        "assignments bytes": late[-1].plan,
        "memory": memory,
    }
    del job
    return {**figures, "recovery": DrivenJob(size, blobs, tasks).recovery}


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    collector, columns = Collector(), list[dict[str, float]]()
    for shards in options.shards:
        size = replace(
            Size(), shards=shards, levels=options.levels, tasks=min(options.tasks, shards), active=options.active
        )
        columns.append(measured(size, options.micro_batches, collector))
    head = ["per micro-batch", *(f"{shards:,} shards" for shards in options.shards)]
    rows = [[name, *(_shown(name, column[name]) for column in columns)] for name in columns[0]]
    last, of = columns[-1], f"{options.shards[-1]:,} shards: "
    wanted = [
        Figure(f"{of}driver's time", last["seconds"], "s", 0.2),
        Figure(f"{of}requests to the store", last["most requests"], "", 100),
        Figure(f"{of}recovery of the driver", last["recovery"], "s", 5),
    ]
    targets = [["what", "measured", "wanted", ""], *(figure.cells() for figure in wanted)]
    print(f"{as_text([head, *rows])}\n\n{as_text(targets)}")
    if options.record:
        day = datetime.datetime.now().astimezone().date().isoformat()
        text = f"{day}; {options.levels} levels, {options.tasks} tasks a level, {options.active:.0%} active."
        tables = f"{as_markdown([head, *rows])}\n\n{as_markdown(targets)}"
        replace_section(ROOT / "benchmarks" / "records.md", f"{tables}\n\n{text}", "driver")
    return 0


def _shown(name: str, value: float) -> str:
    if name in ("manifest", "memory") or name.endswith("bytes"):
        return f"{value / 1e6:,.2f} MB"
    return f"{value:,.1f}" if "requests" in name else f"{value:.3f} s"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/driver.py", description=__doc__)
    parser.add_argument("--shards", type=lambda text: [int(each) for each in text.split(",")], default=[128, 1_024])
    parser.add_argument("--levels", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=256, help="of each level, at most its shards")
    parser.add_argument("--active", type=float, default=0.1, help="share of the shards that write state")
    parser.add_argument("--micro-batches", type=int, default=40)
    parser.add_argument("--record", action="store_true", help="write benchmarks/records.md")
    options = parser.parse_args(arguments)
    if options.levels < 2 or options.micro_batches < 2 or not 0 < options.active <= 1:
        parser.error("--levels and --micro-batches must be at least 2, --active above 0 and at most 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
