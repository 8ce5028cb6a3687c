"""An API that is polled forever: a splittable DoFn that polls, defers without blocking, and reports its watermark.

    arcbeam run examples/polled_api.py [--seconds 10] [--checkpoint_dir …]

The API returns the records after a position that exist so far. Here it is a function, `measurements`: three stations
measure something every tenth of a second. The restriction is the positions that were not read yet. If nothing is new,
the rest is deferred: no worker waits, and no micro-batch runs. The watermark is the time of the last record, so the
mean of each second is output in the next. The pipeline ends after `--seconds`, or immediately if the runner drains it.
With `--checkpoint_dir` it resumes after the last record that was read.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

STATIONS = ("ahead", "behind", "beside")
EVERY = 0.1


class Feed(NamedTuple):
    """What to poll: records from one moment until another, in seconds since 1970."""

    begin: float
    end: float


def measurements(feed: Feed, position: int) -> list[tuple[float, str, float]]:
    """The API: return the records after a position, as (time, station, value)."""
    until = int((min(time.time(), feed.end) - feed.begin) / EVERY)
    times = ((n, feed.begin + n * EVERY) for n in range(position, until))
    return [(at, STATIONS[n % len(STATIONS)], 10 + math.sin(n / 10)) for n, at in times]


class Positions(beam.RestrictionProvider):
    """The positions that were not read yet. There is always one more."""

    def initial_restriction(self, feed: Feed) -> OffsetRange:
        return OffsetRange(0, sys.maxsize)

    def create_tracker(self, positions: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(positions)

    def restriction_size(self, feed: Feed, positions: OffsetRange) -> int:
        return 1

    def truncate(self, feed: Feed, positions: OffsetRange) -> None:
        """Drop the rest: a drain does not wait for future records."""


class Poll(beam.DoFn):
    """Feed -> (station, value) at its time."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        feed: Feed,
        tracker: Any = beam.DoFn.RestrictionParam(Positions()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        """Output the records that exist, and defer the rest."""
        position = tracker.current_restriction().start
        for at, station, value in measurements(feed, position):
            if not tracker.try_claim(position):
                return  # the runner has taken the rest and will process it later
            yield TimestampedValue((station, value), at)
            # The next record is no earlier.
            watermark.set_watermark(Timestamp.of(at))
            position += 1
        if time.time() < feed.end:
            tracker.defer_remainder(Duration(0.3))
        else:
            tracker.try_claim(sys.maxsize)  # claim all that is left: no more records will come


def write(mean: tuple[str, float], output: str, window: Any = beam.DoFn.WindowParam) -> None:
    """Write a window's mean to a file named after the window; a retry writes the same file."""
    station, value = mean
    Path(output, f"{int(window.start)}-{station}.txt").write_text(f"{value:.3f}\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Poll, and write a file for each second and station. Return the exit status."""
    parser = argparse.ArgumentParser(description="Compute means of a polled API.")
    parser.add_argument("--output", type=Path, default=Path("build/polled_api"), help="folder of the results")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to poll")
    known, beam_arguments = parser.parse_known_args(arguments)
    output = known.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    with beam.Pipeline(options=PipelineOptions(beam_arguments)) as pipeline:
        (
            pipeline
            | "Feed" >> beam.Create([Feed(begin, begin + known.seconds)])
            | "Poll" >> beam.ParDo(Poll())
            | "Seconds" >> beam.WindowInto(FixedWindows(1))
            | "Mean" >> beam.combiners.Mean.PerKey()
            | "Write" >> beam.Map(write, str(output))
        )
    print(f"{len(list(output.iterdir()))} means are in {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
