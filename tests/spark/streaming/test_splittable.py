"""Splittable DoFns without an end, in a streaming job on Spark."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import window
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam import ArcbeamRunner
from tests.notes import note, noted
from tests.offsets import NO_END, Endless
from tests.waiting import while_running

pytestmark = pytest.mark.usefixtures("spark")


def pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", "--shards=3", *arguments]))


class Feed(beam.DoFn):
    """Yields numbers, each at its second, until a folder has what is expected; returns only when it is stopped."""

    def __init__(self, folder: Path, expected: int) -> None:
        self._folder, self._expected = folder, expected

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(Endless()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            estimator.set_watermark(Timestamp(at))
            yield TimestampedValue((element, at), at)
            at += 1
            if at % 1000 == 0 and len(noted(self._folder)) >= self._expected:
                # At its end: claim all that is left.
                tracker.try_claim(NO_END)
                return


@pytest.mark.contract("SDF-01", "SDF-06")
def test_windows_close_after_endless_process(tmp_path: Path) -> None:
    with pipeline() as p:
        numbers = p | beam.Create(["a", "b"], reshuffle=False) | beam.ParDo(Feed(tmp_path, 8))
        counts = numbers | beam.WindowInto(window.FixedWindows(5000)) | beam.combiners.Count.PerKey()
        _ = counts | beam.Map(
            lambda pair, to, of=beam.DoFn.WindowParam: note((pair[0], int(of.start), pair[1]), to), str(tmp_path)
        )
    found = Counter((key, start) for key, start, _ in noted(tmp_path))
    assert set(found.values()) == {1}
    for key in "ab":
        starts = sorted(start for of, start in found if of == key)
        assert starts == list(range(0, 5000 * len(starts), 5000))
        whole = [count for of, start, count in noted(tmp_path) if of == key and start != starts[-1]]
        assert set(whole) == {5000}


class Polls(beam.DoFn):
    """Polls a source that always has something; records each poll, and when the next one was due."""

    def __init__(self, folder: str, looks: int, delay: float) -> None:
        self._folder, self._looks, self._delay = folder, looks, delay

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(Endless()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        now = Timestamp.now()
        at = tracker.current_restriction().start
        if at == self._looks:
            tracker.try_claim(NO_END)
            return
        tracker.try_claim(at)
        yield TimestampedValue((element, at), now)
        estimator.set_watermark(now)
        # Alternate between a delay and a time.
        due = now + Duration(self._delay)
        note((element, at, now.micros, due.micros), self._folder)
        tracker.defer_remainder(Duration(self._delay) if at % 2 else due)


@pytest.mark.contract("SDF-04", "SDF-11")
def test_deferred_restriction_runs_when_due(tmp_path: Path) -> None:
    with pipeline() as p:
        _ = p | beam.Create(["a", "b"], reshuffle=False) | beam.ParDo(Polls(str(tmp_path), 4, 0.3))
    looks = sorted(noted(tmp_path))
    assert [(element, at) for element, at, _, _ in looks] == [(element, at) for element in "ab" for at in range(4)]
    for (element, _, _, due), (following, _, looked, _) in itertools.pairwise(looks):
        assert element != following or looked >= due


@pytest.mark.contract("SDF-11", "STORE-01")
def test_deferred_restriction_resumes_when_due(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"

    def begun(folder: Path) -> Any:
        folder.mkdir()
        p = pipeline(f"--checkpoint_dir={tmp_path / 'state'}")
        ticks = p | beam.Create(["a"], reshuffle=False) | beam.ParDo(Polls(str(folder), 6, 0.4))
        _ = ticks | beam.Map(lambda pair: pair)
        return p.run()

    first = begun(before)
    while_running(first, lambda: len(noted(before)) >= 3)
    first.cancel()
    assert begun(after).wait_until_finish() == "DONE"
    looks = sorted([*noted(before), *noted(after)])
    assert {at for _, at, _, _ in looks} == set(range(6))
    # What was not committed when the first driver ended was polled again.
    assert len(looks) <= 7
    known = {at: due for _, at, _, due in noted(before)}
    first_again = min(noted(after))
    assert first_again[1] == 0 or first_again[2] >= known[first_again[1] - 1]


@pytest.mark.contract("END-01", "END-02", "SDF-12")
def test_drain_ends_endless_source_and_outputs_windows(tmp_path: Path) -> None:
    p = pipeline()
    numbers = p | beam.Create(["a", "b"], reshuffle=False) | beam.ParDo(Feed(tmp_path, NO_END))
    counts = numbers | beam.WindowInto(window.FixedWindows(5000)) | beam.combiners.Count.PerKey()
    _ = counts | beam.Map(
        lambda pair, to, of=beam.DoFn.WindowParam: note((pair[0], int(of.start), pair[1]), to), str(tmp_path)
    )
    result = p.run()
    while_running(result, lambda: len(noted(tmp_path)) >= 3)
    result.drain()
    assert result.wait_until_finish() == "DRAINED"


class Slow(beam.DoFn):
    """A bounded restriction that takes longer than a micro-batch; records the processes that work on it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Endless(400))) -> Iterator[Any]:
        restriction = tracker.current_restriction()
        note((restriction.start, restriction.stop), self._folder)
        at = restriction.start
        while tracker.try_claim(at):
            yield at
            at += 1
            threading.Event().wait(0.005)


@pytest.mark.contract("SDF-05", "SDF-07", "SDF-08", "SDF-10")
def test_large_restriction_is_shared_and_missing_watermark_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "arcbeam.streaming"), pipeline() as p:
        numbers = p | beam.Create([0], reshuffle=False) | "Slow one" >> beam.ParDo(Slow(str(tmp_path)))
        assert_that(numbers, equal_to(list(range(400))))
    assert len([file for file in tmp_path.iterdir() if file.read_text()]) >= 2, (
        "at least two processes must process a part"
    )
    (warning,) = (record.getMessage() for record in caplog.records if "watermark" in record.getMessage())
    assert "'Slow one/Process'" in warning


class Acknowledged(beam.DoFn):
    """Reads on only after its finalizer has run; ends with its third reading."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: Any,
        finalizer: Any = beam.DoFn.BundleFinalizerParam,
        tracker: Any = beam.DoFn.RestrictionParam(Endless()),
    ) -> Iterator[Any]:
        at = tracker.current_restriction().start
        if at == 3:
            tracker.try_claim(NO_END)
        elif len(noted(self._folder)) < at:
            tracker.defer_remainder(Duration(0.1))
        elif tracker.try_claim(at):
            finalizer.register(lambda: note(at, str(self._folder)))
            yield at
            tracker.defer_remainder(Duration(0.1))


@pytest.mark.contract("SDF-13")
def test_commit_acknowledges_input_while_job_runs(tmp_path: Path) -> None:
    with pipeline() as p:
        numbers = p | beam.Create(["a"], reshuffle=False) | beam.ParDo(Acknowledged(tmp_path))
        assert_that(numbers, equal_to([0, 1, 2]))
    assert sorted(noted(tmp_path)) == [0, 1, 2]


class WithSide(beam.DoFn):
    """Yields numbers below an element, each with the values of a side input, two at a time."""

    def process(
        self, element: int, side: list[int], tracker: Any = beam.DoFn.RestrictionParam(Endless(5))
    ) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield element, at, sorted(side)
            at += 1
            if at % 2 == 0:
                tracker.defer_remainder()
                return


@pytest.mark.contract("SDF-12", "ENG-05")
def test_side_input_exists_for_all_restriction_parts() -> None:
    with pipeline() as p:
        side = p | "Side" >> beam.Create([7, 8])
        found = p | beam.Create([1, 2]) | beam.ParDo(WithSide(), beam.pvalue.AsList(side))
        assert_that(found, equal_to([(n, at, [7, 8]) for n in (1, 2) for at in range(5)]))
