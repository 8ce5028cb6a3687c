"""Splittable DoFns in a streaming job while they run: when a process is stopped that does not return, and the
warnings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.iobase import RestrictionTracker
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils import timestamp

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.engine.watermarks.clocks import output_time
from arcbeam.harness.streaming import restrictions
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from tests.harness.batch.splittables import Claimed, Numbers, Range, calls, gates
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches, Shard
from tests.harness.streaming.restrictions.restricting import WAIT, FirstOf, exhausted, exhausted_on_request, stop
from tests.harness.streaming.restrictions.test_restrictions import SECOND, build


@pytest.fixture(autouse=True)
def forgotten() -> None:
    calls.clear()
    gates.clear()


class StopsWhenSplit(Claimed):  # type: ignore[misc]
    def is_bounded(self) -> bool:
        return False


class Endless(beam.DoFn):
    """Waits after its third number, until another thread sets its watermark and it is stopped."""

    class Provider(Numbers):
        tracker = StopsWhenSplit

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(Provider()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        first = at = tracker.current_restriction().start
        while tracker.try_claim(at):
            if at == first + 2:
                poller = threading.Thread(target=estimator.set_watermark, args=(timestamp.Timestamp(at),))
                poller.start()
                poller.join()
            yield TimestampedValue((element, at), at)
            if at == first + 2 and first < 6:
                stop()
            at += 1


@pytest.mark.contract("SDF-01", "SDF-06")
def test_watermark_of_user_thread_applies_to_split() -> None:
    cut = FirstOf(exhausted_on_request(pieces=4), exhausted_on_request())
    with InMicroBatches(cut) as p:
        build(p, [100], Endless())
    assert sorted(p.values()) == [(100, at) for at in range(100)]
    outs = [output_time(MAX_TIMESTAMP, report.local, "main") for report in cut.reports]
    assert outs == [Timestamp(2 * SECOND), Timestamp(5 * SECOND)]
    assert [report.restrictions.live for report in cut.reports] == [1, 1], "an unbounded restriction stays whole"


class Silent(RestrictionTracker):  # type: ignore[misc]
    """Does not know its progress, but can be stopped at its position. Opens the gate when it was stopped."""

    def __init__(self, restriction: OffsetRange) -> None:
        self._restriction, self._next = restriction, restriction.start

    def current_restriction(self) -> OffsetRange:
        return self._restriction

    def try_claim(self, position: int) -> bool:
        calls.append(("claim", position))
        if position >= self._restriction.stop:
            return False
        self._next = position + 1
        return True

    def try_split(self, fraction_of_remainder: float) -> Any:
        calls.append(("split", fraction_of_remainder))
        if fraction_of_remainder or self._next >= self._restriction.stop:
            return None
        whole = self._restriction
        self._restriction = OffsetRange(whole.start, self._next)
        gates["split"].set()
        return self._restriction, OffsetRange(self._next, whole.stop)

    def check_done(self) -> None:
        if self._next < self._restriction.stop:
            raise ValueError("not done")

    def is_bounded(self) -> bool:
        return False


class InSilence(beam.DoFn):
    """Claims, and outputs nothing before it was stopped."""

    class Provider(Numbers):
        tracker = Silent

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Provider())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        claimed = []
        while tracker.try_claim(at):
            claimed.append((element, at))
            if at == 2:
                stop()
            at += 1
        yield from claimed


@pytest.mark.contract("SDF-06", "SDF-12")
def test_claim_counts_as_progress() -> None:
    cut = FirstOf(exhausted_on_request())
    with InMicroBatches(cut) as p:
        build(p, [9], InSilence())
    assert sorted(p.values()) == [(9, at) for at in range(9)]
    assert (cut.reports[0].restrictions.live, cut.reports[0].restrictions.size) == (1, 6)


class LookedAt(OffsetRestrictionTracker):  # type: ignore[misc]
    """Records when it was checked a few times, and by which thread it was split."""

    def current_progress(self) -> Any:
        calls.append(("look",))
        if len(calls) > 3:
            gates["looked at"].set()
        return super().current_progress()

    def try_split(self, fraction_of_remainder: float) -> Any:
        calls.append(("split",))
        return super().try_split(fraction_of_remainder)


class SlowToBegin(beam.DoFn):
    class Provider(Numbers):
        tracker = LookedAt

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Provider())) -> Iterator[Any]:
        gates["looked at"] = threading.Event()
        calls.clear()
        assert gates["looked at"].wait(WAIT)
        assert ("split",) not in calls
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield element, at
            at += 1


@pytest.mark.contract("SDF-06", "SDF-12")
def test_no_split_before_first_claim() -> None:
    with InMicroBatches(FirstOf(exhausted(), exhausted())) as p:
        build(p, [3], SlowToBegin())
    assert sorted(p.values()) == [(3, at) for at in range(3)]


class Warnings(logging.Handler):
    """Opens a gate at the first log record."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        gates["warnings"].set()


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the warnings about running processes, which come at once."""
    monkeypatch.setattr(restrictions, "PATIENCE_SECONDS", 0.0)
    gates["warnings"] = threading.Event()
    handler = Warnings()
    logger = logging.getLogger("arcbeam.splitting")
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)


class Stubborn(OffsetRestrictionTracker):  # type: ignore[misc]
    def try_split(self, fraction_of_remainder: float) -> Any:
        return None


def numbers_that(act: Callable[[], object], of: type[OffsetRestrictionTracker] = Claimed) -> beam.DoFn:
    """Return a DoFn that outputs numbers, and calls a function after the third."""

    class Provider(Numbers):
        tracker = of

    class Acts(beam.DoFn):
        def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Provider())) -> Iterator[Any]:
            at = tracker.current_restriction().start
            while tracker.try_claim(at):
                yield element, at
                if at == 2:
                    act()
                at += 1

    return Acts()


def await_warning() -> None:
    """Return after the warning."""
    assert gates["warnings"].wait(WAIT)


def stop_and_await_warning() -> None:
    """Wait after a request to stop."""
    stop()
    await_warning()


class ClaimsNothing(beam.DoFn):
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Numbers())) -> Iterator[Any]:
        await_warning()
        yield from Range().process(element, tracker)


@pytest.mark.contract("SDF-06")
@pytest.mark.parametrize(
    ("dofn", "why"),
    [
        (numbers_that(await_warning, Stubborn), "try_split returns no residual"),
        (ClaimsNothing(), "claimed nothing"),
    ],
)
def test_warning_names_process_that_cannot_be_stopped(dofn: beam.DoFn, why: str, warnings: list[str]) -> None:
    with InMicroBatches(FirstOf(exhausted())) as p:
        _ = p | beam.Create([5], reshuffle=False) | "Poll it" >> beam.ParDo(dofn) | Collect()
    assert sorted(p.values()) == [(5, at) for at in range(5)]
    assert warnings[0].startswith("'Poll it' ")
    assert why in warnings[0]


@pytest.mark.contract("SDF-06")
def test_warning_names_stopped_process_that_continues(warnings: list[str]) -> None:
    with InMicroBatches(FirstOf(exhausted_on_request())) as p:
        _ = (
            p
            | beam.Create([5], reshuffle=False)
            | "Wait" >> beam.ParDo(numbers_that(stop_and_await_warning))
            | Collect()
        )
    assert sorted(p.values()) == [(5, at) for at in range(5)]
    assert "requested to stop" in warnings[-1]


@pytest.mark.contract("SDF-07")
@pytest.mark.parametrize(("pieces", "sizes"), [(1, [97.0]), (3, [31.0, 33.0, 33.0])])
def test_rest_is_split_for_idle_tasks(pieces: int, sizes: list[float]) -> None:
    left: list[float] = []

    def run(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        report = shard.run(exhausted_on_request(pieces=pieces)([(key, [one]) for key, one in arrived]))
        known = report.restrictions
        assert (known.live, known.ready) == (pieces, pieces)
        moved = [each.size for each in known.movable]
        left.extend([*moved, known.size - sum(moved)])

    with InMicroBatches(run) as p:
        build(p, [100], numbers_that(stop))
    assert sorted(left) == sizes
    assert sorted(p.values()) == [(100, at) for at in range(100)]
