"""DoFns that require stable input, in a streaming job: elements in several windows, restrictions, keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms import userstate
from apache_beam.transforms.window import SlidingWindows, TimestampedValue

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from tests.harness.batch.splittables import Range
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard


def _stable(proto: Any) -> None:
    """Set the requirement on transforms of this name."""
    for transform in proto.components.transforms.values():
        if transform.unique_name == "Stable" and transform.spec.urn == common_urns.primitives.PAR_DO.urn:
            payload = runner_pb.ParDoPayload.FromString(transform.spec.payload)
            payload.requires_stable_input = True
            transform.spec.payload = payload.SerializeToString()


class Numbered(beam.DoFn):
    """Numbers the elements of its key."""

    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def process(self, element: Any, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Any]:
        seen.add(1)
        yield (*element, seen.read())


def _one_by_one(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
    """Run each element in its own micro-batch, twice."""
    waiting = 0
    for key, one in arrived:
        report = shard.run(MicroBatch([(key, [one])], MIN_TIMESTAMP, runs=2))
        assert report.uncommitted
        assert (report.counts.read, report.counts.unblocked) == (1, waiting), (
            "what came in the micro-batch before continues"
        )
        waiting = len(one[2])
    shard.settle(MicroBatch((), MAX_TIMESTAMP, fresh=True))


@pytest.mark.contract("API-04")
def test_stable_input_of_plain_stage() -> None:
    with InMicroBatches(_one_by_one, edit=_stable) as p:
        timed = p | beam.Create([1, 2, 3], reshuffle=False) | beam.Map(lambda n: TimestampedValue(n, n))
        windowed = timed | beam.WindowInto(SlidingWindows(4, 2))
        _ = windowed | "Stable" >> beam.Map(lambda n, of=beam.DoFn.WindowParam: (n, int(of.start))) | Collect()
    assert sorted(p.values()) == [(1, -2), (1, 0), (2, 0), (2, 2), (3, 0), (3, 2)]
    assert p.left == []


@pytest.mark.contract("API-04")
def test_stable_input_of_stateful_stage() -> None:
    with InMicroBatches(_one_by_one, edit=_stable) as p:
        _ = (
            p
            | beam.Create(list("abab"), reshuffle=False)
            | beam.Map(lambda k: (k, "x"))
            | "Stable" >> beam.ParDo(Numbered())
            | Collect()
        )
    assert sorted(p.values()) == [("a", "x", 1), ("a", "x", 2), ("b", "x", 1), ("b", "x", 2)]


@pytest.mark.contract("API-04", "SDF-12")
def test_stable_input_of_splittable_stage() -> None:
    with InMicroBatches(_one_by_one, edit=_stable) as p:
        _ = p | beam.Create([2, 3], reshuffle=False) | "Stable" >> beam.ParDo(Range()) | Collect()
    assert sorted(p.values()) == sorted((n, at) for n in (2, 3) for at in range(n))
    assert p.left == []
