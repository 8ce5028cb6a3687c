"""What it means that time has passed a moment.

Owns the two comparisons that everything about time is made of, so that nobody writes them a second time with another
sign. Must not know what happens then.
"""

from __future__ import annotations

from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp


def passed(watermark: Timestamp, moment: Timestamp) -> bool:
    """Whether an event-time watermark has passed a moment: nothing of that moment may come any more, but late.

    A watermark says that what comes has its time or a later one. So it has passed what is strictly earlier; and the
    last watermark of all, behind which nothing comes, has passed everything.
    """
    return watermark > moment or watermark == MAX_TIMESTAMP


def due(now: Timestamp, moment: Timestamp) -> bool:
    """Whether a moment of processing time has come: the clock shows it, or a later one."""
    return now >= moment
