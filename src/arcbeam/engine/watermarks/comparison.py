"""The comparisons of watermarks and clocks with moments.

Owns the only two comparisons of time, so that no other module repeats them with a different boundary. Must not know
what happens after a moment has passed.
"""

from __future__ import annotations

from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp


def passed(watermark: Timestamp, moment: Timestamp) -> bool:
    """Return whether an event-time watermark has passed a moment: only late elements of that moment can follow.

    A watermark states that following elements have its time or a later one. So it has passed strictly earlier moments.
    The last watermark of all has passed every moment, because nothing follows it.
    """
    return watermark > moment or watermark == MAX_TIMESTAMP


def due(now: Timestamp, moment: Timestamp) -> bool:
    """Return whether the clock shows a moment of processing time, or a later one."""
    return now >= moment
