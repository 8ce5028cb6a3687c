"""Splittable DoFns in a streaming job, divided randomly: exactly once; splits, delays, watermarks, drains."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.io.restriction_trackers import OffsetRange
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration
from apache_beam.utils.timestamp import Timestamp as SdkTimestamp

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.engine.watermarks.clocks import output_time
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from tests.harness.batch.splittables import Claimed, Numbers, gates
from tests.harness.drive import Collect, Driven, _collected
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard
from tests.harness.streaming.restrictions.restricting import Unsplit

SECOND = 1_000_000


class InParts(beam.DoFn):
    """Outputs numbers with times, some at once; defers the rest, with or without a delay."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(Numbers()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield TimestampedValue((element, at), at)
            at += 1
            estimator.set_watermark(beam.utils.timestamp.Timestamp(at))
            if at % 3 == 0:
                tracker.defer_remainder(Duration(element % 3) if element % 2 else None)
                return


class Cutting:
    """Divides randomly.

    Args:
        seed: seed of the random choices.

    Attributes:
        promised: for each micro-batch, the watermark, and how many elements had arrived by then.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.promised: list[tuple[Timestamp, int]] = []

    def __call__(self, shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        chance, now = self.chance, Timestamp(0)
        while arrived or shard.left_over():
            size = chance.choice([0, 1, 5])
            some, arrived = [(key, [one]) for key, one in arrived[:size]], arrived[size:]
            now = Timestamp(now + chance.choice([0, SECOND // 2, 5 * SECOND]))
            looks, runs, fresh = chance.choice([1, 3, 1000]), chance.choice([1, 1, 2]), chance.random() < 0.1
            upstream = MIN_TIMESTAMP if arrived else MAX_TIMESTAMP
            report = shard.run(MicroBatch(some, upstream, now, looks, runs, fresh))
            there = output_time(upstream, report.local, "main")
            self.promised.append((there, len(_collected[f"{shard.run_id}:"])))


def build(p: Driven, elements: list[int], dofn: beam.DoFn) -> None:
    p | beam.Create(elements, reshuffle=False) | beam.ParDo(dofn) | Collect()


@pytest.mark.contract("SDF-03", "SDF-04", "SDF-11", "ENG-08")
@pytest.mark.parametrize("seed", range(8))
def test_restrictions_are_processed_once_with_valid_watermarks(seed: int) -> None:
    elements = [random.Random(seed).randrange(12) for _ in range(6)]
    cut = Cutting(seed)
    with InMicroBatches(cut) as here:
        build(here, elements, InParts())
    expected = sorted((element, at) for element in elements for at in range(element))
    assert sorted(here.values()) == expected
    assert here.left == []
    times = [time.micros for _, time, _ in here.windowed()]
    assert times == [at * SECOND for _, at in here.values()]
    for promise, before in cut.promised:
        assert all(time >= promise for time in times[before:])


@pytest.mark.contract("ENG-01", "SDF-11")
def test_estimator_advances_output_watermark() -> None:
    promised: list[Timestamp] = []

    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        some = [(key, [one]) for key, one in arrived]
        for number in range(3):
            micro_batch = MicroBatch(some if number == 0 else (), MAX_TIMESTAMP, Timestamp(2 * number * SECOND))
            promised.append(output_time(MAX_TIMESTAMP, shard.run(micro_batch).local, "main"))

    with InMicroBatches(cut) as p:
        build(p, [7], InParts())
    assert promised == [3 * SECOND, 6 * SECOND, MAX_TIMESTAMP]


@pytest.mark.contract("ENG-01", "SDF-02")
@pytest.mark.parametrize("promise", [MIN_TIMESTAMP + 1, -1_500, END_OF_GLOBAL_WINDOW - 1])
def test_estimator_may_report_any_time(promise: int) -> None:
    promised: list[Timestamp] = []

    class Promising(beam.DoFn):
        def process(
            self,
            element: int,
            tracker: Any = beam.DoFn.RestrictionParam(Numbers()),
            estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
        ) -> None:
            tracker.try_claim(tracker.current_restriction().start)
            estimator.set_watermark(SdkTimestamp(micros=promise))
            tracker.defer_remainder()

    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        report = shard.run(MicroBatch([(key, [one]) for key, one in arrived], MAX_TIMESTAMP))
        promised.append(output_time(MAX_TIMESTAMP, report.local, "main"))

    with InMicroBatches(cut) as p:
        build(p, [3], Promising())
    assert promised == [promise]


class Timed(beam.DoFn):
    """Defers the rest after each number."""

    def process(
        self,
        element: int,
        time: Any = beam.DoFn.TimestampParam,
        tracker: Any = beam.DoFn.RestrictionParam(Numbers()),
    ) -> Iterator[Any]:
        at = tracker.current_restriction().start
        if tracker.try_claim(at):
            yield at, time.micros
            tracker.defer_remainder()


@pytest.mark.contract("ENG-01", "SDF-11")
@pytest.mark.parametrize("micros", [MIN_TIMESTAMP + 1, -1_500, -1, 1_234_567, END_OF_GLOBAL_WINDOW - 1])
def test_residual_keeps_microseconds(micros: int) -> None:
    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        shard.run(MicroBatch([(key, [one]) for key, one in arrived], MAX_TIMESTAMP))

    with InMicroBatches(cut) as p:
        timed = (
            p | beam.Create([3], reshuffle=False) | beam.Map(lambda x: TimestampedValue(x, SdkTimestamp(micros=micros)))
        )
        timed | beam.ParDo(Timed()) | Collect()
    assert [(value, time.micros) for value, time, _ in p.windowed()] == [((at, micros), micros) for at in range(3)]


class Endless(beam.DoFn):
    """Does not return before it was split."""

    class Provider(Numbers):
        tracker = Claimed

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Provider())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield element, at
            if at == 2:
                assert gates["split"].wait(5)
            at += 1


@pytest.mark.contract("SDF-05", "SDF-06")
def test_exhausted_budget_splits_off_rest() -> None:
    gates["split"] = threading.Event()
    reports: list[Any] = []

    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        reports.append(shard.run(MicroBatch([(key, [one]) for key, one in arrived], MAX_TIMESTAMP, looks=1)))

    with InMicroBatches(cut) as p:
        build(p, [100], Endless())
    assert (reports[0].restrictions.live, reports[0].restrictions.size) == (1, 97)
    assert sorted(p.values()) == [(100, at) for at in range(100)]
    assert p.left == []


class WholeTracker(RestrictionTracker):
    """Tracks a restriction that is processed as a whole. It is an empty tuple, which is false."""

    def __init__(self, restriction: tuple[int, ...] | str) -> None:
        self._restriction, self._done = restriction, False

    def current_restriction(self) -> Any:
        return self._restriction

    def try_claim(self, position: Any) -> bool:
        self._done = True
        return True

    def try_split(self, fraction_of_remainder: float) -> Any:
        if self._done or fraction_of_remainder:
            return None
        rest, self._restriction, self._done = self._restriction, "nothing", True
        return self._restriction, rest

    def check_done(self) -> bool:
        return self._done

    def current_progress(self) -> RestrictionProgress:
        return RestrictionProgress(completed=0, remaining=1)

    def is_bounded(self) -> bool:
        return True


class Whole(beam.RestrictionProvider):
    def initial_restriction(self, element: int) -> tuple[int, ...]:
        return ()

    def create_tracker(self, restriction: Any) -> WholeTracker:
        return WholeTracker(restriction)

    def restriction_size(self, element: int, restriction: Any) -> int:
        return 1

    def truncate(self, element: int, restriction: Any) -> Any:
        return restriction


class DefersTwice(beam.DoFn):
    def setup(self) -> None:
        self._deferred = 0

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Whole())) -> Iterator[Any]:
        if self._deferred < 2:
            self._deferred += 1
            tracker.defer_remainder()
        elif tracker.try_claim(None):
            yield element, tracker.current_restriction()


@pytest.mark.parametrize("drain", [False, True])
def test_deferred_restriction_that_is_false_is_processed(drain: bool) -> None:
    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        shard.run(MicroBatch([(key, [one]) for key, one in arrived], MAX_TIMESTAMP, looks=1))
        for _ in range(3):
            shard.run(MicroBatch((), MAX_TIMESTAMP, looks=1, drain=drain))

    with InMicroBatches(cut) as p:
        build(p, [7], DefersTwice())
    assert p.values() == [(7, ())]


class UpToTen(Unsplit):
    def truncate(self, element: int, restriction: OffsetRange) -> OffsetRange | None:
        if restriction.start >= 10:
            return None
        return OffsetRange(restriction.start, min(10, restriction.stop))


class Truncated(beam.DoFn):
    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(UpToTen())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield element, at
            at += 1
            if at % 4 == 0:
                tracker.defer_remainder()
                return


@pytest.mark.contract("END-02", "SDF-12", "PLAN-03")
@pytest.mark.parametrize(("drain", "expected"), [(0, 10), (1, 10), (2, 10), (3, 12)])
def test_drain_truncates_waiting_restrictions(drain: int, expected: int) -> None:
    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        shard.run(MicroBatch([(key, [one]) for key, one in arrived], MAX_TIMESTAMP, looks=1, drain=drain == 0))
        for number in range(1, 4):
            shard.run(MicroBatch((), MAX_TIMESTAMP, looks=1, drain=number >= drain))

    with InMicroBatches(cut) as p:
        build(p, [40], Truncated())
    assert sorted(p.values()) == [(40, at) for at in range(expected)]
