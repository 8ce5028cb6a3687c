"""A year that passes in a minute, and its last days hour by hour: lines of a file, each at its time.

Owns the ordered files and the source that reads them. Knows Beam's splittable DoFns, and no runner.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.utils.timestamp import Duration, Timestamp

POLL = 0.2
"""Seconds between two checks whether the time of the next line has come."""


class Feed(NamedTuple):
    """A file whose lines arrive at their times.

    Attributes:
        path: each line begins with its time, seconds since 1970, and a tab; lines are ordered by time.
        begin: when the first line arrives, seconds since 1970 by the clock.
        first: the corresponding time in the file.
        speed: seconds of the file per second of the clock.
        ordered: whether the file has event times in order, so that the source reports a watermark.
        follows: whether the source waits for more after the last line, until it is drained. Otherwise it ends there.
        live: lines from this time on arrive at `pace`, from the moment when the reader reaches them. A reader that was
            late catches up there.
        pace: like `speed`, for these lines.
    """

    path: str
    begin: float
    first: float
    speed: float
    ordered: bool
    follows: bool = False
    live: float = math.inf
    pace: float = 1.0

    def now(self, place: float) -> float:
        """Return the time in the file now, for a reader that has reached a line of this time."""
        if place < self.live:
            return min(self.first + (time.time() - self.begin) * self.speed, self.live)
        return self.live + (time.time() - _since(Path(f"{self.path}.live"))) * self.pace


def _since(mark: Path) -> float:
    """Return when this was first called; a file keeps the time for later calls."""
    if not mark.exists():
        mark.touch()
    return mark.stat().st_mtime


def written_in_order(lines: Iterable[tuple[float, str]], file: Path) -> None:
    """Write (time, line) pairs to a file, ordered by time."""
    with file.open("w", encoding="utf-8") as out:
        out.writelines(f"{at:.0f}\t{line}\n" for at, line in sorted(lines, key=lambda pair: pair[0]))


class _InOrder(OffsetRestrictionTracker):  # type: ignore[misc]  # Beam is untyped
    """A file that one reader reads from beginning to end: half of the year is still in the future."""

    def try_split(self, fraction: float) -> Any:
        """See Beam: a split gives away everything that was not claimed."""
        return super().try_split(fraction) if fraction == 0 else None


class Replay(beam.DoFn, RestrictionProvider):  # type: ignore[misc]  # Beam is untyped
    """Feeds -> their lines, without the times, when they arrive."""

    def initial_restriction(self, element: Feed) -> OffsetRange:
        # A source that waits for more keeps a position after the last line.
        return OffsetRange(0, Path(element.path).stat().st_size + element.follows)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return _InOrder(restriction)

    def restriction_size(self, element: Feed, restriction: OffsetRange) -> int:
        return int(restriction.size()) - element.follows

    def truncate(self, element: Feed, restriction: OffsetRange) -> None:
        """See Beam: a drain reads nothing more."""
        return None

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: Feed,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[str]:
        place = tracker.current_restriction().start
        with open(element.path, "rb") as file:
            file.seek(place)
            for line in file:
                reported, _, text = line.decode().rstrip("\n").partition("\t")
                at = int(reported)
                if at > element.now(at):
                    tracker.defer_remainder(Duration(POLL))
                    return
                place += len(line)
                # A line is claimed by its last byte: the rest begins with the next line.
                if not tracker.try_claim(place - 1):
                    return
                yield text
                if element.ordered:
                    estimator.set_watermark(Timestamp(at))
        if element.follows:
            tracker.defer_remainder(Duration(POLL))
        else:
            tracker.try_claim(place)
