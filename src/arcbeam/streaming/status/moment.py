"""Figures of a job that depend on the moment: how far watermarks are behind the clock, and rates.

Owns their definitions; all views use these. The moment is that of the view, not that of the newest micro-batch.
"""

from __future__ import annotations

from typing import Final

from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP, Duration
from arcbeam.store.manifest.values import ENDED

RATE_WINDOW: Final = Duration(60_000_000)
"""A rate is the mean of at least this time before the newest commit, if the driver has run for so long."""

CLOCK_REACHES: Final = "the clock reaches "
"""Begins what releases a hold that waits for the clock alone."""
DUE_NOW: Final = "the next micro-batch ends: it processes what is due"
"""Releases a hold that the clock has released."""
STOPPED: Final = ENDED | {CommitMode.SUSPENDED}
"""The modes of jobs without a driver: their clock stands at their last commit."""


def watermark_gap(watermark: int, clock: int) -> Duration | None:
    """Return the clock minus a watermark, never negative; None if the watermark is at the beginning or end of time."""
    if not MIN_TIMESTAMP < watermark < END_OF_GLOBAL_WINDOW:
        return None
    return Duration(max(0, clock - watermark))


def rate(elements: int, window: Duration | None, since: int) -> float | None:
    """Return elements per second; None if unknown.

    Args:
        elements: those of a window of time that ends with the newest commit.
        window: its length; None: unknown.
        since: microseconds since the newest commit. If they are longer than the window, nothing more was committed for
            so long, and the rate falls.
    """
    return round(elements * 1e6 / max(window, since), 3) if window else None
