"""A key whose values are larger than its worker's memory, in a streaming job with a session of its own.

    python -m tests.spark.streaming.memory.largepane FOLDER pane|bag|list MEBIBYTES

A source yields 32 MiB of values in each micro-batch, all with one key. At the end of the window they are a pane; or
they are added to a bag or an ordered list, which is read when the last value has come. All are read twice. One worker
does everything, and samples its anonymous memory.

FOLDER/result has the result as JSON: whether all values were read, bytes of memory, seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate, window
from apache_beam.utils.timestamp import Timestamp

from arcbeam import ArcbeamRunner
from arcbeam.streaming.task.finalizing import copies_folder
from tests.offsets import WholeUpTo
from tests.spark.streaming.memory.largestate import in_status

VALUE = 16 << 10
AT_ONCE = 2_048
"""Values of a micro-batch: its changes are in memory until it commits."""
_sampling = threading.Event()


def value_of(number: int) -> bytes:
    """Return a value; all differ, and cannot be compressed."""
    return hashlib.shake_128(b"%d" % number).digest(VALUE)


class Values(beam.DoFn):
    """Yields some values in each micro-batch, then a last one that is empty."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self, batches: int, tracker: Any = beam.DoFn.RestrictionParam(WholeUpTo())
    ) -> Iterator[tuple[str, bytes]]:
        at = tracker.current_restriction().start
        if tracker.try_claim(at):
            if at + 1 < batches:
                yield from (("key", value_of(number)) for number in range(at * AT_ONCE, (at + 1) * AT_ONCE))
            else:
                yield "key", b""
            # Defer to a future time, so that the next micro-batch continues.
            tracker.defer_remainder(Timestamp.of(time.time() + 0.01))


class Reader(beam.DoFn):
    """Samples the worker's memory, and reads values twice."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def setup(self) -> None:
        if not _sampling.is_set():
            _sampling.set()
            threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        most, file = 0, Path(self._folder, f"memory-{os.getpid()}")
        while True:
            if (now := in_status("RssAnon")) > most:
                most = now
                file.write_text(f"{most}\n", encoding="ascii")
            time.sleep(0.02)

    def read(self, values: Iterable[bytes]) -> None:
        """Read all values, and write what was found."""
        found = []
        for _ in range(2):
            began, hashed, size = time.perf_counter(), hashlib.blake2b(), 0
            for value in values:
                hashed.update(value)
                size += len(value)
            found.append({"digest": hashed.hexdigest(), "size": size, "seconds": time.perf_counter() - began})
        Path(self._folder, "found").write_text(json.dumps(found), encoding="ascii")


class OfPane(Reader):
    def process(self, pair: tuple[str, Iterable[bytes]]) -> None:
        self.read(pair[1])


class OfBag(Reader):
    KEPT = userstate.BagStateSpec("kept", BytesCoder())

    def process(self, pair: tuple[str, bytes], kept: Any = beam.DoFn.StateParam(KEPT)) -> None:
        if pair[1]:
            kept.add(pair[1])
        else:
            self.read(kept.read())


class OfList(Reader):
    KEPT = userstate.OrderedListStateSpec("kept", BytesCoder())
    COUNT = userstate.CombiningValueStateSpec("count", sum)

    def process(
        self,
        pair: tuple[str, bytes],
        kept: Any = beam.DoFn.StateParam(KEPT),
        count: Any = beam.DoFn.StateParam(COUNT),
    ) -> None:
        if pair[1]:
            kept.add((Timestamp(count.read()), pair[1]))
            count.add(1)
        else:
            self.read(Second(kept))


class Second:
    """The values of an ordered list, without their sort keys."""

    def __init__(self, kept: Any) -> None:
        self._kept = kept

    def __iter__(self) -> Iterator[bytes]:
        return (value for _, value in self._kept.read())


def main(folder: Path, kind: str, mebibytes: int) -> None:
    # Do not remove the copies of other jobs on this host.
    (folder / "temp").mkdir()
    os.environ["TMPDIR"], tempfile.tempdir = str(folder / "temp"), None
    assert folder in copies_folder().parents
    batches = (mebibytes << 20) // (VALUE * AT_ONCE)
    flags = [
        "--streaming",
        "--shards=1",
        # One claim per micro-batch: several would be in memory at the same time.
        "--micro_batch_seconds=0.1",
        "--backlog_micro_batch_seconds=0.1",
        "--spark_master=local[1,1]",
        "--spark_conf=spark.driver.memory=1g",
        f"--checkpoint_dir={folder / 'state'}",
    ]
    began = time.perf_counter()
    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(flags)) as p:
        values = p | beam.Create([batches + 1]) | beam.ParDo(Values()).with_output_types(tuple[str, bytes])
        if kind == "pane":
            _ = (
                values
                | beam.Filter(lambda pair: bool(pair[1]))
                | beam.Map(lambda pair: window.TimestampedValue(pair, 5))
                | beam.WindowInto(window.FixedWindows(10))
                | beam.GroupByKey()
                | beam.ParDo(OfPane(str(folder)))
            )
        else:
            _ = values | beam.ParDo({"bag": OfBag, "list": OfList}[kind](str(folder)))
    expected = hashlib.blake2b()
    for number in range(batches * AT_ONCE):
        expected.update(value_of(number))
    found = json.loads((folder / "found").read_text(encoding="ascii"))
    result = {
        "right": [each["digest"] for each in found] == [expected.hexdigest()] * 2,
        "size": found[0]["size"],
        "memory": max(int(file.read_text(encoding="ascii")) for file in folder.glob("memory-*")),
        "seconds to read": [round(each["seconds"], 1) for each in found],
        "seconds": round(time.perf_counter() - began),
    }
    (folder / "result").write_text(json.dumps(result), encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    os._exit(0)
