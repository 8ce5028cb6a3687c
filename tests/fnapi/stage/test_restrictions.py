"""Splittable DoFns in SDK workers: the same results as embedded; splits, delays, watermarks, drains."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.engine.watermarks.clocks import output_time
from arcbeam.errors import UserCodeError
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from tests.fnapi.stage.inworkers import InWorkers, worker_service
from tests.harness.batch.splittables import Numbers, gates
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import MicroBatch, Shard
from tests.harness.streaming.restrictions.test_restrictions import SECOND, Cutting, Endless, InParts, Truncated, build


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with worker_service() as address:
        yield address


def came_one_by_one(arrived: list[tuple[bytes, WindowedElement]]) -> list[Any]:
    return [(key, [one]) for key, one in arrived]


@pytest.mark.contract("API-03", "SDF-03", "SDF-04")
@pytest.mark.parametrize("seed", range(3))
def test_restrictions_are_processed_once_with_valid_watermarks(service: str, seed: int) -> None:
    elements = [random.Random(seed).randrange(12) for _ in range(4)]
    cut = _OnlySplittable(Cutting(seed))
    with InWorkers(service, cut) as p:
        build(p, elements, InParts())
    assert sorted(p.values()) == sorted((element, at) for element in elements for at in range(element))
    assert p.left == []
    times = [time.micros for _, time, _ in p.windowed()]
    assert times == [at * SECOND for _, at in p.values()]
    for promise, before in cut.cutting.promised:
        assert all(time >= promise for time in times[before:])


class _OnlySplittable:
    """Divides the input of splittable stages; others get all at once.

    Args:
        cutting: divides.
    """

    def __init__(self, cutting: Any) -> None:
        self.cutting = cutting

    def __call__(self, shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        if shard.of.splittable:
            self.cutting(shard, arrived)
        else:
            shard.run(MicroBatch(came_one_by_one(arrived), MAX_TIMESTAMP))


@pytest.mark.contract("API-03", "SDF-11")
def test_estimator_advances_output_watermark_and_delays_are_kept(service: str) -> None:
    promised: list[Timestamp] = []
    due: list[Any] = []

    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        for number in range(3):
            some = came_one_by_one(arrived) if number == 0 else ()
            report = shard.run(MicroBatch(some, MAX_TIMESTAMP, Timestamp(2 * number * SECOND)))
            promised.append(output_time(MAX_TIMESTAMP, report.local, "main"))
            due.append(report.next_due)

    with InWorkers(service, _OnlySplittable(cut)) as p:
        build(p, [7], InParts())
    assert promised == [3 * SECOND, 6 * SECOND, MAX_TIMESTAMP]
    # The SDK subtracts what has elapsed since it was deferred.
    assert [time if time is None else round(time / SECOND) for time in due] == [1, 3, None]


@pytest.mark.contract("API-03", "SDF-05", "SDF-06")
@pytest.mark.parametrize("pieces", [1, 3])
def test_exhausted_budget_splits_off_rest(service: str, pieces: int) -> None:
    gates["split"] = threading.Event()
    reports: list[Any] = []

    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        micro_batch = MicroBatch(came_one_by_one(arrived), MAX_TIMESTAMP, looks=1, pieces=pieces)
        reports.append(shard.run(micro_batch))

    with InWorkers(service, _OnlySplittable(cut)) as p:
        build(p, [100], Endless())
    assert (reports[0].restrictions.live, reports[0].restrictions.size) == (pieces, 97)
    assert sorted(p.values()) == [(100, at) for at in range(100)]
    assert p.left == []


@pytest.mark.contract("API-03", "END-02", "SDF-12")
@pytest.mark.parametrize(("drain", "expected"), [(0, 10), (2, 10), (3, 12)])
def test_drain_truncates_waiting_restrictions(service: str, drain: int, expected: int) -> None:
    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        shard.run(MicroBatch(came_one_by_one(arrived), MAX_TIMESTAMP, looks=1, drain=drain == 0))
        for number in range(1, 4):
            shard.run(MicroBatch((), MAX_TIMESTAMP, looks=1, drain=number >= drain))

    with InWorkers(service, _OnlySplittable(cut)) as p:
        build(p, [40], Truncated())
    assert sorted(p.values()) == [(40, at) for at in range(expected)]


def test_error_in_a_restriction_names_the_transform(service: str) -> None:
    class Failing(beam.DoFn):
        def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Numbers())) -> None:
            tracker.try_claim(0)
            raise ValueError("no")

    with pytest.raises(UserCodeError, match="ValueError: no") as raised, InWorkers(service) as p:
        p | beam.Create([3], reshuffle=False) | "Fail" >> beam.ParDo(Failing()) | Collect()
    assert raised.value.step.startswith("Fail")


def test_side_input_of_a_splittable_dofn_is_read(service: str) -> None:
    class Reading(beam.DoFn):
        def process(
            self, element: int, some: Any, tracker: Any = beam.DoFn.RestrictionParam(Numbers())
        ) -> Iterator[Any]:
            at = tracker.current_restriction().start
            while tracker.try_claim(at):
                yield at, sorted(some)
                at += 1

    with InWorkers(service) as p:
        some = p | "Some" >> beam.Create([1, 2])
        p | beam.Create([2], reshuffle=False) | beam.ParDo(Reading(), beam.pvalue.AsIter(some)) | Collect()
    assert sorted(p.values()) == [(0, [1, 2]), (1, [1, 2])]
