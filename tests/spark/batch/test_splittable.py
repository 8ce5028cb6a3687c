"""Splittable DoFns on Spark: rounds, due times, splits of lagging restrictions, and their place in pipelines."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.iobase import BoundedSource, Read, SourceBundle
from apache_beam.io.range_trackers import OffsetRangeTracker
from apache_beam.io.restriction_trackers import OffsetRange
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import SlidingWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration
from pyspark import TaskContext

from arcbeam import ArcbeamRunner
from arcbeam.errors import UserCodeError
from tests.offsets import UpTo

pytestmark = pytest.mark.usefixtures("spark")


def _pipeline(*arguments: str, drain: bool = False) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(is_drain=drain), options=PipelineOptions(list(arguments)))


def _expected(*elements: int) -> list[Any]:
    return [(element, at) for element in elements for at in range(element)]


class InPairs(UpTo):
    def split(self, element: int, restriction: OffsetRange) -> Iterable[OffsetRange]:
        return restriction.split(2)


class Range(beam.DoFn):
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(InPairs())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield element, at
            at += 1


class OneByOne(beam.DoFn):
    """Defers the rest after every number; records when it ran, and when it may run next."""

    def __init__(self, notes: str, delay: float) -> None:
        self._notes, self._delay = notes, delay

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(UpTo())) -> Iterator[Any]:
        here = time.time()
        at = tracker.current_restriction().start
        if tracker.try_claim(at):
            yield element, at
            due = time.time() + self._delay
            tracker.defer_remainder(Duration(self._delay) if self._delay else None)
            note = {"element": element, "at": at, "here": here, "due": due}
            (Path(self._notes) / f"{element}-{at}").write_text(json.dumps(note))


def _notes(folder: Path) -> dict[int, list[Any]]:
    notes = sorted((json.loads(path.read_text()) for path in folder.iterdir()), key=lambda note: note["at"])
    return {n: [note for note in notes if note["element"] == n] for n in {note["element"] for note in notes}}


@pytest.mark.contract("SDF-04", "SDF-05", "BAT-03")
@pytest.mark.parametrize("budget", [0.1, 10.0], ids=["in rounds", "in one task"])
def test_delay_is_exact_to_a_fraction_of_second(tmp_path: Path, budget: float) -> None:
    with _pipeline(f"--sdf_round_seconds={budget}") as p:
        found = p | beam.Create([3, 2]) | beam.ParDo(OneByOne(str(tmp_path), 0.3))
        assert_that(found, equal_to(_expected(3, 2)))
    for notes in _notes(tmp_path).values():
        assert all(later["here"] >= earlier["due"] for earlier, later in itertools.pairwise(notes))


@pytest.mark.contract("SDF-05", "SDF-06")
@pytest.mark.parametrize("budget", [0.0, 10.0])
def test_checkpoint_at_every_claim(tmp_path: Path, budget: float) -> None:
    with _pipeline(f"--sdf_round_seconds={budget}", "--shards=3") as p:
        found = p | beam.Create([3, 1, 2]) | beam.ParDo(OneByOne(str(tmp_path), 0))
        assert_that(found, equal_to(_expected(3, 1, 2)))


class Slow(beam.DoFn):
    """Records the task that claimed each number; each number takes some time."""

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(UpTo())) -> Iterator[Any]:
        context = TaskContext.get()
        task = context.taskAttemptId() if context else os.getpid()
        start = at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield element, at, task, start
            time.sleep(0.01)  # the work itself
            at += 1


def _in_parts(found: list[Any]) -> None:
    assert sorted((element, at) for element, at, _, _ in found) == _expected(100)
    assert len({task for _, _, task, _ in found}) >= 3
    starts = sorted({start for _, _, _, start in found})
    assert len(starts) >= 3, f"a lagging restriction was not split: {starts}"


@pytest.mark.contract("SDF-06", "SDF-07", "SDF-08")
def test_lagging_restriction_is_split_across_tasks() -> None:
    with _pipeline("--sdf_round_seconds=0.2", "--shards=2") as p:
        assert_that(p | beam.Create([100]) | beam.ParDo(Slow()), _in_parts)


class WithWindow(beam.DoFn):
    def process(
        self,
        element: int,
        factor: int,
        window: Any = beam.DoFn.WindowParam,
        tracker: Any = beam.DoFn.RestrictionParam(UpTo()),
    ) -> Iterator[Any]:
        at = tracker.current_restriction().start
        if tracker.try_claim(at):
            yield element, at * factor, float(window.start)
            tracker.defer_remainder()


@pytest.mark.contract("SDF-09", "SDF-12")
def test_windows_side_inputs_and_several_in_one_pipeline() -> None:
    with _pipeline("--sdf_round_seconds=0.2") as p:
        factor = p | "Factor" >> beam.Create([10])
        sums = (
            p
            | beam.Create([4])
            | "First" >> beam.ParDo(Range())
            | beam.MapTuple(lambda element, at: (at % 2, at))
            | beam.GroupByKey()
            | beam.MapTuple(lambda key, values: sum(values))
        )
        windowed = (
            sums
            | beam.Map(lambda n: TimestampedValue(n, 25))
            | "Sliding" >> beam.WindowInto(SlidingWindows(20, 10))
            | "Second" >> beam.ParDo(WithWindow(), beam.pvalue.AsSingleton(factor))
            | "Global" >> beam.WindowInto(beam.window.GlobalWindows())
        )
        expected = [(n, at * 10, start) for n in (2, 4) for at in range(n) for start in (10.0, 20.0)]
        assert_that(windowed, equal_to(expected))


class Source(BoundedSource):  # type: ignore[misc]
    def __init__(self, stop: int) -> None:
        self._stop = stop

    def estimate_size(self) -> int:
        return self._stop

    def split(self, size: int, start: Any = None, stop: Any = None) -> Iterator[SourceBundle]:
        for start in range(0, self._stop, 50):
            yield SourceBundle(50, self, start, start + 50)

    def get_range_tracker(self, start: Any, stop: Any) -> OffsetRangeTracker:
        return OffsetRangeTracker(start or 0, self._stop if stop is None else stop)

    def read(self, tracker: OffsetRangeTracker) -> Iterator[int]:
        at = tracker.start_position()
        while tracker.try_claim(at):
            yield at
            time.sleep(0.002)  # the work itself
            at += 1


@pytest.mark.contract("SDF-07", "SDF-08")
def test_bounded_source_is_read_in_rounds() -> None:
    with _pipeline("--sdf_round_seconds=0.1") as p:
        assert_that(p | Read(Source(200)), equal_to(list(range(200))))


class Truncated(UpTo):
    def truncate(self, element: int, restriction: OffsetRange) -> OffsetRange | None:
        return OffsetRange(0, 2) if restriction.start == 0 and element > 2 else None


class Bounded(beam.DoFn):
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Truncated())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        if tracker.try_claim(at):
            yield element, at
            tracker.defer_remainder()


@pytest.mark.contract("SDF-12", "PLAN-03")
def test_truncation() -> None:
    with _pipeline(drain=True) as p:
        assert_that(p | beam.Create([9, 2], reshuffle=False) | beam.ParDo(Bounded()), equal_to([(9, 0), (9, 1)]))


class Careless(beam.DoFn):
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(UpTo())) -> None:
        tracker.try_claim(0)


@pytest.mark.contract("SDF-03")
def test_unclaimed_work_fails_with_transforms_name() -> None:
    with pytest.raises(UserCodeError, match="has not been claimed") as failed, _pipeline() as p:
        _ = p | beam.Create([5]) | "Hasty" >> beam.ParDo(Careless())
    assert failed.value.step == "Hasty"
