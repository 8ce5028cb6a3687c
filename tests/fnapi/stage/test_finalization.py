"""Bundle finalization in SDK workers, and what workers cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.fnapi.stage import staterequests
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from tests.fnapi.stage.inworkers import InWorkers, worker_service
from tests.fnapi.stage.test_key_batches import Counting
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import MicroBatch, Shard

finalized: list[int] = []


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with worker_service() as address:
        yield address


class Finalizing(beam.DoFn):
    def process(self, x: int, finalizer: Any = beam.DoFn.BundleFinalizerParam) -> Iterator[int]:
        finalizer.register(lambda: finalized.append(x))
        yield x


@pytest.mark.contract("API-03", "SDF-13")
def test_bundles_are_finalized_after_the_commit_and_only_then(service: str) -> None:
    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        finalizes = shard.of.finalizes
        shard.run(MicroBatch([(key, [one]) for key, one in arrived], MAX_TIMESTAMP, runs=2 if finalizes else 1))
        if finalizes:
            assert finalized == []
            shard.stage.parts.processor.finalize()
            assert sorted(finalized) == [1, 2, 3]

    finalized.clear()
    with InWorkers(service, cut) as p:
        _ = p | beam.Create([1, 2, 3]) | beam.ParDo(Finalizing()) | Collect()
    assert sorted(p.values()) == [1, 2, 3]
    assert sorted(finalized) == [1, 2, 3], "the other attempt is not committed"


@pytest.mark.contract("API-03", "ENG-12")
def test_state_of_an_attempt_that_is_not_committed_is_not_read_from_a_cache(service: str) -> None:
    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        runs = 3 if shard.of.stateful else 1
        for key, one in arrived:
            shard.run(MicroBatch([(key, [one])], MIN_TIMESTAMP, runs=runs))
        shard.run(MicroBatch((), MAX_TIMESTAMP, runs=runs))

    with InWorkers(service, cut) as p:
        arrived = p | beam.Create([("a", 1), ("a", 2)], reshuffle=False)
        _ = arrived | beam.Map(lambda e: e).with_output_types(tuple[str, int]) | beam.ParDo(Counting()) | Collect()
    assert p.values() == [("a", "element", [1]), ("a", "element", [1, 2]), ("a", "end", [1, 2])]


@pytest.mark.contract("API-03", "ENG-12")
def test_cached_first_page_is_followed_by_what_was_appended(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staterequests, "_PAGE", 1)

    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        for some in (arrived[:2], arrived[2:]):
            shard.run(MicroBatch([(key, [one]) for key, one in some], MIN_TIMESTAMP))
        shard.run(MicroBatch((), MAX_TIMESTAMP))

    with InWorkers(service, cut, bundle_elements=1) as p:
        arrived = p | beam.Create([("a", n) for n in range(1, 6)], reshuffle=False)
        _ = arrived | beam.Map(lambda e: e).with_output_types(tuple[str, int]) | beam.ParDo(Counting()) | Collect()
    read = [list(range(1, n + 1)) for n in range(1, 6)]
    assert p.values() == [*(("a", "element", each) for each in read), ("a", "end", read[-1])]
