"""A job whose state is several times what its worker may have in memory, in a session of its own.

    python -m tests.spark.streaming.memory.largestate FOLDER

Every key gets a value of state; then the job is suspended, its copies of the state are removed, and it goes on: every
value is read, and another written. One worker does all of it, and may have `ALLOWED` bytes of its own beside what it
had when it began; pages of mapped files, which the system takes back when it needs them, are not among these.

What happened is in FOLDER/told: JSON of what came out, of how much there was, and of what an access took.
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
"""Keys of a micro-batch: what a micro-batch changes is in memory until it is committed."""
ALLOWED = 192 << 20
TURNS = 2
_STATUS = Path("/proc/self/status")


def value_of(key: int, turn: int) -> bytes:
    """What a key has behind a turn; no two are alike, and none is shorter on the disk."""
    return hashlib.shake_128(b"%d %d" % (key, turn)).digest(VALUE)


def in_status(what: str) -> int:
    """A figure of this process's memory, in bytes."""
    found = re.search(rf"^{what}:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    assert found, what
    return int(found[1]) << 10


def limited() -> None:
    """Lets this process have no more than it has now, and `ALLOWED`.

    Linux counts for it what is private and can be written, so neither files that are mapped to be read nor shared ones.
    """
    if resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY:
        limit = in_status("VmData") + ALLOWED
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        with contextlib.suppress(OSError), mmap.mmap(-1, 2 * ALLOWED, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
            raise AssertionError("it does not hold")


class Keys(beam.DoFn):
    """All keys in each turn, some in each micro-batch; after the first turn it waits until it may go on."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self, element: int, folder: str, tracker: Any = beam.DoFn.RestrictionParam(WholeUpTo())
    ) -> Iterator[tuple[int, int]]:
        at = tracker.current_restriction().start
        turn, first = divmod(at * AT_ONCE, KEYS)
        if turn and not first:
            Path(folder, "filled").touch()
            if not Path(folder, "go on").exists():
                tracker.defer_remainder(Timestamp.of(time.time() + 0.1))
                return
        if tracker.try_claim(at):
            yield from ((key, turn) for key in range(first, first + AT_ONCE))
            # To a time that comes: the next micro-batch, not this one goes on with it.
            tracker.defer_remainder(Timestamp.of(time.time() + 0.01))


class StateMetrics(beam.DoFn):
    """Replaces what a key has, and looks whether that is what it was given in the turn before."""

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
            told = [self._read, self._took_to_read, self._took_to_write]
            file.write(json.dumps(told) + "\n")


def pipeline(folder: Path) -> Any:
    """Runs the job, or goes on with it."""
    flags = [
        "--streaming",
        "--shards=2",
        # A micro-batch of one claim: more of them would be in memory together.
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
    """Runs it in two parts."""
    # The copies of other jobs on this host are not this one's to remove.
    (folder / "temp").mkdir()
    os.environ["TMPDIR"], tempfile.tempdir = str(folder / "temp"), None
    assert folder in copies_folder().parents
    result = pipeline(folder)
    wait(result, (folder / "filled").exists)
    result.suspend()
    while copies_folder().exists():
        shutil.rmtree(copies_folder(), ignore_errors=True)
    (folder / "go on").touch()
    result = pipeline(folder)
    result.wait_until_finish()
    newest = read_newest(open_blobs(str(folder / "state")))
    assert newest is not None
    told = [json.loads(line) for file in folder.glob("worker-*") for line in file.read_text().splitlines()]
    read, to_read, to_write = ([each for bundle in told for each in bundle[n]] for n in range(3))
    found = {
        "keys": sorted(set(read)) == list(range(KEYS)),
        "state": sum(file.size for shard in known(newest).shards for file in shard.files),
        "µs to read": statistics.median(to_read) / 1000,
        "µs to write": statistics.median(to_write) / 1000,
    }
    (folder / "told").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)
