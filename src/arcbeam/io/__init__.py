"""Transforms that users of Spark know, and Beam does not have; they are made of Beam's own."""

from arcbeam.io.deduplication import DeduplicateWithinWatermark
from arcbeam.io.joins import JoinWithin
from arcbeam.io.late import GroupedAndLate, LateElement, WithLate
from arcbeam.io.outputmodes import OutputMode
from arcbeam.io.publishing import Publish, Publisher, attempt
from arcbeam.io.watermarks import WithWatermark

__all__ = [
    "DeduplicateWithinWatermark",
    "GroupedAndLate",
    "JoinWithin",
    "LateElement",
    "OutputMode",
    "Publish",
    "Publisher",
    "WithLate",
    "WithWatermark",
    "attempt",
]
