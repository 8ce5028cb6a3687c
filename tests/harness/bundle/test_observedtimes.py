"""The operation that observes event times: which times it sets, and which it observes, in each task afresh."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import userstate
from apache_beam.utils.timestamp import Timestamp

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.task.bundles import BundleResult
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.harness.batch.batchstage import BoundedStage
from arcbeam.harness.bundle.observedtimes import ObservingOperation
from arcbeam.harness.streaming.runner import StreamingRunner
from arcbeam.io import WithWatermark
from arcbeam.model.timestamps import MAX_TIMESTAMP
from arcbeam.testing.views import MemoryView
from tests.harness.drive import Collect, Driven, _ListOutbox
from tests.harness.streaming.microbatches import NUMBER, InMicroBatches, MicroBatch, Shard

_COUNT = 2_000
"""More than a block of different elements."""


def _half_seconds(n: int) -> float:
    return n / 2


def _stamp(n: int) -> Timestamp:
    return Timestamp(micros=n * 500_000)


@pytest.mark.contract("WM-01")
@pytest.mark.parametrize("time_of", [_half_seconds, _stamp])
def test_block_gets_times_and_latest_is_observed(time_of: Any) -> None:
    observers: list[ObservingOperation] = []

    def watch(stage: BoundedStage) -> None:
        for op in stage.processor.sdk.ops.values():
            if isinstance(op, ObservingOperation):
                op.watched = True
                observers.append(op)

    with Driven(shards=1, prepare=watch) as p:
        numbers = (
            p
            | beam.Create([_COUNT], reshuffle=False)
            | beam.FlatMap(lambda count: range(count))
            | beam.Map(lambda n: n)
        )
        _ = numbers | WithWatermark(time_of, 60) | beam.Map(lambda n: n) | Collect()
    assert p.timestamped() == [(n, n / 2) for n in range(_COUNT)]
    (observer,) = observers
    assert observer.take_latest() == (_COUNT - 1) * 500_000
    assert observer.take_latest() is None


OBSERVERS: dict[str, dict[str, Any]] = {
    "latest": {},
    "unconfirmed": {"max_jump": 5, "confirmed_by": 3},
    "sketch": {"quantile": 0.5},
}


class Numbers(beam.DoFn):
    """Outputs the number of each pair; a stage with state is processed key by key."""

    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def process(self, pair: tuple[str, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> Any:
        seen.add(1)
        yield pair[1]


@pytest.mark.contract("WM-04")
@pytest.mark.parametrize("kind", OBSERVERS)
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "ended early"])
def test_task_observes_its_own_times_alone(kind: str, finished: bool) -> None:
    """Two attempts in one process, of which the first one may end before it reports."""
    if kind == "sketch":
        pytest.importorskip("datasketches")
    found: list[BundleResult] = []

    def observed(shard: Shard, arrived: list[tuple[bytes, WindowedElement]], finish: bool = True) -> BundleResult:
        parts = shard.stage.parts
        parts.processor.begin_task(_ListOutbox(), 0, shard.sides.writer, shard.sides)
        runner = StreamingRunner(parts, MemoryView(), StagePlacement(StageFlow("it", (), ("main",)), NUMBER, 0))
        for key, element in arrived:
            runner.process(key, [element])
        result = runner.finish() if finish else BundleResult()
        parts.processor.abandon_task()
        return result

    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        late, early = arrived[:4], arrived[4:]
        found.append(observed(shard, early))
        observed(shard, late, finished)
        found.append(observed(shard, early))
        shard.run(MicroBatch([(key, [one]) for key, one in arrived], MAX_TIMESTAMP))

    with InMicroBatches(cut) as p:
        pairs = [("k", n) for n in (900, 901, 902, 990, 1, 2, 3, 4, 70)]
        numbers = p | beam.Create(pairs, reshuffle=False) | beam.ParDo(Numbers())
        _ = numbers | WithWatermark(lambda n: n, 60, **OBSERVERS[kind]) | Collect()
    first, second = found
    assert (second.seen, second.sketches, second.unconfirmed) == (first.seen, first.sketches, first.unconfirmed)
    assert any((first.seen, first.sketches, first.unconfirmed))
