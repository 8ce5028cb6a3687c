"""Restrictions in one process: processed once each, deferred, split while they run, handed back and spread."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
import pytest
from apache_beam import RestrictionProvider
from apache_beam.io.iobase import BoundedSource, Read, RestrictionProgress, RestrictionTracker, SourceBundle
from apache_beam.io.range_trackers import OffsetRangeTracker
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms.window import SlidingWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam.harness.bounded.boundedstage import BoundedStage
from arcbeam.harness.bounded.restrictions import Waiting, _unpacked
from arcbeam.harness.operations.taskcontext import Settings
from arcbeam.model.plan import Routing
from arcbeam.model.rows import RESIDUAL, BundleReport, Row
from arcbeam.translate import translate

SHARDS = 3

found: list[Any] = []
"""What the pipeline under test has put out."""
calls: list[tuple[Any, ...]] = []
"""What the DoFn under test has noted."""
gates: dict[Any, threading.Event] = {}
"""What the DoFn under test waits for."""


def note(element: Any) -> None:
    """By name, not `found.append`: pickled, that would be of another list."""
    found.append(element)


@pytest.fixture(autouse=True)
def _nothing_left_of_other_tests() -> None:
    found.clear()
    calls.clear()
    gates.clear()


# A driver of plans: every shard is a task, one after the other; a splittable stage runs in rounds.


@dataclass
class Driven:
    reports: list[BundleReport] = field(default_factory=list)
    rounds: int = 0
    tasks: Counter[int] = field(default_factory=Counter)
    residuals: list[list[Waiting]] = field(default_factory=list)


class _Box:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def put(self, row: Row) -> None:
        self.rows.append(row)


def drive(
    build: Callable[[beam.Pipeline], Any], settings: Settings | None = None, drain: bool = False, fusion: bool = True
) -> Driven:
    settings = settings or Settings(shards=SHARDS)
    pipeline = beam.Pipeline()
    build(pipeline)
    plan = translate(pipeline.to_runner_api(), drain=drain, fusion=fusion)
    channels: dict[int, list[Row]] = {}
    driven = Driven()
    for stage in plan.stages:
        bounded = BoundedStage(stage, settings, None)
        rows = [Row(0, 0, 0, b"")] if stage.source is None else channels.get(stage.source, [])
        while rows:
            box = _Box()
            for shard in range(settings.shards):
                mine = sorted((r for r in rows if r.shard == shard), key=lambda r: r.bucket)
                if mine:
                    report = bounded.run(iter(mine), box, shard, None)
                    driven.reports.append(report)
                    if stage.splittable:
                        driven.tasks[shard] += 1
            driven.rounds += stage.splittable
            for row in box.rows:
                if row.channel != RESIDUAL:
                    channels.setdefault(row.channel, []).append(row)
            rows = [row for row in box.rows if row.channel == RESIDUAL]
            if rows:
                driven.residuals.append([entry for row in rows for entry in _unpacked(row.blob)])
                assert sum(r.residuals for r in driven.reports) == sum(map(len, driven.residuals))
        bounded.close()
    assert all(plan.channels[c].routing in (Routing.FORWARD, Routing.SPREAD, Routing.GROUPED) for c in channels)
    return driven


# Splittable DoFns.


class Numbers(RestrictionProvider):
    """The numbers below the element."""

    tracker: Any = OffsetRestrictionTracker

    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, element)

    def create_tracker(self, restriction: OffsetRange) -> Any:
        return self.tracker(restriction)

    def restriction_size(self, element: int, restriction: OffsetRange) -> int:
        return restriction.size()


class InPairs(Numbers):
    def split(self, element: int, restriction: OffsetRange) -> Iterable[OffsetRange]:
        return restriction.split(2)


class Range(beam.DoFn):
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Numbers())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield element, at
            at += 1


def expected(*elements: int) -> list[Any]:
    return sorted((element, at) for element in elements for at in range(element))


@pytest.mark.contract("SDF-03")
@pytest.mark.parametrize("limit", [1, 500])
def test_each_restriction_is_processed_once(limit: int) -> None:
    settings = Settings(shards=SHARDS, bundle_elements=limit)
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
def test_work_that_was_not_claimed_fails_with_the_name_of_the_step() -> None:
    with pytest.raises(ValueError, match=r"not done.* \[while running 'Careless'\]$"):
        drive(lambda p: p | beam.Create([5], reshuffle=False) | "Careless" >> beam.ParDo(Unclaimed()))


# Deferrals.


class OneByOne(beam.DoFn):
    """Defers what is left after every number, with the delay of its turn."""

    def __init__(self, delays: Callable[[], Any] = lambda: None) -> None:
        self._delays = delays

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Numbers())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        calls.append((element, at, time.time()))
        if tracker.try_claim(at):
            yield element, at
            tracker.defer_remainder(self._delays())


@pytest.mark.contract("SDF-04", "SDF-05")
@pytest.mark.parametrize("settings", [Settings(shards=3), Settings(shards=1, bundle_elements=1), Settings(shards=7)])
def test_a_checkpoint_at_every_claim(settings: Settings) -> None:
    drive(lambda p: p | beam.Create([5, 3, 1], reshuffle=False) | beam.ParDo(OneByOne()) | beam.Map(note), settings)
    assert sorted(found) == expected(5, 3, 1)


@pytest.mark.contract("SDF-04")
@pytest.mark.parametrize(
    "delays",
    [lambda: Duration(micros=2_500), lambda: Timestamp.of(time.time()) + Duration(micros=2_500)],
    ids=["a delay", "a time"],
)
def test_a_deferred_restriction_is_not_processed_before_its_time(delays: Callable[[], Any]) -> None:
    drive(lambda p: p | beam.Create([3], reshuffle=False) | beam.ParDo(OneByOne(delays)) | beam.Map(note))
    assert sorted(found) == expected(3)
    times = [at for _, _, at in calls]
    assert all(later - earlier >= 0.0025 for earlier, later in itertools.pairwise(times))


def test_others_go_on_while_one_waits() -> None:
    settings = Settings(shards=1)
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
def test_what_is_due_beyond_the_budget_is_handed_back_with_its_time() -> None:
    settings = Settings(shards=2, sdf_round_seconds=0.002)
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
    """Defers without claiming anything, some times."""

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
def test_a_restriction_that_gets_nowhere_is_tried_less_and_less_often() -> None:
    drive(lambda p: p | beam.Create([2], reshuffle=False) | beam.ParDo(Stubborn()) | beam.Map(note))
    assert sorted(found) == expected(2)
    pauses = [later - earlier for (earlier,), (later,) in itertools.pairwise(calls)]
    assert all(pause >= 0.001 * 2**n for n, pause in enumerate(pauses[1:], 1))


# Splits of what runs. A DoFn that waits in the middle of its work until it was split, or until somebody else runs.


class Claimed(OffsetRestrictionTracker):  # type: ignore[misc]
    """Opens the gate of the restriction when it was split off all it can give."""

    def try_split(self, fraction_of_remainder: float) -> Any:
        calls.append(("split", fraction_of_remainder))
        split = super().try_split(fraction_of_remainder)
        if fraction_of_remainder == 0:
            gates["split"].set()
        return split


class ClaimedNumbers(Numbers):
    tracker = Claimed


class Lagging(beam.DoFn):
    """Waits, behind the second claim, until it was checkpointed."""

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(ClaimedNumbers())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        calls.append(("start", at))
        while tracker.try_claim(at):
            yield element, at
            if at == 2:
                assert gates["split"].wait(5)
            at += 1


@pytest.mark.contract("SDF-06", "SDF-07")
def test_a_lagging_restriction_is_split_for_all_shards() -> None:
    gates["split"] = threading.Event()
    settings = Settings(shards=SHARDS, sdf_round_seconds=0.02)
    driven = drive(lambda p: p | beam.Create([100], reshuffle=False) | beam.ParDo(Lagging()) | beam.Map(note), settings)
    assert sorted(found) == expected(100)
    assert [fraction for what, fraction in calls if what == "split"][:3] == [2 / 3, 1 / 2, 0]
    assert len(driven.residuals[0]) == 3
    assert sum(entry.size for entry in driven.residuals[0]) == 97
    assert len(driven.tasks) == SHARDS, "the pieces went to all shards"


class LaggingOnce(beam.DoFn):
    """The first element lags; the others are never started before it was split."""

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(ClaimedNumbers())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield element, at
            if at == 2 and element == 50:
                assert gates["split"].wait(5)
            at += 1


@pytest.mark.contract("SDF-05", "SDF-07")
def test_with_enough_left_for_all_shards_a_lagging_restriction_is_only_stopped() -> None:
    gates["split"] = threading.Event()
    settings = Settings(shards=2, sdf_round_seconds=0.02)
    driven = drive(
        lambda p: p | beam.Create([50, 3, 3, 3, 3, 3], reshuffle=False) | beam.ParDo(LaggingOnce()) | beam.Map(note),
        settings,
    )
    assert sorted(found) == expected(50, 3, 3, 3, 3, 3)
    assert [fraction for _, fraction in calls][:1] == [0]
    assert sum(entry.fresh for entry in driven.residuals[0]) == 2, "the other two of its shard were handed back"
    assert driven.residuals[0][-1].size <= 47 or driven.residuals[0][0].size <= 47


class SplitAndDefer(beam.DoFn):
    """Is split while it runs, and then defers what it was left with."""

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
    """Lets the runner split it once, in the middle."""

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
def test_the_split_and_the_deferral_of_one_bundle_are_both_processed_once() -> None:
    settings = Settings(shards=2, sdf_round_seconds=0.02)
    driven = drive(
        lambda p: p | beam.Create([40], reshuffle=False) | beam.ParDo(SplitAndDeferHalves()) | beam.Map(note),
        settings,
    )
    assert sorted(found) == expected(40)
    dues = [entry.due for entry in driven.residuals[0]]
    assert dues.count(0) == 1, "the split's residual may go on at once"
    assert any(dues), "the deferral's has its time"
    first, deferred = calls[0], next(call for call in calls if call[0] == 3)
    assert deferred[2] - first[2] >= 0.003


class Plain(RestrictionTracker):  # type: ignore[misc]
    """As little as a tracker can have: no progress, no splits."""

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
    """Splits nothing and says so; breaks when it is asked for its progress."""

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
def test_a_tracker_without_progress_and_splits_runs_to_its_end() -> None:
    settings = Settings(shards=2, sdf_round_seconds=0.001)
    drive(lambda p: p | beam.Create([3], reshuffle=False) | beam.ParDo(Slow()) | beam.Map(note), settings)
    assert sorted(found) == expected(3)


@pytest.mark.contract("SDF-12")
def test_a_tracker_that_never_splits_is_asked_less_and_less_often() -> None:
    gates["asked"] = threading.Event()
    settings = Settings(shards=2, sdf_round_seconds=0.001)
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


def test_a_split_that_breaks_fails_with_the_name_of_the_step() -> None:
    gates["asked"] = threading.Event()
    settings = Settings(shards=2, sdf_round_seconds=0.001)
    with pytest.raises(RuntimeError, match=r"KeyError in a split: 'halfway' .*while running 'Breaks'"):
        drive(lambda p: p | beam.Create([9], reshuffle=False) | "Breaks" >> beam.ParDo(WaitsForSplit()), settings)


class Endless(beam.DoFn):
    """Does not return until it is stopped; waits before its first claim for longer than its task may take."""

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
def test_a_process_that_never_returns_goes_on_in_rounds() -> None:
    settings = Settings(shards=1, sdf_round_seconds=0.005)
    driven = drive(lambda p: p | beam.Create([60], reshuffle=False) | beam.ParDo(Endless()) | beam.Map(note), settings)
    assert sorted(found) == expected(60)
    assert driven.rounds > 2
    assert len({at for (at,) in calls}) == len(calls), "no round was stopped before it had claimed anything"


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
def test_a_window_observing_dofn_on_an_element_in_several_windows(seconds: float) -> None:
    drive(
        lambda p: (
            p
            | beam.Create([3], reshuffle=False)
            | beam.Map(lambda n: TimestampedValue(n, 25))
            | beam.WindowInto(SlidingWindows(20, 10))
            | beam.ParDo(WithWindow())
            | beam.Map(note)
        ),
        Settings(shards=SHARDS, sdf_round_seconds=seconds),
    )
    assert sorted(found) == sorted((3, at, start) for at in range(3) for start in (10.0, 20.0))


class Halves(BoundedSource):  # type: ignore[misc]
    """Numbers; waits in the middle until it has been split."""

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
def test_a_bounded_source_is_split_though_it_cannot_be_checkpointed() -> None:
    settings = Settings(shards=SHARDS, sdf_round_seconds=0.02)
    driven = drive(lambda p: p | Read(Halves(400)) | beam.Map(note), settings)
    assert sorted(found) == list(range(400))
    assert len(driven.residuals[0]) >= 3
    assert len(driven.tasks) == SHARDS


class Truncated(Numbers):
    """The first truncation leaves three numbers; a second one would leave nothing."""

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
    settings = Settings(shards=SHARDS, sdf_round_seconds=seconds)
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
def test_several_in_one_pipeline_and_behind_a_group_by_key(fusion: bool) -> None:
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


def test_a_budget_of_nothing_still_gets_everything_done() -> None:
    settings = Settings(shards=2, sdf_round_seconds=0.0)
    driven = drive(
        lambda p: p | beam.Create([2, 3, 4, 5], reshuffle=False) | beam.ParDo(OneByOne()) | beam.Map(note), settings
    )
    assert sorted(found) == expected(2, 3, 4, 5)
    assert driven.rounds > 2
