"""Residuals of restrictions in a streaming job: when they are processed, which watermark they hold, their outputs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.iobase import WatermarkEstimator
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator, MonotonicWatermarkEstimator
from apache_beam.transforms.core import WatermarkEstimatorProvider
from apache_beam.transforms.window import SlidingWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration
from apache_beam.utils.timestamp import Timestamp as SdkTimestamp

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.engine.watermarks.clocks import output_time
from arcbeam.model.attempts import wait_reason
from arcbeam.model.dofns import Idle, KnowsIdle
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from tests.harness.batch.splittables import Numbers, Range, calls, gates
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard
from tests.harness.streaming.restrictions.restricting import FirstOf, Unsplit, exhausted, exhausted_on_request, stop
from tests.harness.streaming.restrictions.test_restrictions import SECOND, build


@pytest.fixture(autouse=True)
def forgotten() -> None:
    calls.clear()
    gates.clear()


class Halves(OffsetRestrictionTracker):  # type: ignore[misc]
    """Can be split once by others, in the middle."""

    def try_split(self, fraction_of_remainder: float) -> Any:
        if threading.current_thread().name == "splitter":
            if fraction_of_remainder != 0.5 or self._range.stop < 40:
                return None
            split = super().try_split(fraction_of_remainder)
            gates["split"].set()
            return split
        return super().try_split(fraction_of_remainder)


class SplitAndDefer(beam.DoFn):
    """Is split while it runs, and then defers the rest."""

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
def test_split_and_deferral_keep_time_and_run_once() -> None:
    later = 3601 * SECOND
    cut = FirstOf(
        exhausted_on_request(takes=SECOND, pieces=2), exhausted(now=Timestamp(SECOND)), exhausted(now=Timestamp(later))
    )
    with InMicroBatches(cut) as p:
        build(p, [40], SplitAndDefer())
    first, second, third = cut.reports
    assert (first.restrictions.live, first.restrictions.ready, first.next_due) == (2, 1, Timestamp(0))
    assert (second.restrictions.live, second.restrictions.ready) == (1, 0)
    # Relative to the clock when the process returned, not to the beginning of the micro-batch.
    assert second.next_due is not None
    assert SECOND < second.next_due <= later
    assert third.restrictions.live == 0
    assert sorted(p.values()) == [(40, at) for at in range(40)]


class DefersTo(beam.DoFn):
    """Defers once, to a given time."""

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
def test_due_time_is_exact_to_microsecond(seconds: float) -> None:
    delay = Duration(seconds)
    due: list[int] = []

    def run(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        report = shard.run(MicroBatch([(key, [one]) for key, one in arrived], MAX_TIMESTAMP, takes=SECOND))
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
def test_deferral_without_delay_continues_within_budget() -> None:
    cut = FirstOf(exhausted(), exhausted())
    with InMicroBatches(cut) as p:
        build(p, [3], DefersTo(None))
    assert [(report.next_due, report.leftover) for report in cut.reports] == [(Timestamp(0), True), (None, False)]
    assert sorted(p.values()) == [(3, at) for at in range(3)]
    cut = FirstOf(lambda arrived: MicroBatch(arrived, MAX_TIMESTAMP))
    with InMicroBatches(cut) as p:
        build(p, [3, 3], DefersTo(None))
    assert [(report.next_due, report.counts.resumed) for report in cut.reports] == [(None, 4)]
    assert len(p.values()) == 6


class Repeats(beam.DoFn):
    """Runs three times and defers without outputs, or waits for its commits."""

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


class RepeatsWithoutOutput(Repeats):
    def process(self, element: Any, tracker: Any = beam.DoFn.RestrictionParam(Unsplit())) -> Iterator[Any]:
        yield from (found for found in self.look(element, tracker) if not found)


@pytest.mark.contract("SDF-04", "SDF-13")
@pytest.mark.parametrize("dofn", [Repeats(), RepeatsWithoutOutput()])
def test_restriction_without_progress_runs_once_per_micro_batch(dofn: beam.DoFn) -> None:
    cut = FirstOf(*[lambda arrived: MicroBatch(arrived, MAX_TIMESTAMP)] * 3)
    with InMicroBatches(cut) as p:
        build(p, [3, 3], dofn)
    assert [(report.counts.resumed, report.leftover) for report in cut.reports] == [(2, True)] * 2 + [(2, False)]


class Unwatched(DefersTo):
    """Has no estimator."""


@pytest.mark.contract("SDF-10")
def test_output_watermark_without_estimator_waits_for_end() -> None:
    cut = FirstOf(exhausted(), exhausted())
    with InMicroBatches(cut) as p:
        build(p, [3], Unwatched(None))
    first, second = cut.reports
    assert first.restrictions.silent == ("main",)
    assert output_time(MAX_TIMESTAMP, first.local, "main") == MIN_TIMESTAMP
    assert second.restrictions.silent == ()
    assert output_time(MAX_TIMESTAMP, second.local, "main") == MAX_TIMESTAMP


class Lagging(WatermarkEstimator):  # type: ignore[misc]
    """Lags the latest output by a minute."""

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
        return Lagging(estimator_state)


class InThrees(beam.DoFn):
    """Outputs three numbers per call, each at its minute."""

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
def test_estimators_continue_from_their_state(dofn: beam.DoFn, behind: int) -> None:
    cut = FirstOf(exhausted(), exhausted(fresh=True), exhausted(fresh=True))
    with InMicroBatches(cut) as p:
        build(p, [8], dofn)
    outs = [output_time(MAX_TIMESTAMP, report.local, "main") for report in cut.reports]
    assert outs == [Timestamp((2 - behind) * 60 * SECOND), Timestamp((5 - behind) * 60 * SECOND), MAX_TIMESTAMP]
    assert sorted(p.values()) == [(8, at) for at in range(8)]


class Observes(beam.DoFn):
    """Outputs numbers with the window that it sees; defers after every other one."""

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
def test_element_runs_once_per_window() -> None:
    cut = FirstOf(*[exhausted()] * 6)
    with InMicroBatches(cut) as p:
        timed = p | beam.Create([5], reshuffle=False) | beam.Map(lambda n: TimestampedValue(n, 10))
        _ = timed | beam.WindowInto(SlidingWindows(6, 3)) | beam.ParDo(Observes()) | Collect()
    expected = sorted((5, at, start) for at in range(5) for start in (6.0, 9.0))
    assert sorted(p.values()) == expected
    assert sorted(calls) == sorted((at, start) for _, at, start in expected)


class Counts(beam.DoFn):
    """Outputs the numbers below a sum, a few per call."""

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


def _settle(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
    shard.settle(MicroBatch([(key, [one]) for key, one in arrived], MAX_TIMESTAMP))


@pytest.mark.contract("SDF-12")
def test_consecutive_splittable_dofns_and_after_grouping() -> None:
    with InMicroBatches(_settle) as p:
        numbers = p | beam.Create([3, 4], reshuffle=False) | "First" >> beam.ParDo(Range())
        sums = numbers | beam.Map(lambda pair: ("all", pair[1])) | beam.CombinePerKey(sum)
        _ = sums | "After" >> beam.ParDo(CountsOfSum()) | "Last" >> beam.ParDo(Range()) | Collect()
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
def test_process_returning_early_fails_and_names_transform() -> None:
    p = InMicroBatches(_settle)
    build_named = p | beam.Create([8], reshuffle=False) | "Too early" >> beam.ParDo(ReturnsTooEarly())
    _ = build_named | Collect()
    with pytest.raises(ValueError, match=r"7 was not claimed.*\[while running 'Too early'\]"):
        p.run()
    assert not any(thread.name == "splitter" for thread in threading.enumerate())


class Waits(beam.DoFn):
    """Says what it waits for the first time."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Unsplit())) -> None:
        calls.append(("process",))
        if len(calls) > 2:
            while tracker.try_claim(len(calls)):
                calls.append(("claim",))
            return
        wait_reason.reason = f"no broker knows {element}" if len(calls) == 1 else ""
        tracker.defer_remainder(Duration(1))


@pytest.mark.contract("SDF-04")
def test_reason_of_deferral_is_that_of_last_run() -> None:
    cut = FirstOf(exhausted(now=Timestamp(0)), exhausted(now=Timestamp(1_000 * SECOND)))
    with InMicroBatches(cut) as p:
        build(p, [7], Waits())
    holds = [report.local.pending for report in cut.reports]
    assert [(hold.about, hold.reason) for hold in holds if hold] == [("7", "no broker knows 7"), ("7", "")]


class WithoutBacklog(Numbers):
    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return 0


class Waiting(beam.DoFn, KnowsIdle):
    """Is idle in the 2nd and 3rd micro-batch."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(WithoutBacklog()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> None:
        calls.append("process")
        if calls.count("process") > 2:
            tracker.try_claim(element - 1)
            return
        if estimator.current_watermark() is None:
            estimator.set_watermark(SdkTimestamp(1))
        tracker.defer_remainder(Duration(1))

    def idle(self, element: int, restriction: OffsetRange) -> Idle | None:
        calls.append((element, restriction.start, restriction.stop))
        requested = sum(call != "process" for call in calls)
        return Idle(3.0, (3 - requested) * 10 * SECOND) if requested <= 2 else None


@pytest.mark.contract("ENG-01", "SDF-04")
def test_idle_restriction_waits_without_being_processed() -> None:
    found: list[tuple[Timestamp, Timestamp | None]] = []
    called: list[Any] = []

    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        some = [(key, [one]) for key, one in arrived]
        for seconds in (0, 2, 4, 5, 8):
            report = shard.run(MicroBatch(some, MAX_TIMESTAMP, Timestamp(seconds * SECOND)))
            found.append((output_time(MAX_TIMESTAMP, report.local, "main"), report.next_due))
            some = []
        called.extend(calls)

    with InMicroBatches(cut) as p:
        build(p, [7], Waiting())
    requested = (7, 0, 7)
    # After 4 seconds it is not due.
    assert called == ["process", requested, requested, requested, "process"]
    # The watermark is the latest that was reported, and never goes back.
    assert [time for time, _ in found] == [1 * SECOND, 20 * SECOND, 20 * SECOND, 20 * SECOND, 20 * SECOND]
    assert [due and round(due / SECOND) for _, due in found] == [1, 5, 5, 8, 9]
