"""Restrictions of numbers, for splittable DoFns in tests."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker

NO_END = 2**60
"""The end of offsets that represent an endless range."""


class UpTo(beam.RestrictionProvider):  # type: ignore[misc]  # Beam is untyped
    """The numbers below an element.

    Attributes:
        tracker: makes the tracker of a restriction.
    """

    tracker: Any = OffsetRestrictionTracker

    def initial_restriction(self, element: Any) -> OffsetRange:
        return OffsetRange(0, element)

    def create_tracker(self, restriction: OffsetRange) -> Any:
        return self.tracker(restriction)

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return int(restriction.size())


class Whole(OffsetRestrictionTracker):  # type: ignore[misc]  # Beam is untyped
    """A restriction that is not split: only what is deferred is split off."""

    def try_split(self, fraction_of_remainder: float) -> Any:
        return super().try_split(fraction_of_remainder) if fraction_of_remainder == 0 else None


class WholeUpTo(UpTo):
    """The same, by one task at a time."""

    tracker = Whole


class Endless(UpTo):
    """Offsets of a feed, for any element. All parts have the same size, and none is left when the job drains."""

    def __init__(self, stop: int = NO_END) -> None:
        self._stop = stop

    def initial_restriction(self, element: Any) -> OffsetRange:
        return OffsetRange(0, self._stop)

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return 1

    def truncate(self, element: Any, restriction: OffsetRange) -> None:
        """Drop the rest: it has no end to reach."""
