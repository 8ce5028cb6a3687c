"""Event time and spans of it, in microseconds.

Owns the range that Beam gives to event time. Both types are `int`s at run time: only the type checker tells them apart
from numbers. Standard library only.
"""

from __future__ import annotations

from typing import NewType

Timestamp = NewType("Timestamp", int)
"""A moment of event time (or, where said, of processing time): microseconds since 1970-01-01 UTC."""

Duration = NewType("Duration", int)
"""A span of time, microseconds."""

MIN_TIMESTAMP = Timestamp(-9_223_372_036_854_775_000)
"""The beginning of event time: a watermark that says nothing."""

NOT_BEGUN = Timestamp(MIN_TIMESTAMP + 1)
"""Where what has not run yet is held: other than a source that says nothing, it has had no chance to say anything."""

MAX_TIMESTAMP = Timestamp(9_223_372_036_854_775_000)
"""The end of event time: a watermark behind which nothing comes."""

END_OF_GLOBAL_WINDOW = Timestamp(9_223_371_950_454_774_999)
"""The last moment of the global window: a day before the end, so that something may come after it."""


def shifted(moment: Timestamp, by: Duration) -> Timestamp:
    """A moment so much later, within the range of event time."""
    return Timestamp(min(max(moment + by, MIN_TIMESTAMP), MAX_TIMESTAMP))


_FAR = 10 * 365 * 86_400
"""Seconds: event times that are farther from the clock do not follow it, as the small times of tutorials."""


def long_shown(seconds: float) -> str:
    """A span of time for people, in its largest unit of which there are two."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def behind_shown(seconds: float) -> str:
    """How far an event time is behind the clock, for people; what is ahead of it counts as not behind."""
    if seconds >= _FAR:
        return "far from the clock"
    return f"{max(0.0, seconds):,.1f} s behind" if seconds < 120 else f"{long_shown(seconds)} behind"
