"""Outputs of splittable DoFns in blocks are the same as the SDK's single outputs, for all observers."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.io.iobase import RestrictionTracker, WatermarkEstimator
from apache_beam.io.restriction_trackers import OffsetRange
from apache_beam.io.watermark_estimators import (
    ManualWatermarkEstimator,
    MonotonicWatermarkEstimator,
    WalltimeWatermarkEstimator,
)
from apache_beam.metrics import Metrics
from apache_beam.pvalue import AsList, TaggedOutput
from apache_beam.runners.worker.operations import SdfProcessSizedElements
from apache_beam.transforms.core import WatermarkEstimatorProvider
from apache_beam.transforms.window import FixedWindows, GlobalWindow, Sessions, SlidingWindows, TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP as SDK_MAX
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from arcbeam.harness.bundle.restrictionoperation import RestrictionOperation
from arcbeam.harness.operations.blockoperation import BLOCK_ELEMENTS_MAX, PIECE
from tests.harness.batch.splittables import Numbers, calls, gates
from tests.harness.drive import Collect, Driven
from tests.harness.streaming.microbatches import InMicroBatches
from tests.harness.streaming.restrictions.restricting import FirstOf, exhausted_on_request, stop
from tests.harness.transforms.comparing import same

SIZE = 700
Made = Callable[[int], Any]


class Makes(beam.DoFn):
    """Outputs what a function makes of each number that it claims."""

    def __init__(self, make: Made = lambda n: n) -> None:
        self.make = make

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Numbers())) -> Any:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield self.make(at)
            Metrics.counter("here", "claimed").inc()
            at += 1


def made_by(p: Any, dofn: beam.DoFn, sizes: tuple[int, ...] = (SIZE,), windowfn: Any = None, tags: Any = None) -> Any:
    made = p | beam.Create(sizes, reshuffle=False) | "at 7" >> beam.Map(lambda n: TimestampedValue(n, 7))
    if windowfn is not None:
        made |= beam.WindowInto(windowfn)
    par_do = beam.ParDo(dofn)
    return made | "it" >> (par_do if tags is None else par_do.with_outputs(*tags, main="main"))


def results_of(build: Callable[[Driven], Any], on: bool, **settings: Any) -> tuple[list[Any], str]:
    """Return all elements of a `Collect`, in order, and the error."""
    p, error = Driven(shards=1, value_chains=on, **settings), ""
    build(p)
    try:
        p.run()
    except Exception as e:
        error = f"{type(e).__name__}: {e}"
    return [(value, time.micros, repr(of)) for value, time, of in p.windowed()], error


def same_in_order(build: Callable[[Driven], Any], **settings: Any) -> tuple[list[Any], str]:
    off, on = (results_of(build, on, **settings) for on in (False, True))
    assert on == off
    return on


def operations(dofn: beam.DoFn) -> set[type]:
    kinds: set[type] = set()
    p = Driven(prepare=lambda stage: kinds.update(type(op) for op in stage.processor.sdk.ops.values()))
    made_by(p, dofn, (3,)) | Collect()
    # A splittable DoFn with batches fails with any operation.
    with contextlib.suppress(AttributeError):
        p.run()
    return kinds & {RestrictionOperation, SdfProcessSizedElements}


class MakesBatches(Makes):
    @beam.DoFn.yields_batches
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Numbers())) -> Iterator[np.ndarray]:
        while tracker.try_claim(tracker.current_restriction().start):
            yield np.array([1, 2])
            tracker.try_claim(element)

    def infer_output_type(self, input_type: Any) -> Any:
        return np.int64


# The SDK does not read postponed annotations.
MakesBatches.process.__annotations__["return"] = Iterator[np.ndarray]


def test_operation_is_ours_except_for_sdk_features() -> None:
    assert operations(Makes()) == {RestrictionOperation}
    assert operations(MakesBatches()) == {SdfProcessSizedElements}


# Outputs.


def kinds(seed: int, likely: float) -> Made:
    """Return outputs of all kinds; of one kind for some time, if `likely`."""
    chance = random.Random(seed)
    latest = 0

    def make(n: int) -> Any:
        nonlocal latest
        if chance.random() > likely:
            latest = chance.randrange(6)
        return (
            n,
            TimestampedValue(n, n % 50),
            TimestampedValue(n, Timestamp(micros=n)),
            WindowedValue(n, n % 9, (GlobalWindow(),)),
            TaggedOutput("other", n),
            TaggedOutput("other", TimestampedValue(n, n % 3)),
        )[latest]

    return make


@pytest.mark.contract("ENG-08", "SDF-03")
@pytest.mark.parametrize("windowfn", [None, FixedWindows(20), SlidingWindows(20, 10), Sessions(5)])
@pytest.mark.parametrize("likely", [0.2, 0.97])
def test_outputs_of_all_kinds(windowfn: Any, likely: float) -> None:
    def build(p: Driven) -> list[str]:
        # Outputs with their own windows are only valid in the global window.
        make = kinds(1, likely)
        fits = make if windowfn is None else lambda n: n if isinstance(made := make(n), WindowedValue) else made
        made = made_by(p, Makes(fits), (SIZE, 0, 1, 40), windowfn, ["other"])
        made["main"] | "next" >> beam.Map(lambda x: x) | Collect("main")
        made["other"] | Collect("other")
        return ["main", "other"]

    outcome = same(build, bundle_elements=2)
    assert outcome.error is None
    assert len(outcome.values("main")) > 100 < len(outcome.values("other"))


@pytest.mark.parametrize("likely", [0.2, 0.97])
def test_outputs_keep_their_order(likely: float) -> None:
    def build(p: Driven) -> None:
        made = made_by(p, Makes(kinds(2, likely)), (SIZE, 30), tags=["other"])
        made["main"] | "a" >> Collect()
        made["other"] | "b" >> Collect()

    seen, error = same_in_order(build)
    assert not error
    assert [value for value, _, _ in seen] == [*range(SIZE), *range(30)]


@pytest.mark.parametrize("results", [None, [], [1, 2], (1, 2), range(SIZE), {3}, iter([4]), 5, "six", b"7", {8: 9}])
def test_process_may_return_any_iterable(results: Any) -> None:
    class Returns(beam.DoFn):
        def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Numbers())) -> Any:
            while tracker.try_claim(element - 1):
                tracker.try_claim(element)
                return iter([4]) if type(results) is type(iter([])) else results

    _, error = same_in_order(lambda p: made_by(p, Returns(), (1, 2)) | Collect())
    assert ("TypeError" in error) == (type(results) in (int, str, bytes, dict))


def test_time_finer_than_microsecond_is_refused() -> None:
    fine = Timestamp(1, 5, precision=9)
    _, error = same_in_order(lambda p: made_by(p, Makes(lambda n: TimestampedValue(n, fine))) | Collect())
    assert "greater than microsecond precision" in error
    assert "[while running 'it']" in error


class Asks(Makes):
    """Has all possible parameters and lifecycle methods."""

    def __init__(self, fails_in: str = "") -> None:
        self.fails_in = fails_in

    def _called(self, where: str) -> None:
        Metrics.counter("here", where).inc()
        if where == self.fails_in:
            raise ValueError(f"not in {where}")

    def setup(self) -> None:
        self._called("setup")

    def start_bundle(self) -> None:
        self._called("start_bundle")
        self.seen = 0

    def process(
        self,
        element: int,
        sides: Any,
        more: int,
        of: Any = beam.DoFn.WindowParam,
        time: Any = beam.DoFn.TimestampParam,
        tracker: Any = beam.DoFn.RestrictionParam(Numbers()),
    ) -> Iterator[Any]:
        self._called("process")
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            self.seen += 1
            yield at + more, sorted(sides), repr(of), time.micros
            if at == element // 2:
                self._called("half")
            at += 1

    def finish_bundle(self) -> Any:
        self._called("finish_bundle")
        yield WindowedValue(("seen", self.seen), 5, (GlobalWindow(),))

    def teardown(self) -> None:
        self._called("teardown")


@pytest.mark.contract("BAT-04", "SDF-03", "SDF-09")
@pytest.mark.parametrize("fails_in", ["", "setup", "start_bundle", "process", "half", "finish_bundle"])
def test_all_parameters_and_all_failures(fails_in: str) -> None:
    def build(p: Driven) -> None:
        sides = p | "sides" >> beam.Create([3, 1], reshuffle=False)
        made = p | beam.Create([SIZE, 4], reshuffle=False) | "at 7" >> beam.Map(lambda n: TimestampedValue(n, 7))
        made |= beam.WindowInto(SlidingWindows(20, 10)) if not fails_in else beam.Map(lambda n: n)
        made = made | "it" >> beam.ParDo(Asks(fails_in), AsList(sides), 5)
        # Outputs of finish_bundle are in the global window.
        made | beam.Filter(lambda row: row[0] != "seen" or fails_in) | Collect()

    error = same(build).error
    step = "it" if fails_in in ("process", "half") else "it/Process"
    assert error == (None if not fails_in else (ValueError, f"not in {fails_in} [while running '{step}']"))


# Errors while processing.


@pytest.mark.contract("BAT-04")
@pytest.mark.parametrize("where", ["process", "behind", "both"])
@pytest.mark.parametrize("at", [0, 5, 600])
def test_error_follows_earlier_outputs(where: str, at: int) -> None:
    def make(n: int) -> int:
        if n == at + 3 and where != "behind":
            raise ValueError("process")
        return n

    def behind(n: int) -> int:
        if n == at and where != "process":
            raise ValueError("behind")
        return n

    def build(p: Driven) -> None:
        made = made_by(p, Makes(make))
        if where != "process":
            made |= "behind" >> beam.Map(behind)
        made | Collect()

    (seen, error), off = results_of(build, on=True), results_of(build, on=False)
    name, what = ("it", "process") if where == "process" else ("behind", "behind")
    assert error == off[1] == f"ValueError: {what} [while running '{name}']"
    if where == "process":
        # `Collect` uses the SDK's operation.
        assert seen == off[0]
        assert len(seen) == at + 3


# Estimators.


class Observing(WatermarkEstimator):  # type: ignore[misc]
    """Reports the earliest time since the last report; records the times that it has observed."""

    def __init__(self, seen: Any) -> None:
        self.seen: list[int] = list(seen or ())

    def observe_timestamp(self, timestamp: Timestamp) -> None:
        self.seen.append(timestamp.micros)

    def current_watermark(self) -> Timestamp:
        return Timestamp(micros=min(self.seen[-3:]))

    def get_estimator_state(self) -> Any:
        return list(self.seen)

    def so_far(self) -> list[int]:
        return list(self.seen)


class ObservingProvider(WatermarkEstimatorProvider):  # type: ignore[misc]
    def initial_estimator_state(self, element: Any, restriction: Any) -> Any:
        return None

    def create_watermark_estimator(self, estimator_state: Any) -> Any:
        return Observing(estimator_state)


class Observed(Makes):
    """Reads its estimator's observations after each output."""

    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(Numbers()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ObservingProvider()),
    ) -> Any:
        for n, output in enumerate(super().process(element, tracker)):
            yield output
            seen = estimator.so_far()
            assert len(seen) == n + 1, (seen, n)
        yield ("seen", seen, estimator.current_watermark().micros)


@pytest.mark.contract("SDF-12")
def test_estimator_observes_each_output_before_next() -> None:
    def build(p: Driven) -> None:
        made_by(p, Observed(kinds(3, 0.5)), (100,), tags=["other"])["main"] | Collect()

    seen, error = same_in_order(build)
    assert not error
    ((_, times, _),) = (value for value, _, _ in seen if isinstance(value, tuple))
    assert len(times) == 100
    assert len(set(times)) > 10


class Calls(beam.DoFn):
    """Reads the watermarks of the SDK's estimators after each output."""

    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(Numbers()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(MonotonicWatermarkEstimator.default_provider()),
    ) -> Any:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield TimestampedValue(at, at)
            assert estimator.current_watermark() == Timestamp(at)
            at += 1


@pytest.mark.contract("SDF-12")
def test_monotonic_estimator_is_at_latest_output() -> None:
    assert not same_in_order(lambda p: made_by(p, Calls()) | Collect())[1]


@pytest.mark.parametrize("kind", [ManualWatermarkEstimator, WalltimeWatermarkEstimator])
def test_sdk_estimators_that_ignore_outputs(kind: Any) -> None:
    estimator = kind(SDK_MAX)
    before = dict(vars(estimator))
    estimator.observe_timestamp(Timestamp(1))
    assert vars(estimator) == before


# Splitting.


class Within(RestrictionTracker):  # type: ignore[misc]
    """Hides the progress of its process, except for its outputs."""

    def __init__(self, restriction: OffsetRange) -> None:
        self._restriction = restriction
        self.next = restriction.start

    def current_restriction(self) -> Any:
        return self

    def try_split(self, fraction_of_remainder: float) -> Any:
        if fraction_of_remainder:
            return None
        split = self._restriction.split_at(self.next)
        self._restriction = split[0]
        gates["split"].set()
        return split

    def check_done(self) -> None:
        assert self.next >= self._restriction.stop

    def is_bounded(self) -> bool:
        return True

    def take(self) -> Any:
        if self.next >= self._restriction.stop:
            return None
        self.next += 1
        return self.next - 1


class WithinNumbers(Numbers):
    tracker = Within


class Waits(beam.DoFn):
    """Waits for a split after an output, if it may wait."""

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(WithinNumbers())) -> Iterator[Any]:
        within = tracker.current_restriction()
        calls.append(element)
        while (at := within.take()) is not None:
            yield element, at
            # The first restriction makes blocks long, so the second one's outputs are still waiting.
            if len(calls) == 2 and at == 5:
                stop()


@pytest.mark.contract("SDF-06", "SDF-07")
def test_waiting_outputs_count_as_progress() -> None:
    cut = FirstOf(exhausted_on_request())
    with InMicroBatches(cut) as p:
        made_by(p, Waits(), (5000, 5001)) | Collect()
    assert sorted(p.values()) == sorted((of, at) for of in (5000, 5001) for at in range(of))
    assert (cut.reports[0].restrictions.live, cut.reports[0].restrictions.size) == (1, calls[1] - 6)


# Memory.


class Held:
    """Counts its live instances."""

    alive = most = 0

    def __init__(self, content: bytes) -> None:
        self.content = content
        Held.alive += 1
        Held.most = max(Held.most, Held.alive)

    def __del__(self) -> None:
        Held.alive -= 1

    def __reduce__(self) -> Any:
        return Held, (self.content,)


@pytest.mark.contract("BAT-01")
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize(("size", "most"), [(0, BLOCK_ELEMENTS_MAX), (100_000, 42)])
def test_outputs_are_never_held_as_a_whole(timed: bool, size: int, most: int) -> None:
    Held.alive = Held.most = 0
    count = 10_000 if size == 0 else 300

    def make(n: int) -> Any:
        held = Held(bytes(size))
        return TimestampedValue(held, n) if timed else held

    with Driven(shards=1) as p:
        made_by(p, Makes(make), (count,)) | "drop" >> beam.Map(lambda held: None) | Collect()
    assert len(p.values()) == count
    assert Held.most <= 2 * (min(most, PIECE) if timed else most)


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    gates.clear()
    calls.clear()
    before = threading.active_count()
    yield
    assert threading.active_count() < before + 50
