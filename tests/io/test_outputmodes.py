"""Output modes: when a grouping emits results, and when it releases state."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import window

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.io import OutputMode
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from tests.harness.drive import Collect, Driven
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard

SECOND = 1_000_000
ARRIVED = [(1, 1), (2, 2), (4, 12), (8, 3), (16, 4), (32, 13)]
"""Values, and their seconds."""


def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
    """Deliver two elements per micro-batch, a minute each. The fourth moves the watermark past the first window."""
    arrived = sorted(arrived, key=lambda pair: shard.stage.parts.codec.decode(pair[1][0]))
    for n in range(3):
        now = Timestamp(n * 60 * SECOND)
        watermark = Timestamp(11 * SECOND) if n else MIN_TIMESTAMP
        shard.settle(MicroBatch([(key, [one]) for key, one in arrived[2 * n : 2 * n + 2]], watermark, now))
        shard.settle(MicroBatch((), watermark, Timestamp(now + 30 * SECOND)))
    assert shard.left_over()


def sums(windowing: Any, p: Any) -> list[int]:
    with p:
        timed = (
            p | beam.Create(ARRIVED, reshuffle=False) | beam.Map(lambda e: window.TimestampedValue(("k", e[0]), e[1]))
        )
        keyed = timed | beam.Map(lambda kv: kv).with_output_types(tuple[str, int])
        keyed | windowing | beam.GroupByKey() | beam.MapTuple(lambda _, values: sum(values)) | Collect()
    if isinstance(p, InMicroBatches):
        assert not p.left
    return p.values()  # type: ignore[no-any-return]


MODES: dict[str, tuple[Any, list[int], list[int]]] = {
    # The first window has ended when 8 arrives in the same micro-batch, but the watermark passes its end afterwards. 16
    # is too late.
    "append": (OutputMode.append(window.FixedWindows(10)), [11, 36], [27, 36]),
    "update": (OutputMode.update(window.FixedWindows(10)), [3, 11, 4, 36], [27, 36]),
    "update, late": (OutputMode.update(window.FixedWindows(10), allowed_lateness=60), [3, 11, 27, 4, 36], [27, 36]),
    "update, slowly": (OutputMode.update(window.FixedWindows(10), every=100), [11, 36], [27, 36]),
    "complete": (OutputMode.complete(), [3, 15, 63], [63]),
}


@pytest.mark.contract("WM-05")
@pytest.mark.parametrize("mode", MODES)
def test_mode_determines_results_of_micro_batches(mode: str) -> None:
    windowing, streaming, _ = MODES[mode]
    assert sorted(sums(windowing, InMicroBatches(cut))) == sorted(streaming)


@pytest.mark.contract("WM-05")
@pytest.mark.parametrize("mode", MODES)
def test_batch_emits_each_result_once(mode: str) -> None:
    windowing, _, in_batch = MODES[mode]
    assert sorted(sums(windowing, Driven(shards=1))) == in_batch


def test_invalid_modes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"OutputMode\.append"):
        OutputMode.append(window.GlobalWindows())
    with pytest.raises(ValueError, match=r"OutputMode\.append\(60\): .*FixedWindows\(60\)"):
        OutputMode.append(60)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"OutputMode\.update\(None\): .*WindowFn"):
        OutputMode.update(None)  # type: ignore[arg-type]
    for lateness, shown in ((-1, "-1"), ("1 h", "'1 h'")):
        with pytest.raises(ValueError, match=rf"OutputMode\.update\(allowed_lateness={shown}\)"):
            OutputMode.update(window.FixedWindows(1), allowed_lateness=lateness)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every=-1"):
        OutputMode.complete(every=-1)
