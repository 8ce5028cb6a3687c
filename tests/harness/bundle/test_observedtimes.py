"""The operation that observes event times, in a stage without Spark: the times it sets, and those it observes."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.utils.timestamp import Timestamp

from arcbeam.harness.batch.batchstage import BoundedStage
from arcbeam.harness.bundle.observedtimes import ObservingOperation
from arcbeam.io import WithWatermark
from tests.harness.drive import Collect, Driven

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
