"""A source that puts out what a test lets it, and ends when the test says so: what has come by then is not chance."""

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
    """Lets the source put out the numbers below `until`, and then end if that is all."""
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
    """Numbers, each at its own second; the element is the folder that says how far."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: str,
        tracker: Any = beam.DoFn.RestrictionParam(Endless()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        yield from _numbers(element, tracker, lambda until: estimator.set_watermark(Timestamp(until)))


class Silent(beam.DoFn):
    """As `Fed`, and says nothing of time before it ends."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: str, tracker: Any = beam.DoFn.RestrictionParam(Endless())) -> Iterator[Any]:
        yield from _numbers(element, tracker, lambda _: None)


def fed(p: beam.Pipeline, folder: Path, *, silently: bool = False) -> beam.PCollection:
    """The numbers of a source that `feed` feeds; it promises no time if it does so silently."""
    return p | "Where" >> beam.Create([str(folder)]) | "Fed" >> beam.ParDo(Silent() if silently else Fed())
