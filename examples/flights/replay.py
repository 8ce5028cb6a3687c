"""A year that passes in a minute, and its last days hour by hour: lines of a file, each when its time has come.

Owns the files in order, and the source that reads them. Knows Beam's splittable DoFns, and no runner.
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
"""Seconds until it is looked again whether the time of the next line has come."""


class Feed(NamedTuple):
    """A file whose lines come at their times.

    Attributes:
        path: each line begins with its time, seconds since 1970, and a tab; lines are in the order of these.
        begin: when the first one comes, seconds since 1970 by the clock.
        first: the time at which that is in the file.
        speed: so many seconds of the file pass in one by the clock.
        ordered: the file has event times in order, so it says up to where it has come.
        follows: behind the last line it waits for more, until it is drained; else it ends there.
        live: lines from this time on come at `pace`, from the moment at which whoever reads has come there: who was
            behind is not any more.
        pace: as `speed`, of these.
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
        """The time that it is in the file by now, for who has come to a line of this time."""
        if place < self.live:
            return min(self.first + (time.time() - self.begin) * self.speed, self.live)
        return self.live + (time.time() - _since(Path(f"{self.path}.live"))) * self.pace


def _since(mark: Path) -> float:
    """When this was first asked: the file stays, whoever asks again."""
    if not mark.exists():
        mark.touch()
    return mark.stat().st_mtime


def written_in_order(lines: Iterable[tuple[float, str]], file: Path) -> None:
    """Writes (time, line) pairs to a file, by their times."""
    with file.open("w", encoding="utf-8") as out:
        out.writelines(f"{at:.0f}\t{line}\n" for at, line in sorted(lines, key=lambda pair: pair[0]))


class _InOrder(OffsetRestrictionTracker):  # type: ignore[misc]  # Beam is untyped
    """A file that is read from its beginning to its end by one reader: half of the year is not there to be read yet."""

    def try_split(self, fraction: float) -> Any:
        """See Beam: only what was not claimed yet goes away, all of it."""
        return super().try_split(fraction) if fraction == 0 else None


class Replay(beam.DoFn, RestrictionProvider):  # type: ignore[misc]  # Beam is untyped
    """Feeds -> their lines, without the times, as these come."""

    def initial_restriction(self, element: Feed) -> OffsetRange:
        # Who waits for more keeps a place behind the last line.
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
                said, _, text = line.decode().rstrip("\n").partition("\t")
                at = int(said)
                if at > element.now(at):
                    tracker.defer_remainder(Duration(POLL))
                    return
                place += len(line)
                # A line is claimed by its last byte: what is left behind it begins with the next one.
                if not tracker.try_claim(place - 1):
                    return
                yield text
                if element.ordered:
                    estimator.set_watermark(Timestamp(at))
        if element.follows:
            tracker.defer_remainder(Duration(POLL))
        else:
            tracker.try_claim(place)
