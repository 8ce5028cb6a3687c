"""Restrictions that are split while they run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.utils.timestamp import Duration

from arcbeam.harness.operations.taskcontext import TaskSettings
from tests.harness.batch.splittables import SHARDS, Claimed, Numbers, calls, drive, expected, found, gates, note


class ClaimedNumbers(Numbers):
    tracker = Claimed


class Lagging(beam.DoFn):
    """Waits after the second claim until it was checkpointed."""

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(ClaimedNumbers())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        calls.append(("start", at))
        while tracker.try_claim(at):
            yield element, at
            if at == 2:
                assert gates["split"].wait(5)
            at += 1


@pytest.mark.contract("SDF-06", "SDF-07")
def test_lagging_restriction_is_split_for_all_shards() -> None:
    gates["split"] = threading.Event()
    settings = TaskSettings(shards=SHARDS, sdf_round_seconds=0.02)
    driven = drive(lambda p: p | beam.Create([100], reshuffle=False) | beam.ParDo(Lagging()) | beam.Map(note), settings)
    assert sorted(found) == expected(100)
    assert [fraction for what, fraction in calls if what == "split"][:3] == [2 / 3, 1 / 2, 0]
    assert len(driven.residuals[0]) == 3
    assert sum(entry.size for entry in driven.residuals[0]) == 97
    assert len(driven.tasks) == SHARDS, "the pieces are distributed over all shards"


class LaggingOnce(beam.DoFn):
    """The first element lags; the others are not started before it was split."""

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(ClaimedNumbers())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield element, at
            if at == 2 and element == 50:
                assert gates["split"].wait(5)
            at += 1


@pytest.mark.contract("SDF-05", "SDF-07")
def test_lagging_restriction_is_only_stopped_if_shards_have_work() -> None:
    gates["split"] = threading.Event()
    settings = TaskSettings(shards=2, sdf_round_seconds=0.02)
    driven = drive(
        lambda p: p | beam.Create([50, 49, 48, 40], reshuffle=False) | beam.ParDo(LaggingOnce()) | beam.Map(note),
        settings,
    )
    assert sorted(found) == expected(50, 49, 48, 40)
    assert [fraction for _, fraction in calls][:1] == [0]
    returned = driven.residuals[0]
    assert 47 in {entry.size for entry in returned if not entry.fresh}, "it was stopped after the third claim"
    # The round of the other shard may have ended early, too.
    assert 40 in {entry.size for entry in returned if entry.fresh}, "the other restriction of its shard was returned"


class SplitAndDefer(beam.DoFn):
    """Is split while it runs, and then defers the rest."""

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Numbers())) -> Iterator[Any]:
        restriction = tracker.current_restriction()
        at = restriction.start
        calls.append((restriction.start, restriction.stop, time.time()))
        while tracker.try_claim(at):
            yield element, at
            if at == 2 and restriction.stop == 40:
                for _ in range(5000):
                    if tracker.current_restriction().stop < 40:
                        break
                    threading.Event().wait(0.001)
                tracker.defer_remainder(Duration(micros=3_000))
                return
            at += 1


class HalvesTracker(OffsetRestrictionTracker):  # type: ignore[misc]
    """The runner can split it once, in the middle."""

    def try_split(self, fraction_of_remainder: float) -> Any:
        if threading.current_thread().name == "splitter" and (fraction_of_remainder != 0.5 or self._range.stop < 40):
            return None
        return super().try_split(fraction_of_remainder)


class HalvesOfNumbers(Numbers):
    tracker = HalvesTracker


class SplitAndDeferHalves(SplitAndDefer):
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(HalvesOfNumbers())) -> Iterator[Any]:
        yield from super().process(element, tracker)


@pytest.mark.contract("SDF-05")
def test_split_and_deferral_are_each_processed_once() -> None:
    settings = TaskSettings(shards=2, sdf_round_seconds=0.02)
    driven = drive(
        lambda p: p | beam.Create([40], reshuffle=False) | beam.ParDo(SplitAndDeferHalves()) | beam.Map(note),
        settings,
    )
    assert sorted(found) == expected(40)
    dues = [entry.due for entry in driven.residuals[0]]
    assert dues.count(0) == 1, "the split's residual may continue at once"
    assert any(dues), "the deferral's residual has its time"
    first, deferred = calls[0], next(call for call in calls if call[0] == 3)
    assert deferred[2] - first[2] >= 0.003


class Plain(RestrictionTracker):  # type: ignore[misc]
    """A minimal tracker: no progress, no splits."""

    def __init__(self, restriction: OffsetRange) -> None:
        self._restriction, self._claimed = restriction, restriction.start

    def current_restriction(self) -> OffsetRange:
        return self._restriction

    def try_claim(self, position: int) -> bool:
        if position < self._restriction.stop:
            self._claimed = position + 1
            return True
        return False

    def check_done(self) -> bool:
        if self._claimed < self._restriction.stop:
            raise ValueError("not done")
        return True

    def is_bounded(self) -> bool:
        return True


class PlainNumbers(Numbers):
    tracker = Plain


class Unhelpful(Plain):
    """Never splits; breaks when its progress is requested."""

    def try_split(self, fraction_of_remainder: float) -> Any:
        calls.append((fraction_of_remainder,))
        if len(calls) > 10:
            gates["asked"].set()

    def current_progress(self) -> RestrictionProgress:
        raise ZeroDivisionError


class UnhelpfulNumbers(Numbers):
    tracker = Unhelpful


class Slow(beam.DoFn):
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(PlainNumbers())) -> Iterator[Any]:
        for at in range(element):
            assert tracker.try_claim(at)
            yield element, at
            threading.Event().wait(0.01)


class SlowUnhelpful(beam.DoFn):
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(UnhelpfulNumbers())) -> Iterator[Any]:
        for at in range(element):
            assert tracker.try_claim(at)
            yield element, at
            assert gates["asked"].wait(5)


@pytest.mark.contract("SDF-12")
def test_tracker_without_progress_runs_to_its_end() -> None:
    settings = TaskSettings(shards=2, sdf_round_seconds=0.001)
    drive(lambda p: p | beam.Create([3], reshuffle=False) | beam.ParDo(Slow()) | beam.Map(note), settings)
    assert sorted(found) == expected(3)


@pytest.mark.contract("SDF-12")
def test_unsplittable_tracker_gets_fewer_split_requests() -> None:
    gates["asked"] = threading.Event()
    settings = TaskSettings(shards=2, sdf_round_seconds=0.001)
    drive(lambda p: p | beam.Create([2], reshuffle=False) | beam.ParDo(SlowUnhelpful()) | beam.Map(note), settings)
    assert sorted(found) == expected(2)
    assert set(calls) == {(1 / 2,), (0.0,), (1 / 64,), (1 / 8,)}


class Broken(OffsetRestrictionTracker):  # type: ignore[misc]
    def try_split(self, fraction_of_remainder: float) -> Any:
        gates["asked"].set()
        raise KeyError("halfway")


class BrokenNumbers(Numbers):
    tracker = Broken


class WaitsForSplit(beam.DoFn):
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(BrokenNumbers())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield element, at
            at += 1
            assert gates["asked"].wait(5)


def test_failing_split_names_transform() -> None:
    gates["asked"] = threading.Event()
    settings = TaskSettings(shards=2, sdf_round_seconds=0.001)
    with pytest.raises(RuntimeError, match=r"KeyError in a split: 'halfway' .*while running 'Breaks'"):
        drive(lambda p: p | beam.Create([9], reshuffle=False) | "Breaks" >> beam.ParDo(WaitsForSplit()), settings)


class Endless(beam.DoFn):
    """Does not return until it is stopped; waits before its first claim for longer than its task's time."""

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Numbers())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        calls.append((at,))
        threading.Event().wait(0.01)
        while tracker.try_claim(at):
            yield element, at
            at += 1
            if at > 3:
                threading.Event().wait(0.0005)


@pytest.mark.contract("SDF-06")
def test_endless_process_continues_in_rounds() -> None:
    settings = TaskSettings(shards=1, sdf_round_seconds=0.005)
    driven = drive(lambda p: p | beam.Create([60], reshuffle=False) | beam.ParDo(Endless()) | beam.Map(note), settings)
    assert sorted(found) == expected(60)
    assert driven.rounds > 2
    assert len({at for (at,) in calls}) == len(calls), "each round made a claim before it was stopped"
