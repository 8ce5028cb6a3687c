"""Event time and spans of it, in microseconds.

Owns the range that Beam gives to event time. Both types are `int`s at run time: only the type checker tells them apart
from numbers. Standard library only.
"""

from __future__ import annotations

from typing import NewType

Timestamp = NewType("Timestamp", int)
"""A moment of event time (or, where stated, of processing time): microseconds since 1970-01-01 UTC."""

Duration = NewType("Duration", int)
"""A span of time, microseconds."""

MIN_TIMESTAMP = Timestamp(-9_223_372_036_854_775_000)
"""The beginning of event time: an output without a watermark."""

NOT_BEGUN = Timestamp(MIN_TIMESTAMP + 1)
"""The hold of a stage that has not run yet: unlike a source without a watermark, it could not report one."""

MAX_TIMESTAMP = Timestamp(9_223_372_036_854_775_000)
"""The end of event time: nothing follows this watermark."""

END_OF_GLOBAL_WINDOW = Timestamp(9_223_371_950_454_774_999)
"""The last moment of the global window: a day before the end, so that something may follow it."""


def shifted(moment: Timestamp, by: Duration) -> Timestamp:
    """Return a moment shifted by a duration, within the range of event time."""
    return Timestamp(min(max(moment + by, MIN_TIMESTAMP), MAX_TIMESTAMP))


_BEHIND_SECONDS_MAX = 10 * 365 * 86_400
"""Seconds: event times further from the clock do not follow it, like the small times of tutorials."""


def long_shown(seconds: float) -> str:
    """Return a span of time for people, in the largest unit that it contains at least twice."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def is_far(seconds: float) -> bool:
    """Return whether an event time that is so far behind the clock does not follow it."""
    return seconds >= _BEHIND_SECONDS_MAX


def behind_shown(seconds: float) -> str:
    """Return how far an event time is behind the clock, for people; one ahead of the clock counts as 0."""
    if is_far(seconds):
        return "far from the clock"
    span = f"{max(0.0, seconds):,.1f} s" if seconds < 120 else long_shown(seconds)
    return f"{span} behind"
