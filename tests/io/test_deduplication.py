"""Deduplication in event time, compared with an independent computation, for any order of elements."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import window

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.io import DeduplicateWithinWatermark, deduplication
from arcbeam.io.deduplication import _field
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP, Timestamp
from tests.harness.drive import Collect, Driven
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard

SECOND = 1_000_000
Events = list[tuple[str, int, int]]


def events(seed: int) -> Events:
    """Return random (id, number, second)."""
    chance = random.Random(seed)
    return [(chance.choice("abc"), n, chance.randrange(60)) for n in range(chance.choice([1, 10, 40]))]


def kept(arrived: Events, delay: int, size: int = 0) -> list[Any]:
    """Return the elements that remain, for this order of arrival."""
    out: Events = []
    for key, n, at in arrived:
        near = (other for other in out if other[0] == key and (not size or other[2] // size == at // size))
        if all(abs(at - then) > delay for _, _, then in near):
            out.append((key, n, at))
    return sorted(out)


def build(p: Any, of: Events, delay: Any, size: int = 0) -> None:
    timed = p | beam.Create(of, reshuffle=False) | beam.Map(lambda event: window.TimestampedValue(event, event[2]))
    if size:
        timed = timed | beam.WindowInto(window.FixedWindows(size))
    timed | DeduplicateWithinWatermark(delay, key=lambda event: event[0]) | Collect()


@pytest.mark.parametrize("delay", [0, 3, 20, 1000])
@pytest.mark.parametrize("size", [0, 10])
def test_batch_keeps_one_of_close_duplicates(delay: int, size: int) -> None:
    for seed in range(5):
        of = events(seed)
        with Driven(shards=1) as p:
            build(p, of, delay, size)
        assert sorted(p.values()) == kept(of, delay, size)
        assert all(time.micros == at * SECOND for (_, _, at), time, _ in p.windowed())


@pytest.mark.contract("WM-08")
@pytest.mark.parametrize("delay", [0, 3, 20, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_micro_batches_keep_same_elements_and_forget_all(
    delay: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deduplication, "ELEMENTS_MAX", (deduplication.ELEMENTS_MAX, 0, 3)[seed % 3])
    of, chance = events(seed), random.Random(seed)
    order: Events = []

    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        """Deliver elements out of order, but none after the watermark has passed its time."""
        chance.shuffle(arrived)
        order.extend(
            shard.stage.parts.codec.decode(value) if shard.stage.parts.codec.waits else value
            for _, (value, *_) in arrived
        )
        watermark = MIN_TIMESTAMP
        while arrived:
            some = chance.randrange(1, 5)
            now, arrived = arrived[:some], arrived[some:]
            shard.run(MicroBatch([(key, [one]) for key, one in now], watermark, runs=chance.choice([1, 2])))
            watermark = max(watermark, min((one[1] for _, one in arrived), default=watermark))
            shard.settle(MicroBatch((), watermark))
        last = max(at for _, _, at in of)
        shard.settle(MicroBatch((), Timestamp((last + delay) * SECOND + 1)))
        assert not shard.left_over()

    with InMicroBatches(cut) as p:
        build(p, of, delay)
    assert sorted(p.values()) == kept(order, delay)


@pytest.mark.contract("WM-08")
def test_many_elements_at_limits_of_event_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "ELEMENTS_MAX", 0)
    ends = MIN_TIMESTAMP // SECOND + 1, END_OF_GLOBAL_WINDOW // SECOND - 1
    arrived: Events = [("k", f"{end}", end) for end in ends for _ in range(3)]
    with InMicroBatches(None) as p:
        build(p, arrived, 2 * 86400)
    assert len(p.values()) == 2


def test_default_key_is_whole_element() -> None:
    arrived = [("x", 1), ("y", 2), ("x", 3), ("x", 9)]
    with Driven(shards=1) as p:
        timed = p | beam.Create(arrived, reshuffle=False) | beam.Map(lambda e: window.TimestampedValue(*e))
        timed | beam.Map(str).with_output_types(str) | DeduplicateWithinWatermark(5) | Collect()
    assert sorted(p.timestamped()) == [("x", 1), ("x", 9), ("y", 2)]


def test_key_may_be_field_name() -> None:
    arrived = [("x", 1), ("y", 2), ("x", 3), ("x", 9)]
    with Driven(shards=1) as p:
        timed = (
            p | beam.Create(arrived, reshuffle=False) | beam.Map(lambda e: window.TimestampedValue({"id": e[0]}, e[1]))
        )
        kept = timed | DeduplicateWithinWatermark(timedelta(seconds=5), "id")
        kept | beam.Map(lambda e: e["id"]).with_output_types(str) | Collect()
    assert sorted(p.timestamped()) == [("x", 1), ("x", 9), ("y", 2)]
    assert _field("name", Path("a/b")) == "b"
    with pytest.raises(ValueError, match=r"no field 'it', .*: \{'id': 1\}"):
        _field("it", {"id": 1})


def test_negative_delay_and_invalid_key_are_refused() -> None:
    typed = beam.Pipeline() | beam.Create([beam.Row(id=1)])
    with pytest.raises(ValueError, match=r"Within.*: unknown field 'it'; .* 'id'"):
        _ = typed | DeduplicateWithinWatermark(5, "it")
    with pytest.raises(ValueError, match="delay=-1"):
        DeduplicateWithinWatermark(-1)
    with pytest.raises(ValueError, match=r"key=5\)"):
        DeduplicateWithinWatermark(1, 5)  # type: ignore[arg-type]
