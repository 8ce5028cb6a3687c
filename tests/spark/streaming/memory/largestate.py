"""A job whose state is several times larger than its worker's memory, in its own session.

    python -m tests.spark.streaming.memory.largestate FOLDER

Every key gets a value of state. Then the job is suspended, its copies of the state are removed, and it resumes: every
value is read and replaced. One worker does all of it. It may have `ALLOWED` bytes of private memory in addition to what
it had at the start. Pages of mapped files do not count, because the system can reclaim them.

FOLDER/result has the result as JSON: the output, its size, and the time of an access.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import re
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate
from apache_beam.utils.timestamp import Timestamp

from arcbeam import ArcbeamRunner
from arcbeam.store.blobs.backends import open_blobs
from arcbeam.store.log.chain import known, read_newest
from arcbeam.streaming.task.finalizing import copies_folder
from tests.offsets import WholeUpTo

KEYS = 128_000
VALUE = 4_096
AT_ONCE = 4_000
"""Keys of a micro-batch: its changes are in memory until it commits."""
ALLOWED = 192 << 20
TURNS = 2
_STATUS = Path("/proc/self/status")


def value_of(key: int, turn: int) -> bytes:
    """Return a key's value after a turn; all values differ and cannot be compressed."""
    return hashlib.shake_128(b"%d %d" % (key, turn)).digest(VALUE)


def in_status(what: str) -> int:
    """Return a figure of this process's memory, in bytes."""
    found = re.search(rf"^{what}:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    assert found, what
    return int(found[1]) << 10


def limited() -> None:
    """Limit this process to its present memory and `ALLOWED` bytes more.

    Linux counts private writable memory. It counts neither files that are mapped for reading nor shared memory.
    """
    if resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY:
        limit = in_status("VmData") + ALLOWED
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        with contextlib.suppress(OSError), mmap.mmap(-1, 2 * ALLOWED, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
            raise AssertionError("the limit has no effect")


class Keys(beam.DoFn):
    """Yields all keys in each turn, some in each micro-batch; waits after the first turn until it may continue."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self, element: int, folder: str, tracker: Any = beam.DoFn.RestrictionParam(WholeUpTo())
    ) -> Iterator[tuple[int, int]]:
        at = tracker.current_restriction().start
        turn, first = divmod(at * AT_ONCE, KEYS)
        if turn and not first:
            Path(folder, "filled").touch()
            if not Path(folder, "continue").exists():
                tracker.defer_remainder(Timestamp.of(time.time() + 0.1))
                return
        if tracker.try_claim(at):
            yield from ((key, turn) for key in range(first, first + AT_ONCE))
            # Defer to a future time, so that the next micro-batch continues.
            tracker.defer_remainder(Timestamp.of(time.time() + 0.01))


class StateMetrics(beam.DoFn):
    """Replaces a key's value, and checks that it is the one of the turn before."""

    KEPT = userstate.ReadModifyWriteStateSpec("kept", BytesCoder())

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def setup(self) -> None:
        limited()

    def start_bundle(self) -> None:
        self._read: list[int] = []
        self._took_to_read: list[int] = []
        self._took_to_write: list[int] = []

    def process(self, pair: tuple[int, int], kept: Any = beam.DoFn.StateParam(KEPT)) -> None:
        key, turn = pair
        value = value_of(key, turn)
        began = time.perf_counter_ns()
        before = kept.read()
        have = time.perf_counter_ns()
        kept.write(value)
        written = time.perf_counter_ns()
        if before != (value_of(key, turn - 1) if turn else None):
            raise ValueError(f"key {key} in turn {turn} has {before!r:.40}")
        if turn:
            self._read.append(key)
            self._took_to_read.append(have - began)
            self._took_to_write.append(written - have)

    def finish_bundle(self) -> None:
        with open(Path(self._folder, f"worker-{os.getpid()}"), "a", encoding="ascii") as file:
            reported = [self._read, self._took_to_read, self._took_to_write]
            file.write(json.dumps(reported) + "\n")


def pipeline(folder: Path) -> Any:
    """Run or resume the job."""
    flags = [
        "--streaming",
        "--shards=2",
        # One claim per micro-batch: several would be in memory at the same time.
        "--micro_batch_seconds=0.1",
        "--backlog_micro_batch_seconds=0.1",
        "--spark_master=local[1,1]",
        "--spark_conf=spark.driver.memory=1g",
        f"--checkpoint_dir={folder / 'state'}",
    ]
    p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(flags))
    keys = p | beam.Create([TURNS * KEYS // AT_ONCE]) | beam.ParDo(Keys(), str(folder))
    _ = keys | beam.ParDo(StateMetrics(str(folder)))
    return p.run()


def wait(result: Any, done: Callable[[], bool]) -> None:
    while not done():
        if result.state in ("FAILED", "DONE"):
            result.wait_until_finish()
            return
        time.sleep(0.05)


def main(folder: Path) -> None:
    """Run it in two parts."""
    # Do not remove the copies of other jobs on this host.
    (folder / "temp").mkdir()
    os.environ["TMPDIR"], tempfile.tempdir = str(folder / "temp"), None
    assert folder in copies_folder().parents
    result = pipeline(folder)
    wait(result, (folder / "filled").exists)
    result.suspend()
    while copies_folder().exists():
        shutil.rmtree(copies_folder(), ignore_errors=True)
    (folder / "continue").touch()
    result = pipeline(folder)
    result.wait_until_finish()
    newest = read_newest(open_blobs(str(folder / "state")))
    assert newest is not None
    reported = [json.loads(line) for file in folder.glob("worker-*") for line in file.read_text().splitlines()]
    read, to_read, to_write = ([each for bundle in reported for each in bundle[n]] for n in range(3))
    found = {
        "keys": sorted(set(read)) == list(range(KEYS)),
        "state": sum(file.size for shard in known(newest).shards for file in shard.files),
        "µs to read": statistics.median(to_read) / 1000,
        "µs to write": statistics.median(to_write) / 1000,
    }
    (folder / "result").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)
