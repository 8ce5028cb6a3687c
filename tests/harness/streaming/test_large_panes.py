"""Values of a key that are larger than memory: panes, bags and ordered lists are read from the state, several times.

The state is on disk, as in a job. Sizes are scaled down; `tests.spark.streaming.memory` has a gigabyte on Spark.
"""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import BytesCoder
from apache_beam.transforms import trigger, userstate, window
from apache_beam.utils.timestamp import Timestamp as BeamTimestamp

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.engine.protocol.reports import StageReport
from arcbeam.harness.encoding import frames
from arcbeam.model.files import ShardFile
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from arcbeam.store.manifest.names import Written
from arcbeam.store.manifest.values import Opening, ShardVersion
from arcbeam.store.shards.cache import HostCache
from arcbeam.testing.blobs import MemoryBlobs
from tests.harness.drive import Collect
from tests.harness.streaming import microbatches
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard

VALUE = 64 << 10
VALUES = 512
AT_ONCE = 32
ALLOWED = 16 << 20
"""Bytes that a micro-batch may allocate; half of the values."""
EXPECTED = hashlib.sha256()


def value_of(number: int) -> bytes:
    return hashlib.shake_128(b"%d" % number).digest(VALUE)


for _number in range(VALUES):
    EXPECTED.update(value_of(_number))


def digest(values: Any) -> str:
    hashed = hashlib.sha256()
    for value in values:
        hashed.update(value)
    return hashed.hexdigest()


class Stored(Shard):
    """Its state is on disk."""

    folder: Path

    def __post_init__(self) -> None:
        super().__post_init__()
        self._blobs, self._cache = MemoryBlobs(), HostCache(self.folder)
        self._files: tuple[ShardFile, ...] = ()

    def run(self, micro_batch: MicroBatch) -> StageReport:
        self.micro_batches += 1
        number = self.micro_batches
        version = ShardVersion("job", 0, 0, number - 1, (), (Opening(0, "first"),), self._files)
        self.view = self._cache.view(self._blobs, version)  # type: ignore[assignment]
        report, outbox, task = self._attempt(micro_batch)
        delta = self._cache.publish(
            self._blobs, version, Written(0, 0, number, 1, f"t{number}", "delta"), self.view, number  # type: ignore
        )  # fmt: skip
        self.view.close()  # type: ignore[attr-defined]
        self._files += () if delta is None else (delta,)
        self.rows += outbox.rows
        self.reports.append(task)
        self.stage_reports.append(report)
        return report

    def left(self) -> list[bytes]:
        version = ShardVersion("job", 0, 0, self.micro_batches, (), (Opening(0, "first"),), self._files)
        view = self._cache.view(self._blobs, version)
        try:
            return [row for row, _ in view.scan(b"")]
        finally:
            view.close()


class Twice(beam.DoFn):
    """Reads a pane twice."""

    def process(self, pair: tuple[str, Any]) -> Iterator[list[str]]:
        _, values = pair
        yield [digest(values), digest(values)]


class Later(beam.DoFn):
    """Keeps a pane until the bundle ends."""

    def process(self, pair: tuple[str, Any]) -> None:
        self.values = pair[1]
        self.rest = iter(self.values)
        assert next(self.rest) == value_of(0)

    def finish_bundle(self) -> Iterator[Any]:
        if self.values is not None:
            found = [digest(self.values), digest(chain([value_of(0)], self.rest))]
            self.values = self.rest = None  # type: ignore[assignment]
            yield window.GlobalWindows.windowed_value(found)

    def start_bundle(self) -> None:
        self.values = None


class InBag(beam.DoFn):
    """Adds to a bag, and reads it twice at the end of the window."""

    KEPT = userstate.BagStateSpec("kept", BytesCoder())
    END = userstate.TimerSpec("end", userstate.TimeDomain.WATERMARK)

    def process(
        self,
        pair: tuple[str, bytes],
        kept: Any = beam.DoFn.StateParam(KEPT),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        kept.add(pair[1])
        end.set(BeamTimestamp(5))

    @userstate.on_timer(END)
    def ends(self, kept: Any = beam.DoFn.StateParam(KEPT)) -> Iterator[list[str]]:
        values = kept.read()
        found = [digest(values)]
        kept.clear()
        # What was read before the bag was cleared stays readable.
        yield [*found, digest(values)]


class InList(beam.DoFn):
    """Adds to an ordered list, and reads it twice."""

    KEPT = userstate.OrderedListStateSpec("kept", BytesCoder())
    END = userstate.TimerSpec("end", userstate.TimeDomain.WATERMARK)

    def process(
        self,
        pair: tuple[str, bytes],
        time: Any = beam.DoFn.TimestampParam,
        kept: Any = beam.DoFn.StateParam(KEPT),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        kept.add((time, pair[1]))
        end.set(BeamTimestamp(5))

    @userstate.on_timer(END)
    def ends(self, kept: Any = beam.DoFn.StateParam(KEPT)) -> Iterator[list[str]]:
        yield [digest(value for _, value in kept.read()) for _ in range(2)]
        kept.clear()


def grouped(**windowing: Any) -> Any:
    def apply(values: Any) -> Any:
        return values | beam.WindowInto(window.FixedWindows(10), **windowing) | beam.GroupByKey()

    return apply


DISCARDING = trigger.AccumulationMode.DISCARDING
EARLY = trigger.AfterWatermark(early=trigger.AfterCount(10 * VALUES))
CASES: dict[str, Callable[[Any], Any]] = {
    "window": lambda values: grouped()(values) | beam.ParDo(Twice()),
    "allowed lateness": lambda values: grouped(allowed_lateness=60)(values) | beam.ParDo(Twice()),
    "trigger": lambda values: grouped(trigger=EARLY, accumulation_mode=DISCARDING)(values) | beam.ParDo(Twice()),
    "accumulating": lambda values: (
        grouped(
            trigger=trigger.Repeatedly(trigger.AfterCount(VALUES)),
            accumulation_mode=trigger.AccumulationMode.ACCUMULATING,
        )(values)
        | beam.ParDo(Twice())
    ),
    "session": lambda values: values | beam.WindowInto(window.Sessions(10)) | beam.GroupByKey() | beam.ParDo(Twice()),
    "kept": lambda values: grouped()(values) | beam.ParDo(Later()),
    "bag": lambda values: values | beam.ParDo(InBag()),
    "ordered list": lambda values: values | beam.ParDo(InList()),
}


@pytest.mark.contract("STORE-06")
@pytest.mark.parametrize("case", CASES)
def test_values_of_key_may_be_larger_than_memory(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stored, "folder", tmp_path, raising=False)
    monkeypatch.setattr(microbatches, "Shard", Stored)
    peaks: list[int] = []
    moved: list[int] = []
    spill = frames.Chunks.spill
    monkeypatch.setattr(frames.Chunks, "spill", lambda *args: (moved.append(1), spill(*args)))

    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        for first in range(0, VALUES, AT_ONCE):
            last = first + AT_ONCE == VALUES and case == "accumulating"
            if last:
                tracemalloc.start()
            shard.run(MicroBatch([(key, [one]) for key, one in arrived[first : first + AT_ONCE]], MIN_TIMESTAMP))
            arrived[first : first + AT_ONCE] = [arrived[first]] * AT_ONCE
        if not tracemalloc.is_tracing():
            tracemalloc.start()
        moved.clear()
        shard.run(MicroBatch((), MAX_TIMESTAMP))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    p = InMicroBatches(cut)
    with p:
        values = (
            p
            | beam.Create(range(VALUES))
            | beam.Map(lambda n: window.TimestampedValue(("key", value_of(n)), n / VALUES))
            | beam.Map(lambda pair: pair).with_output_types(tuple[str, bytes])
        )
        _ = CASES[case](values) | Collect()
    assert p.values() == [[EXPECTED.hexdigest()] * 2]
    assert peaks[0] < ALLOWED
    if case not in ("kept", "bag"):
        assert not moved, "what no code reads later is not copied"
    assert not p.left
