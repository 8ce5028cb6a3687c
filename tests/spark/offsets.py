"""Restrictions of numbers: what splittable DoFns of the tests read."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker


class UpTo(beam.RestrictionProvider):
    """The numbers below an element."""

    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, element)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: int, restriction: OffsetRange) -> int:
        return int(restriction.size())


class Whole(OffsetRestrictionTracker):
    """Is not shared out: only what is deferred is split off."""

    def try_split(self, fraction_of_remainder: float) -> Any:
        return super().try_split(fraction_of_remainder) if fraction_of_remainder == 0 else None


class WholeUpTo(UpTo):
    """The same, by one task at a time."""

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return Whole(restriction)
