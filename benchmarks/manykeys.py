"""Whether a micro-batch costs only what it touches, however large the state is; and how fast a job recovers its state.

    python benchmarks/manykeys.py [--keys 100000,10000000] [--touched 10000] [--micro-batches 60] [--value 64] [--seed]
                                  [--limit 1200]

For each number of keys, a job gives all of them state, as fast as it can, and then touches some of them in each
micro-batch. It prints keys per second; the median, the slowest tenth and the slowest of the micro-batches; and
processor time of driver, JVM and workers per micro-batch, which is the figure to compare on a machine with other load;
and the bytes of the current state. Then the job is suspended and resumed in the same session: with the copies of its
state on this host, without, and with another number of shards. The figures are its first micro-batch, so that neither
Spark's start nor Python's is included, and a later one; and for the other shards, how much later the first one began.

With `--seed` the keys do not pass through the job, which takes minutes for some million. Instead, the job gives a
thousand of them state and is suspended. Files with a similar row for each key are committed without the job, and the
job resumes.

A table compares the figures with their targets: for 10 M keys with a gigabyte of state, or in proportion. Copies of
state are in a folder of this run: those of other jobs on this host stay.

Each micro-batch is a line on standard error. If one of these parts does not begin within `--limit` seconds, the run is
abandoned, and its progress is printed.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, FastPrimitivesCoder
from apache_beam.io.restriction_trackers import OffsetRange
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate
from apache_beam.utils.timestamp import Timestamp

from arcbeam import ArcbeamRunner
from arcbeam.engine.rows.keyspace import RowKind, part
from arcbeam.model.rows import key_hash
from arcbeam.spark.streaming import cluster
from arcbeam.store.blobs.backends import open_blobs
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.log.commitlog import CommitLog, Committed
from arcbeam.store.manifest.names import Written
from arcbeam.store.shards.compaction import publish, scan
from arcbeam.store.shards.shardfile import in_blocks
from arcbeam.streaming.task.finalizing import copies_folder

sys.path.insert(0, str(Path(__file__).parent))
from bench.figures import Figure
from bench.peers import open_session
from bench.processes import cpu_by_kind, processes
from bench.report import as_text
from microbatchtime import EachMicroBatch, Whole

_CLAIM = 200_000
_SEED = 1_000
_PRIME = 2_654_435_761
_SHARDS, _MORE_SHARDS = 2, 5
_RESCALED = f"rescaled from {_SHARDS} to {_MORE_SHARDS} shards, s"
_LAST = "rescaled, a later micro-batch"
"""The last figure."""


class Keys(EachMicroBatch):
    """Yields all keys, some thousands per claim; then some of them in each micro-batch."""

    def __init__(self, keys: int, come: int, touched: int, full: Path) -> None:
        self._keys, self._come, self._touched, self._full = keys, come, touched, full
        self._fills = -(-come // _CLAIM)

    def create_tracker(self, restriction: OffsetRange) -> Whole:
        return Whole(restriction)

    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam()) -> Iterator[tuple[int, int]]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            if at < self._fills:
                yield from ((key, at) for key in range(at * _CLAIM, min((at + 1) * _CLAIM, self._come)))
                at += 1
                continue
            # Record, on the only host, that all keys have been output.
            self._full.touch()
            first = at * self._touched
            yield from ((n * _PRIME % self._keys, at) for n in range(first, first + self._touched))
            tracker.defer_remainder(Timestamp.of(time.time() + 0.01))
            return


class Kept(beam.DoFn):
    """Counts a key's elements, in a value of a given size; records the median time of an access in each bundle."""

    KEPT = userstate.ReadModifyWriteStateSpec("kept", BytesCoder())

    def __init__(self, size: int, looks: Path) -> None:
        self._size, self._looks = size, looks

    def start_bundle(self) -> None:
        self._took: list[int] = []

    def finish_bundle(self) -> None:
        if self._took:
            with self._looks.open("a", encoding="ascii") as file:
                file.write(f"{statistics.median(self._took)}\n")

    def process(self, pair: tuple[int, int], kept: Any = beam.DoFn.StateParam(KEPT)) -> None:
        began = time.perf_counter_ns()
        before = kept.read() or b""
        self._took.append(time.perf_counter_ns() - began)
        kept.write((int.from_bytes(before[:8], "big") + 1).to_bytes(8, "big").ljust(self._size, b"."))


class Late(Exception):
    """A part took longer than its limit."""


class Watched:
    """The begin and end of each micro-batch."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.ended: list[float] = []
        self.cpu: list[dict[str, float]] = []
        run = cluster.SparkCluster._run

        def timed(this: Any, *args: Any) -> None:
            self.cpu.append(cpu_by_kind())
            self.begun.append(time.perf_counter())
            run(this, *args)
            self.ended.append(time.perf_counter())

        cluster.SparkCluster._run = timed  # type: ignore[method-assign]

    def clear(self) -> None:
        self.begun, self.ended, self.cpu = [], [], []

    def micro_batches(self, count: int) -> dict[str, float]:
        """Return how long the last of them took."""
        took = sorted(after - before for before, after in itertools.pairwise(self.begun[-count:]))
        found = {
            "micro-batch": statistics.median(took),
            "slowest tenth": took[int(len(took) * 0.9)],
            "slowest": took[-1],
        }
        spent = self.cpu[-count:]
        return found | {
            f"cpu per micro-batch of {kind}": (spent[-1][kind] - seconds) / (len(spent) - 1)
            for kind, seconds in spent[0].items()
        }


def seed(blobs: DurableBlobs, scratch: Path, keys: int) -> None:
    """Commit a state in which all keys have a copy of a few keys' state; the job does not run."""
    newest = read_newest(blobs)
    assert newest is not None
    log = CommitLog.open(blobs, known(newest).shape, known(newest).time)
    head, encode = log.head, FastPrimitivesCoder().get_impl().encode
    rows = {row: value for shard in head.shards for row, value in scan(blobs, shard.files)}
    known_key = part(encode(1))
    (row, value), *more = ((row, value) for row, value in rows.items() if row[0] == RowKind.KEYED and known_key in row)
    assert not more, "a key must have one row"
    start, _, rest = row.partition(known_key)
    mine = [list[bytes]() for _ in range(head.shape.shards)]
    for n in range(keys):
        key = encode(n)
        mine[key_hash(key) % len(mine)].append(start + part(key) + rest)
    shards = []
    for shard in head.shards:
        of_keys = [(row, value) for row, value in scan(blobs, shard.files) if row[0] == RowKind.KEYED]
        if not of_keys:
            shards.append(shard)
            continue
        others = [(row, value) for row, value in scan(blobs, shard.files) if row[0] != RowKind.KEYED]
        entries = heapq.merge(others, ((row, value) for row in sorted(mine[shard.shard])))
        written = Written(shard.level, shard.shard, head.micro_batch + 1, log.epoch, "seed", "snapshot")
        file = publish(
            blobs, scratch, written, in_blocks(entries), first_micro_batch=0, last_micro_batch=head.micro_batch + 1
        )
        shards.append(replace(shard, files=(file,)))
    outcome = log.propose(log.draft(head.time, shards=tuple(shards)))
    assert isinstance(outcome, Committed), outcome


class Job:
    """A job with a number of keys; each of its runs resumes the one before."""

    def __init__(self, keys: int, options: argparse.Namespace, watched: Watched, folder: Path) -> None:
        self._keys, self._options, self._watched, self._folder = keys, options, watched, folder
        self._come = min(keys, _SEED) if options.seed else keys

    def measured(self) -> Iterator[tuple[str, float]]:
        """Yield figures as soon as each is known.

        Raises:
            Late: the next part took too long.
        """
        watched, micro_batches, full = self._watched, self._options.micro_batches, self._folder / "full"
        began = time.perf_counter()
        result = self._run(full)
        self._wait(result, full.exists)
        yield "M keys/s", self._come / (time.perf_counter() - began) / 1e6
        if self._options.seed:
            self._wait(result, lambda: len(watched.ended) >= 2)
            result.suspend()
            seed(open_blobs(str(self._folder / "state")), self._folder / "scratch", self._keys)
            shutil.rmtree(copies_folder(), ignore_errors=True)
            result = self._run(full)
            self._wait(result, lambda: bool(watched.ended))
            yield "first micro-batch of seeded state", watched.ended[0] - watched.begun[0]
        # The micro-batch that reached the end of the keys, and one more, which stores some of them.
        until = len(watched.ended) + 2 + micro_batches
        looks = self._folder / "looks"
        looks.unlink(missing_ok=True)
        self._wait(result, lambda: len(watched.ended) >= until)
        result.suspend()
        yield from watched.micro_batches(micro_batches).items()
        yield "µs to read a key", statistics.median(map(float, looks.read_text().split())) / 1000
        yield "workers MB", sum(each.memory for each in processes() if each.kind == "worker") / 1e6
        files = [file for shard in known(self._newest()).shards for file in shard.files]
        yield "state MB", sum(file.size for file in files) / 1e6
        beginnings: list[float] = []
        for name in ("with copies", "without copies", "rescaled"):
            if name == "without copies":
                shutil.rmtree(copies_folder(), ignore_errors=True)
            began = time.perf_counter()
            result = self._run(full, _MORE_SHARDS if name == "rescaled" else _SHARDS)
            self._wait(result, lambda: len(watched.ended) >= 5)
            beginnings.append(watched.begun[0] - began)
            if name == "rescaled":
                yield _RESCALED, beginnings[-1] - beginnings[0]
            yield name, watched.ended[0] - watched.begun[0]
            yield f"{name}, a later micro-batch", watched.ended[4] - watched.begun[4]
            result.suspend()

    def _run(self, full: Path, shards: int = _SHARDS) -> Any:
        self._watched.clear()
        flags = ["--streaming", f"--shards={shards}", f"--checkpoint_dir={self._folder / 'state'}"]
        p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(flags))
        touches = Keys(self._keys, self._come, self._options.touched, full)
        _ = (
            p
            | beam.Create([1 << 40])
            | beam.ParDo(touches)
            | beam.ParDo(Kept(self._options.value, self._folder / "looks"))
        )
        return p.run()

    def _wait(self, result: Any, done: Callable[[], bool]) -> None:
        latest = time.perf_counter() + self._options.limit
        while not done():
            if result.state in ("FAILED", "DONE"):
                raise RuntimeError(f"the job has ended: {result.state}")
            if time.perf_counter() > latest:
                result.cancel()
                raise Late(f"abandoned after {self._options.limit} s and {len(self._watched.ended)} micro-batches")
            time.sleep(0.05)

    def _newest(self) -> Any:
        newest = read_newest(open_blobs(str(self._folder / "state")))
        assert newest is not None
        return newest


def judged(found: dict[int, dict[str, float]]) -> list[Figure]:
    """Compare the figures with their targets; abandoned runs have none."""
    whole = [keys for keys in sorted(found) if _LAST in found[keys]]
    if not whole:
        return []
    few, many = found[whole[0]], found[whole[-1]]
    of = f"{whole[-1]:,} keys"
    figures = []
    if len(whole) > 1:
        cpu = [
            sum(each for what, each in its.items() if what.startswith("cpu per micro-batch of")) for its in (few, many)
        ]
        beside = f"{of} to {whole[0]:,}"
        figures = [
            Figure(f"a micro-batch's time, {beside}: medians", many["micro-batch"] / few["micro-batch"], "times", 1.2),
            Figure("… its processor time", cpu[1] / cpu[0], "times"),
        ]
    again, without = (many[name] - many[f"{name}, a later micro-batch"] for name in ("with copies", "without copies"))
    gigabytes = max(many["state MB"] / 1000, 1e-3)
    return [
        *figures,
        Figure(f"{of}: to read a key's state, median", many["µs to read a key"], "µs"),
        Figure("… the first micro-batch on a host with copies, minus a later one", again, "s", 1),
        Figure("… the first micro-batch without copies, minus a later one, per gigabyte", without / gigabytes, "s", 10),
        Figure("… a rescale when it is resumed, per gigabyte", many[_RESCALED] / gigabytes, "s", 60),
    ]


def main() -> None:
    """Measure each number of keys."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", default="100000,10000000")
    parser.add_argument("--touched", type=int, default=10_000)
    parser.add_argument("--micro-batches", type=int, default=60)
    parser.add_argument("--value", type=int, default=64, help="bytes of each key's state")
    parser.add_argument("--seed", action="store_true", help="write the keys' state instead of running the job for it")
    parser.add_argument("--limit", type=float, default=1200, help="seconds for the keys, and for each later part")
    options = parser.parse_args()
    # Set before workers start, because they inherit it.
    own = tempfile.mkdtemp(prefix="bench-")
    os.environ["TMPDIR"], tempfile.tempdir = own, None
    session = open_session()
    watched = Watched()
    found: dict[int, dict[str, float]] = {}
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", force=True)
    logging.getLogger("arcbeam.streaming").setLevel(logging.INFO)
    try:
        for keys in map(int, options.keys.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    for what, value in Job(keys, options, watched, Path(folder)).measured():
                        found.setdefault(keys, {})[what] = value
                        sys.stdout.write(f"{keys:,} keys: {what} {value:,.3f}\n")
                        sys.stdout.flush()
                except Late as e:
                    sys.stdout.write(f"{keys:,} keys: {e}\n")
    finally:
        session.stop()
        shutil.rmtree(own, ignore_errors=True)
    table = [["what", "measured", "should be", ""], *(figure.cells() for figure in judged(found))]
    sys.stdout.write(f"{as_text(table)}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
