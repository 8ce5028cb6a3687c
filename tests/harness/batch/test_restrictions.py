"""Restrictions in one process: each is processed once, deferred, returned and distributed."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.iobase import BoundedSource, Read, SourceBundle
from apache_beam.io.range_trackers import OffsetRangeTracker
from apache_beam.io.restriction_trackers import OffsetRange
from apache_beam.transforms.window import SlidingWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam.harness.operations.taskcontext import TaskSettings
from tests.harness.batch.splittables import (
    SHARDS,
    InPairs,
    Numbers,
    OneByOne,
    Range,
    calls,
    drive,
    expected,
    found,
    note,
)


@pytest.mark.contract("SDF-03")
@pytest.mark.parametrize("limit", [1, 500])
def test_each_restriction_is_processed_once(limit: int) -> None:
    settings = TaskSettings(shards=SHARDS, bundle_elements=limit)
    driven = drive(
        lambda p: p | beam.Create([4, 0, 7, 1], reshuffle=False) | beam.ParDo(Range()) | beam.Map(note), settings
    )
    assert sorted(found) == expected(4, 0, 7, 1)
    assert driven.rounds == 1
    assert not driven.residuals


class InPieces(beam.DoFn):
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(InPairs())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        calls.append((tracker.current_restriction().start, tracker.current_restriction().stop))
        while tracker.try_claim(at):
            yield element, at
            at += 1


@pytest.mark.contract("SDF-08")
def test_initial_splits_are_spread_over_the_shards() -> None:
    driven = drive(lambda p: p | beam.Create([12], reshuffle=False) | beam.ParDo(InPieces()) | beam.Map(note))
    assert sorted(found) == expected(12)
    assert sorted(calls) == [(n, n + 2) for n in range(0, 12, 2)]
    assert len(driven.tasks) == SHARDS


class Unclaimed(beam.DoFn):
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Numbers())) -> None:
        tracker.try_claim(0)


@pytest.mark.contract("SDF-03")
def test_unclaimed_work_fails_and_names_transform() -> None:
    with pytest.raises(ValueError, match=r"not done.* \[while running 'Careless'\]$"):
        drive(lambda p: p | beam.Create([5], reshuffle=False) | "Careless" >> beam.ParDo(Unclaimed()))


@pytest.mark.contract("SDF-04", "SDF-05")
@pytest.mark.parametrize(
    "settings", [TaskSettings(shards=3), TaskSettings(shards=1, bundle_elements=1), TaskSettings(shards=7)]
)
def test_checkpoint_at_every_claim(settings: TaskSettings) -> None:
    drive(lambda p: p | beam.Create([5, 3, 1], reshuffle=False) | beam.ParDo(OneByOne()) | beam.Map(note), settings)
    assert sorted(found) == expected(5, 3, 1)


@pytest.mark.contract("SDF-04")
@pytest.mark.parametrize(
    "delays",
    [lambda: Duration(micros=2_500), lambda: Timestamp.of(time.time()) + Duration(micros=2_500)],
    ids=["a delay", "a time"],
)
def test_deferred_restriction_waits_for_its_time(delays: Callable[[], Any]) -> None:
    drive(lambda p: p | beam.Create([3], reshuffle=False) | beam.ParDo(OneByOne(delays)) | beam.Map(note))
    assert sorted(found) == expected(3)
    times = [at for _, _, at in calls]
    assert all(later - earlier >= 0.0025 for earlier, later in itertools.pairwise(times))


class Timed(OneByOne):
    def process(
        self,
        element: int,
        time: Any = beam.DoFn.TimestampParam,
        tracker: Any = beam.DoFn.RestrictionParam(Numbers()),
    ) -> Iterator[Any]:
        for _, at in super().process(element, tracker):
            yield at, time.micros


@pytest.mark.contract("SDF-11")
@pytest.mark.parametrize("seconds", [0.0, 10.0], ids=["handed back", "kept"])
def test_residual_keeps_microseconds(seconds: float) -> None:
    def build(p: beam.Pipeline) -> Any:
        made = p | beam.Create([3], reshuffle=False)
        timed = made | beam.Map(lambda x: TimestampedValue(x, Timestamp(micros=-1_234_567)))
        return timed | beam.ParDo(Timed()) | beam.Map(note)

    drive(build, TaskSettings(shards=SHARDS, sdf_round_seconds=seconds))
    assert found == [(at, -1_234_567) for at in range(3)]


def test_other_restrictions_run_while_one_waits() -> None:
    settings = TaskSettings(shards=1)
    drive(
        lambda p: (
            p
            | beam.Create([2, 2, 2], reshuffle=False)
            | beam.ParDo(OneByOne(lambda: Duration(micros=40_000)))
            | beam.Map(note)
        ),
        settings,
    )
    assert [at for _, at in found] == [0, 0, 0, 1, 1, 1]


@pytest.mark.contract("SDF-04")
def test_residual_beyond_budget_keeps_its_due_time() -> None:
    settings = TaskSettings(shards=2, sdf_round_seconds=0.002)
    before = time.time()
    driven = drive(
        lambda p: (
            p
            | beam.Create([2], reshuffle=False)
            | beam.ParDo(OneByOne(lambda: Duration(micros=20_123)))
            | beam.Map(note)
        ),
        settings,
    )
    assert sorted(found) == expected(2)
    assert driven.rounds > 1
    (entry,) = driven.residuals[0]
    report = next(r for r in driven.reports if r.residuals)
    assert report.next_due == entry.due / 1e6 >= before + 0.020123
    assert calls[1][2] >= report.next_due


class Stubborn(beam.DoFn):
    """Defers a number of times without claiming anything."""

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Numbers())) -> Iterator[Any]:
        calls.append((time.monotonic(),))
        if len(calls) < 6:
            tracker._threadsafe_restriction_tracker._deferred_residual = tracker.current_restriction()
            tracker._threadsafe_restriction_tracker._restriction_tracker.check_done = lambda: True
            tracker._threadsafe_restriction_tracker._timestamp = Timestamp.now()
        else:
            for at in range(element):
                tracker.try_claim(at)
                yield element, at


@pytest.mark.contract("SDF-12")
def test_restriction_without_progress_is_tried_less_often() -> None:
    drive(lambda p: p | beam.Create([2], reshuffle=False) | beam.ParDo(Stubborn()) | beam.Map(note))
    assert sorted(found) == expected(2)
    pauses = [later - earlier for (earlier,), (later,) in itertools.pairwise(calls)]
    assert all(pause >= 0.001 * 2**n for n, pause in enumerate(pauses[1:], 1))


# Windows, sources, truncation, several at once.


class WithWindow(beam.DoFn):
    def process(
        self, element: int, window: Any = beam.DoFn.WindowParam, tracker: Any = beam.DoFn.RestrictionParam(Numbers())
    ) -> Iterator[Any]:
        at = tracker.current_restriction().start
        if tracker.try_claim(at):
            yield element, at, float(window.start)
            tracker.defer_remainder()


@pytest.mark.contract("SDF-09")
@pytest.mark.parametrize("seconds", [0.0, 10.0])
def test_window_observing_dofn_with_several_windows(seconds: float) -> None:
    drive(
        lambda p: (
            p
            | beam.Create([3], reshuffle=False)
            | beam.Map(lambda n: TimestampedValue(n, 25))
            | beam.WindowInto(SlidingWindows(20, 10))
            | beam.ParDo(WithWindow())
            | beam.Map(note)
        ),
        TaskSettings(shards=SHARDS, sdf_round_seconds=seconds),
    )
    assert sorted(found) == sorted((3, at, start) for at in range(3) for start in (10.0, 20.0))


class Halves(BoundedSource):  # type: ignore[misc]
    """Numbers; waits in the middle until it was split."""

    def __init__(self, stop: int) -> None:
        self._stop = stop

    def estimate_size(self) -> int:
        return self._stop

    def split(self, size: int, start: Any = None, stop: Any = None) -> Iterator[SourceBundle]:
        yield SourceBundle(self._stop, self, 0, self._stop)

    def get_range_tracker(self, start: Any, stop: Any) -> OffsetRangeTracker:
        return OffsetRangeTracker(0 if start is None else start, self._stop if stop is None else stop)

    def read(self, tracker: OffsetRangeTracker) -> Iterator[int]:
        at = tracker.start_position()
        calls.append((at, tracker.stop_position()))
        while tracker.try_claim(at):
            yield at
            if at == 10:
                for _ in range(5000):
                    if tracker.stop_position() < 20:
                        break
                    threading.Event().wait(0.001)
            at += 1


@pytest.mark.contract("SDF-07")
def test_bounded_source_is_split_without_checkpoints() -> None:
    settings = TaskSettings(shards=SHARDS, sdf_round_seconds=0.02)
    driven = drive(lambda p: p | Read(Halves(400)) | beam.Map(note), settings)
    assert sorted(found) == list(range(400))
    assert len(driven.residuals[0]) >= 3
    assert len(driven.tasks) == SHARDS


class Truncated(Numbers):
    """The first truncation keeps three numbers; a second one would keep nothing."""

    def truncate(self, element: int, restriction: OffsetRange) -> OffsetRange | None:
        calls.append((restriction.start, restriction.stop))
        if restriction.start > 0:
            return None
        return OffsetRange(0, 3) if element > 2 else None


class OneByOneTruncated(beam.DoFn):
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Truncated())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        if tracker.try_claim(at):
            yield element, at
            tracker.defer_remainder()


@pytest.mark.contract("SDF-12", "PLAN-03")
@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("seconds", [0.0, 10.0])
def test_truncation_sees_a_restriction_once(fusion: bool, seconds: float) -> None:
    settings = TaskSettings(shards=SHARDS, sdf_round_seconds=seconds)
    drive(
        lambda p: p | beam.Create([9, 2], reshuffle=False) | beam.ParDo(OneByOneTruncated()) | beam.Map(note),
        settings,
        drain=True,
        fusion=fusion,
    )
    assert sorted(found) == [(9, 0), (9, 1), (9, 2)]
    assert sorted(calls) == [(0, 2), (0, 9)]


@pytest.mark.contract("SDF-12")
@pytest.mark.parametrize("fusion", [True, False])
def test_several_splittable_dofns_and_after_grouping(fusion: bool) -> None:
    drive(
        lambda p: (
            p
            | beam.Create([4], reshuffle=False)
            | "First" >> beam.ParDo(OneByOne())
            | beam.MapTuple(lambda element, at: (at % 2, at))
            | beam.GroupByKey()
            | beam.MapTuple(lambda key, values: sum(values))
            | "Second" >> beam.ParDo(OneByOne())
            | beam.Map(note)
        ),
        fusion=fusion,
    )
    assert sorted(found) == expected(0 + 2, 1 + 3)


def test_zero_budget_still_completes() -> None:
    settings = TaskSettings(shards=2, sdf_round_seconds=0.0)
    driven = drive(
        lambda p: p | beam.Create([2, 3, 4, 5], reshuffle=False) | beam.ParDo(OneByOne()) | beam.Map(note), settings
    )
    assert sorted(found) == expected(2, 3, 4, 5)
    assert driven.rounds > 2
