"""Runs pipelines with more data than memory, checks their results, and measures peak memory.

    python benchmarks/memory_check.py group hot --mb 3000 --heap 600m

It starts its own Spark with a small heap (driver and executor in one process), makes the data on the workers, and
prints one line of JSON for each: what, ok, mb, heap, seconds, elements, worker_mb, mapped_mb, jvm_mb. `worker_mb` is
the largest anonymous memory of any Python worker. `mapped_mb` is the most that one had mapped of files, which the
system can reclaim. `jvm_mb` is the largest resident memory of the JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner

MIB = 1 << 20
PARTS = 16
HOT = -1
LOOKUPS = 200
WHATS = {
    "group": "GroupByKey, the values of each key iterated twice",
    "hot": "the same, with half of the data under one key",
    "reshuffle": "Reshuffle",
    "twice": "two GroupByKeys of the same elements",
    "iter": "a side input iterated as a whole, by each of four elements",
    "multimap": "a side input in which some keys are looked up",
}


class Make(beam.DoFn):
    """Makes keyed values that do not compress; each begins with its number.

    Args:
        elements: elements of each part.
        size: bytes of a value.
        keys: number of keys.
        hot: whether every second value has the same key.
    """

    def __init__(self, elements: int, size: int, keys: int, hot: bool) -> None:
        self._elements, self._size, self._keys, self._hot = elements, size, keys, hot

    def process(self, part: int) -> Iterator[tuple[int, bytes]]:
        noise = os.urandom(4 * MIB + self._size)
        for n in range(part * self._elements, (part + 1) * self._elements):
            start = n * 7919 % (4 * MIB)
            key = HOT if self._hot and n % 2 else n % self._keys
            yield key, n.to_bytes(8, "big") + noise[start : start + self._size - 8]


def _tally(values: Iterable[bytes]) -> tuple[int, int]:
    """Return how many values there are, and the sum of their numbers."""
    count = total = 0
    for value in values:
        count += 1
        total += int.from_bytes(value[:8], "big")
    return count, total


def _count(count: int, total: int) -> None:
    Metrics.counter("check", "count").inc(count)
    Metrics.counter("check", "total").inc(total)


class Twice(beam.DoFn):
    """Iterates over the values of a group twice."""

    def process(self, element: tuple[int, Iterable[bytes]]) -> None:
        key, values = element
        first = _tally(values)
        if _tally(values) != first:
            raise ValueError(f"the values of {key} are different the second time")
        _count(*first)
        if key == HOT:
            Metrics.counter("check", "hot").inc(first[0])


class Whole(beam.DoFn):
    """Iterates over the whole side input."""

    def process(self, element: int, side: Iterable[tuple[int, bytes]]) -> None:
        _count(*_tally(value for _, value in side))


class LookUp(beam.DoFn):
    """Looks one key of the side input up."""

    def process(self, key: int, side: Any) -> None:
        _count(*_tally(side[key]))
        if list(side[key + (1 << 40)]):
            raise ValueError("a missing key has values")


def build(p: beam.Pipeline, what: str, elements: int, size: int, keys: int) -> dict[str, int]:
    """Builds the pipeline; returns what its counters must be."""
    each = elements // PARTS
    elements = each * PARTS
    hot = what == "hot"
    made = (
        p
        | "Parts" >> beam.Create(range(PARTS))
        | beam.Reshuffle()
        | beam.ParDo(Make(each, size, keys, hot)).with_output_types(tuple[int, bytes])
    )
    total = elements * (elements - 1) // 2
    if what in ("group", "hot"):
        _ = made | beam.GroupByKey() | beam.ParDo(Twice())
        return {"count": elements, "total": total, **({"hot": elements // 2} if hot else {})}
    if what == "reshuffle":
        _ = made | "Again" >> beam.Reshuffle() | beam.MapTuple(lambda key, value: _count(*_tally([value])))
        return {"count": elements, "total": total}
    if what == "twice":  # two consumers: the producer's output is persisted
        for n in range(2):
            grouped = made | f"Group{n}" >> beam.GroupByKey()
            _ = grouped | f"Twice{n}" >> beam.ParDo(Twice())
        return {"count": 2 * elements, "total": 2 * total}
    main = p | "Main" >> beam.Create(range(LOOKUPS if what == "multimap" else 4)) | "Spread" >> beam.Reshuffle()
    if what == "iter":
        _ = main | beam.ParDo(Whole(), beam.pvalue.AsIter(made))
        return {"count": 4 * elements, "total": 4 * total}
    _ = main | beam.ParDo(LookUp(), beam.pvalue.AsMultiMap(made))
    found = [n for n in range(elements) if n % keys < LOOKUPS]
    return {"count": len(found), "total": sum(found)}


class Peaks(threading.Thread):
    """Samples the memory of all descendants of this process until it is stopped; see the module for the fields."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.worker = self.mapped = self.jvm = 0
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(0.1):
            for pid in _descendants(os.getpid()):
                status = _read(f"/proc/{pid}/status")
                if status.startswith("Name:\tjava"):
                    self.jvm = max(self.jvm, _field(status, "VmRSS"))
                elif "pyspark" in _read(f"/proc/{pid}/cmdline"):
                    self.worker = max(self.worker, _field(status, "RssAnon"))
                    self.mapped = max(self.mapped, _field(status, "RssFile"))

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:  # the process has ended
        return ""


def _field(status: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) // 1024 if found else 0


def _descendants(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _read(f"/proc/{entry}/stat").rpartition(")")[2].split()
            if len(fields) > 1:
                children.setdefault(int(fields[1]), []).append(int(entry))
    found = list(children.get(root, ()))
    while found:
        pid = found.pop()
        found += children.get(pid, ())
        yield pid


def _session(heap: str, folder: str) -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.memory", heap)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", folder)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.daemon.module", "arcbeam.spark.daemon")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def check(what: str, requested: argparse.Namespace, folder: str) -> bool:
    """Run one check on the active session, and print its line; return False if the result is wrong."""
    options = PipelineOptions(
        [f"--group_memory_mb={requested.group_memory_mb}", f"--shards={requested.shards}", f"--arcbeam_temp={folder}"]
    )
    p = beam.Pipeline(runner=ArcbeamRunner(), options=options)
    expected = build(p, what, requested.mb * MIB // requested.value_bytes, requested.value_bytes, requested.keys)
    started = time.monotonic()
    peaks = Peaks()
    peaks.start()
    result = p.run()
    result.wait_until_finish()
    peaks.stop()
    found: dict[str, int] = {}
    for metric in result.metrics().query()["counters"]:
        name = metric.key.metric.name
        found[name] = found.get(name, 0) + metric.committed
    ok = found == expected
    if not ok:
        print(f"{what}: expected {expected}, found {found}", file=sys.stderr)
    figures = {
        "what": what,
        "ok": ok,
        "mb": requested.mb,
        "heap": requested.heap,
        "seconds": round(time.monotonic() - started, 1),
        "elements": expected["count"],
        "worker_mb": peaks.worker,
        "mapped_mb": peaks.mapped,
        "jvm_mb": peaks.jvm,
    }
    print(json.dumps(figures), flush=True)
    return ok


def main() -> int:
    """Run the checks; return 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what",
        nargs="+",
        choices=WHATS,
        metavar="what",
        help="; ".join(f"{name}: {text}" for name, text in WHATS.items()),
    )
    parser.add_argument("--mb", type=int, default=3000, help="total MB of data (default 3000)")
    parser.add_argument("--heap", default="600m", help="heap of driver and executor, which are one JVM (default 600m)")
    parser.add_argument("--value_bytes", type=int, default=10_000, help="bytes of a value (default 10000)")
    parser.add_argument("--keys", type=int, default=20_000, help="keys (default 20000)")
    parser.add_argument("--group_memory_mb", type=int, default=32, help="see arcbeam's option (default 32)")
    parser.add_argument("--shards", type=int, default=4, help="see arcbeam's option (default 4)")
    requested = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="arcbeam-memory-") as folder:
        session = _session(requested.heap, folder)
        right = [check(what, requested, folder) for what in requested.what]
        session.stop()
    return 0 if all(right) else 1


if __name__ == "__main__":
    raise SystemExit(main())
