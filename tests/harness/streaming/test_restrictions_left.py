"""What restrictions leave in a streaming job: when it goes on, what it holds, and where it comes out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.iobase import WatermarkEstimator
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import MonotonicWatermarkEstimator
from apache_beam.transforms.core import WatermarkEstimatorProvider
from apache_beam.transforms.window import SlidingWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.engine.watermarks.clocks import output_time
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from tests.harness.batch.splittables import Numbers, Range, calls, gates
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard
from tests.harness.streaming.restricting import FirstOf, Unsplit, exhausted, exhausted_when_told, stop
from tests.harness.streaming.test_restrictions import SECOND, build


@pytest.fixture(autouse=True)
def forgotten() -> None:
    calls.clear()
    gates.clear()


class Halves(OffsetRestrictionTracker):  # type: ignore[misc]
    """Lets others split it once, in the middle."""

    def try_split(self, fraction_of_remainder: float) -> Any:
        if threading.current_thread().name == "splitter":
            if fraction_of_remainder != 0.5 or self._range.stop < 40:
                return None
            split = super().try_split(fraction_of_remainder)
            gates["split"].set()
            return split
        return super().try_split(fraction_of_remainder)


class SplitAndDefer(beam.DoFn):
    """Is split while it runs, and then defers what it was left with."""

    class Provider(Numbers):
        tracker = Halves

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Provider())) -> Iterator[Any]:
        restriction = tracker.current_restriction()
        at = restriction.start
        while tracker.try_claim(at):
            calls.append((element, at))
            yield element, at
            at += 1
            if at == 3 and restriction.stop == 40:
                stop()
                tracker.defer_remainder(Duration(3600))
                return


@pytest.mark.contract("SDF-04", "SDF-05")
def test_the_split_and_the_deferral_of_one_bundle_each_have_their_time_and_are_processed_once() -> None:
    later = 3601 * SECOND
    cut = FirstOf(
        exhausted_when_told(takes=SECOND, pieces=2), exhausted(now=Timestamp(SECOND)), exhausted(now=Timestamp(later))
    )
    with InMicroBatches(cut) as p:
        build(p, [40], SplitAndDefer())
    first, second, third = cut.reports
    assert (first.restrictions.live, first.restrictions.ready, first.next_due) == (2, 1, Timestamp(0))
    assert (second.restrictions.live, second.restrictions.ready) == (1, 0)
    # Whatever of an hour had passed when the process returned; counted from the clock, not from the micro-batch's
    # beginning.
    assert second.next_due is not None
    assert SECOND < second.next_due <= later
    assert third.restrictions.live == 0
    assert sorted(p.values()) == [(40, at) for at in range(40)]


class DefersTo(beam.DoFn):
    """Defers once, to a time."""

    def __init__(self, to: Any) -> None:
        self._to = to

    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Unsplit())) -> Iterator[Any]:
        calls.append(("process",))
        at = tracker.current_restriction().start
        if at == 0:
            tracker.try_claim(0)
            yield element, 0
            tracker.defer_remainder(self._to)
            return
        yield from Range().process(element, tracker)


@pytest.mark.contract("SDF-04")
@pytest.mark.parametrize("seconds", [0.25, 86_400.000_001])
def test_it_is_due_to_the_microsecond_and_not_looked_at_before(seconds: float) -> None:
    delay = Duration(seconds)
    due: list[int] = []

    def run(shard: Shard, came: list[tuple[bytes, WindowedElement]]) -> None:
        report = shard.run(MicroBatch([(key, [one]) for key, one in came], MAX_TIMESTAMP, takes=SECOND))
        assert report.next_due is not None
        due.append(report.next_due)
        for now in (SECOND, report.next_due - 1):
            assert shard.run(MicroBatch((), MAX_TIMESTAMP, Timestamp(now))).next_due == report.next_due
        assert len(calls) == 1
        assert shard.run(MicroBatch((), MAX_TIMESTAMP, report.next_due, fresh=True)).next_due is None

    with InMicroBatches(run) as p:
        build(p, [3], DefersTo(delay))
    assert due[0] <= SECOND + delay.micros
    assert due[0] > SECOND
    assert len(calls) == 2
    assert sorted(p.values()) == [(3, at) for at in range(3)]


@pytest.mark.contract("SDF-04")
def test_what_is_deferred_without_a_delay_goes_on_at_once_if_the_budget_lasts() -> None:
    cut = FirstOf(exhausted(), exhausted())
    with InMicroBatches(cut) as p:
        build(p, [3], DefersTo(None))
    assert [(report.next_due, report.leftover) for report in cut.reports] == [(Timestamp(0), True), (None, False)]
    assert sorted(p.values()) == [(3, at) for at in range(3)]
    cut = FirstOf(lambda came: MicroBatch(came, MAX_TIMESTAMP))
    with InMicroBatches(cut) as p:
        build(p, [3, 3], DefersTo(None))
    assert [(report.next_due, report.counts.resumed) for report in cut.reports] == [(None, 4)]
    assert len(p.values()) == 6


class Looks(beam.DoFn):
    """Looks three times, and defers with nothing put out; or waits for its commits."""

    def process(
        self,
        element: Any,
        finalizer: Any = beam.DoFn.BundleFinalizerParam,
        tracker: Any = beam.DoFn.RestrictionParam(Unsplit()),
    ) -> Iterator[Any]:
        yield from self.look(element, tracker)

    def look(self, element: Any, tracker: Any) -> Iterator[Any]:
        at = tracker.current_restriction().start
        if tracker.try_claim(at):
            yield element
            tracker.defer_remainder()


class LooksInVain(Looks):
    def process(self, element: Any, tracker: Any = beam.DoFn.RestrictionParam(Unsplit())) -> Iterator[Any]:
        yield from (found for found in self.look(element, tracker) if not found)


@pytest.mark.contract("SDF-04", "SDF-13")
@pytest.mark.parametrize("dofn", [Looks(), LooksInVain()])
def test_who_gets_nowhere_or_waits_for_a_commit_has_one_turn_in_a_micro_batch(dofn: beam.DoFn) -> None:
    cut = FirstOf(*[lambda came: MicroBatch(came, MAX_TIMESTAMP)] * 3)
    with InMicroBatches(cut) as p:
        build(p, [3, 3], dofn)
    assert [(report.counts.resumed, report.leftover) for report in cut.reports] == [(2, True)] * 2 + [(2, False)]


class Unwatched(DefersTo):
    """Has no estimator."""


@pytest.mark.contract("SDF-10")
def test_without_an_estimator_the_output_stays_at_the_beginning_until_all_is_done() -> None:
    cut = FirstOf(exhausted(), exhausted())
    with InMicroBatches(cut) as p:
        build(p, [3], Unwatched(None))
    first, second = cut.reports
    assert first.restrictions.silent == ("main",)
    assert output_time(MAX_TIMESTAMP, first.local, "main") == MIN_TIMESTAMP
    assert second.restrictions.silent == ()
    assert output_time(MAX_TIMESTAMP, second.local, "main") == MAX_TIMESTAMP


class Behind(WatermarkEstimator):  # type: ignore[misc]
    """A minute behind the latest."""

    def __init__(self, state: Any) -> None:
        self._latest = state

    def observe_timestamp(self, timestamp: Any) -> None:
        self._latest = timestamp if self._latest is None else max(self._latest, timestamp)

    def current_watermark(self) -> Any:
        return None if self._latest is None else self._latest - 60

    def get_estimator_state(self) -> Any:
        return self._latest


class BehindProvider(WatermarkEstimatorProvider):  # type: ignore[misc]
    def initial_estimator_state(self, element: Any, restriction: Any) -> Any:
        return None

    def create_watermark_estimator(self, estimator_state: Any) -> Any:
        return Behind(estimator_state)


class InThrees(beam.DoFn):
    """Puts out three numbers at a time, each at its minute."""

    def __init__(self) -> None:
        pass

    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(Unsplit()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(BehindProvider()),
    ) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield TimestampedValue((element, at), 60 * at)
            at += 1
            if at % 3 == 0:
                tracker.defer_remainder()
                return


class InThreesInOrder(InThrees):
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(Unsplit()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(MonotonicWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        yield from super().process(element, tracker, estimator)


@pytest.mark.contract("SDF-12", "SDF-01")
@pytest.mark.parametrize(("dofn", "behind"), [(InThrees(), 1), (InThreesInOrder(), 0)])
def test_estimators_of_every_kind_go_on_from_their_state(dofn: beam.DoFn, behind: int) -> None:
    cut = FirstOf(exhausted(), exhausted(fresh=True), exhausted(fresh=True))
    with InMicroBatches(cut) as p:
        build(p, [8], dofn)
    outs = [output_time(MAX_TIMESTAMP, report.local, "main") for report in cut.reports]
    assert outs == [Timestamp((2 - behind) * 60 * SECOND), Timestamp((5 - behind) * 60 * SECOND), MAX_TIMESTAMP]
    assert sorted(p.values()) == [(8, at) for at in range(8)]


class Observes(beam.DoFn):
    """Puts out numbers with the window it sees; defers after every other one."""

    def process(
        self,
        element: int,
        of: Any = beam.DoFn.WindowParam,
        tracker: Any = beam.DoFn.RestrictionParam(Unsplit()),
    ) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            calls.append((at, float(of.start)))
            yield element, at, float(of.start)
            at += 1
            if at % 2 == 0:
                tracker.defer_remainder()
                return


@pytest.mark.contract("SDF-09")
def test_an_element_in_several_windows_is_processed_once_in_each() -> None:
    cut = FirstOf(*[exhausted()] * 6)
    with InMicroBatches(cut) as p:
        timed = p | beam.Create([5], reshuffle=False) | beam.Map(lambda n: TimestampedValue(n, 10))
        _ = timed | beam.WindowInto(SlidingWindows(6, 3)) | beam.ParDo(Observes()) | Collect()
    expected = sorted((5, at, start) for at in range(5) for start in (6.0, 9.0))
    assert sorted(p.values()) == expected
    assert sorted(calls) == sorted((at, start) for _, at, start in expected)


class Counts(beam.DoFn):
    """The numbers below a sum, some at a time."""

    def process(self, element: tuple[str, int], tracker: Any = beam.DoFn.RestrictionParam(Numbers())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield at
            at += 1
            if at % 2 == 0:
                tracker.defer_remainder()
                return


class NumbersOfSum(Numbers):
    def initial_restriction(self, element: Any) -> OffsetRange:
        return OffsetRange(0, element[1])

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return restriction.size()


class CountsOfSum(Counts):
    def process(self, element: Any, tracker: Any = beam.DoFn.RestrictionParam(NumbersOfSum())) -> Iterator[Any]:
        yield from super().process(element, tracker)


def _settle(shard: Shard, came: list[tuple[bytes, WindowedElement]]) -> None:
    shard.settle(MicroBatch([(key, [one]) for key, one in came], MAX_TIMESTAMP))


@pytest.mark.contract("SDF-12")
def test_one_after_another_and_behind_a_grouping() -> None:
    with InMicroBatches(_settle) as p:
        numbers = p | beam.Create([3, 4], reshuffle=False) | "First" >> beam.ParDo(Range())
        sums = numbers | beam.Map(lambda pair: ("all", pair[1])) | beam.CombinePerKey(sum)
        _ = sums | "Behind" >> beam.ParDo(CountsOfSum()) | "Last" >> beam.ParDo(Range()) | Collect()
    assert sorted(p.values()) == sorted((n, at) for n in range(9) for at in range(n))


class NotDone(OffsetRestrictionTracker):  # type: ignore[misc]
    def check_done(self) -> None:
        raise ValueError("7 was not claimed")


class ReturnsTooEarly(beam.DoFn):
    class Provider(Numbers):
        tracker = NotDone

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Provider())) -> Iterator[Any]:
        tracker.try_claim(0)
        yield element


@pytest.mark.contract("SDF-03")
def test_a_process_that_returns_before_it_is_done_fails_with_the_name_of_its_micro_batch() -> None:
    p = InMicroBatches(_settle)
    build_named = p | beam.Create([8], reshuffle=False) | "Too early" >> beam.ParDo(ReturnsTooEarly())
    _ = build_named | Collect()
    with pytest.raises(ValueError, match=r"7 was not claimed.*\[while running 'Too early'\]"):
        p.run()
    assert not any(thread.name == "splitter" for thread in threading.enumerate())
