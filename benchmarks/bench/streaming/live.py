"""Pipelines that depend on the clock: the duration of a micro-batch, and the latency from an element to its pane.

Owns a source that outputs what is due, and the measurement. Only arcbeam is measured in this way.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from bench.figures import Figure

KEYS = 10
POLL = 0.1
"""Seconds between two polls of the source."""
PER_SECOND = 1_000
SKIPPED_MICRO_BATCHES = 200
SKIPPED_SECONDS = 15.0
"""The first ones, which are slow until the JVM is warm, do not count."""


class _Numbers(RestrictionProvider):
    """All elements until the end, by number."""

    def initial_restriction(self, source: tuple[float, float, float]) -> OffsetRange:
        _, seconds, per_second = source
        return OffsetRange(0, int(seconds * per_second))

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, source: tuple[float, float, float], restriction: OffsetRange) -> int:
        return restriction.size()


class Ticks(beam.DoFn):
    """Yields, for (start, seconds, per second), that many elements per second: the times at which each was due."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        source: tuple[float, float, float],
        tracker: Any = beam.DoFn.RestrictionParam(_Numbers()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[TimestampedValue]:
        start, _, per_second = source
        restriction = tracker.current_restriction()
        for number in range(restriction.start, restriction.stop):
            due = start + number / per_second
            if due > time.time():
                estimator.set_watermark(Timestamp.of(due))
                tracker.defer_remainder(Duration.of(POLL))
                return
            if not tracker.try_claim(number):
                return
            yield TimestampedValue(due, due)


class Waits(beam.DoFn):
    """Records for each element how long ago its window ended and it was due; a file per bundle."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def start_bundle(self) -> None:
        self.waits: list[tuple[float, float, float]] = []

    def process(self, element: tuple[int, Iterable[float]], window: Any = beam.DoFn.WindowParam) -> None:
        now = time.time()
        self.waits += [(due, now - float(window.end), now - due) for due in element[1]]

    def finish_bundle(self) -> None:
        if self.waits:
            (Path(self.folder) / uuid.uuid4().hex).write_text(json.dumps(self.waits))


class MicroBatches(logging.Handler):
    """The durations of a job's micro-batches, from its log."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("%s: micro-batch %d: ") and isinstance(record.args, tuple):
            self.seconds.append(float(record.args[2]))  # type: ignore[arg-type]


def _values(group: tuple[int, Iterable[float]]) -> Iterator[tuple[int, float]]:
    """Yield the values of a group, each under another key."""
    for due in group[1]:
        yield int(due * 1000) // KEYS % KEYS, due


def _run(seconds: float, per_second: float, folder: str, exchanges: int = 1) -> list[float]:
    """Run the source into windows of a second for so long; return the durations of the micro-batches."""
    from arcbeam import ArcbeamRunner

    logger, micro_batches = logging.getLogger("arcbeam.streaming"), MicroBatches()
    disabled, level = logging.root.manager.disable, logger.level
    logging.disable(logging.NOTSET)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(micro_batches)
    try:
        with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming"])) as p:
            ticks = p | beam.Create([(time.time(), seconds, per_second)], reshuffle=False) | beam.ParDo(Ticks())
            keyed = ticks | beam.Map(lambda due: (int(due * 1000) % KEYS, due)) | beam.WindowInto(FixedWindows(1))
            groups = keyed | beam.GroupByKey()
            for number in range(1, exchanges):
                groups = groups | f"Values {number}" >> beam.FlatMap(_values) | f"Group {number}" >> beam.GroupByKey()
            _ = groups | beam.ParDo(Waits(folder))
    finally:
        logger.removeHandler(micro_batches)
        logger.propagate = True
        logger.setLevel(level)
        logging.disable(disabled)
    return micro_batches.seconds


def micro_batches(seconds: float, skipped: int = SKIPPED_MICRO_BATCHES) -> list[Figure]:
    """Measure a micro-batch with almost no work."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        took = sorted(_run(seconds, 1 / POLL, folder)[skipped:])
    if not took:
        raise ValueError(f"there were at most {skipped} micro-batches in {seconds:g} s: increase --seconds")
    what = f"a micro-batch with little data, two exchanges, after the first {skipped}"
    return [
        Figure(f"{what}: median of {len(took)}", _part(took, 0.5), "s", 0.3),
        Figure("… the 99th of 100", _part(took, 0.99), "s", 1.0),
    ]


def latency(
    seconds: float, skipped: float = SKIPPED_SECONDS, per_second: int = PER_SECOND, exchanges: int = 1
) -> list[Figure]:
    """Measure how long elements wait.

    Args:
        seconds: how long the source runs.
        skipped: seconds at the beginning that do not count.
        per_second: elements.
        exchanges: between the source and the last panes.
    """
    started = time.time()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        _run(seconds, per_second, folder, exchanges)
        noted = [tuple(wait) for file in Path(folder).iterdir() for wait in json.loads(file.read_text())]
    if len(noted) != int(seconds * per_second):
        raise ValueError(f"{len(noted)} elements were in panes, but {int(seconds * per_second)} were read")
    late = [wait for wait in noted if wait[0] > started + skipped]
    behind, old = sorted(wait[1] for wait in late), sorted(wait[2] for wait in late)
    after = "" if exchanges == 1 else f" after {exchanges} exchanges"
    what = f"{per_second:,} elements a second, windows of a second: from a window's end to its pane{after}"
    return [
        Figure(f"{what}, median", _part(behind, 0.5), "s", 1.0),
        Figure("… the 99th of 100", _part(behind, 0.99), "s", 2.0),
        Figure("… from an element to its pane, median", _part(old, 0.5), "s"),
        Figure("… the 99th of 100", _part(old, 0.99), "s"),
    ]


def _part(ordered: list[float], part: float) -> float:
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]
