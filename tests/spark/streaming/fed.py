"""A source that outputs what a test allows, and ends when the test says so, so that its progress is deterministic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms import window
from apache_beam.utils.timestamp import Timestamp

from tests.offsets import NO_END, Endless

_POLL_SECONDS = 0.05


def feed(folder: Path, until: int, *, end: bool = False) -> None:
    """Allow the source to output the numbers below `until`, and then to end if `end` is set."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "partial"
    partial.write_text(f"{until} {int(end)}")
    partial.rename(folder / "fed")


def _numbers(folder: str, tracker: Any, promise: Callable[[int], object]) -> Iterator[Any]:
    until, end = map(int, Path(folder, "fed").read_text().split())
    for n in range(tracker.current_restriction().start, until):
        if not tracker.try_claim(n):
            return
        yield window.TimestampedValue(n, n)
    promise(until)
    if end:
        tracker.try_claim(NO_END)
    else:
        tracker.defer_remainder(Timestamp.of(time.time() + _POLL_SECONDS))


class Fed(beam.DoFn):
    """Yields numbers, each at its own second; the element is the folder with their limit."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: str,
        tracker: Any = beam.DoFn.RestrictionParam(Endless()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        yield from _numbers(element, tracker, lambda until: estimator.set_watermark(Timestamp(until)))


class Silent(beam.DoFn):
    """Like `Fed`, but reports no watermark before it ends."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: str, tracker: Any = beam.DoFn.RestrictionParam(Endless())) -> Iterator[Any]:
        yield from _numbers(element, tracker, lambda _: None)


def fed(p: beam.Pipeline, folder: Path, *, silently: bool = False) -> beam.PCollection:
    """Return the numbers of a source that `feed` feeds; if `silently`, it reports no watermark."""
    return p | "Where" >> beam.Create([str(folder)]) | "Fed" >> beam.ParDo(Silent() if silently else Fed())
