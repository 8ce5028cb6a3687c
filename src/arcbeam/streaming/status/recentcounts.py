"""The counters of a job at some commits of the last minute, from which rates are computed.

Owns at which commits counters are remembered. Must not know how they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from arcbeam.engine.protocol.reports import Counts
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.streaming.status.moment import RATE_WINDOW

_INTERVAL_MIN: Final = Duration(10_000_000)
"""The least time between two remembered commits."""


class Mark(NamedTuple):
    """Counters of a stage since the job began, at a commit."""

    read: int
    written: int
    made: int


def mark_of(total: Counts) -> Mark:
    """Return the counters to remember."""
    return Mark(total.read, total.written, total.made)


def remembered(times: Sequence[Timestamp], now: Timestamp) -> tuple[Sequence[Timestamp], bool]:
    """Return the commits to remember after another one.

    Args:
        times: those remembered so far.
        now: the time of the new commit.

    Returns:
        Their times, and whether the new one is among them. The first is a minute ago or more, if the driver has run for
        so long.
    """
    is_new = not times or now - times[-1] >= _INTERVAL_MIN
    found = [*times, now] if is_new else list(times)
    begins = now - RATE_WINDOW
    forgotten = sum(1 for later in found[1:] if later <= begins)
    return found[forgotten:], is_new


def gained(total: Counts, marks: Sequence[Mark], times: int) -> Mark:
    """Return what the counters of a stage have gained since the first remembered commit.

    Args:
        total: its counters now.
        marks: those at the last remembered commits. A stage that began later has fewer than there are.
        times: the number of remembered commits.
    """
    first = marks[0] if len(marks) == times and marks else Mark(0, 0, 0)
    return Mark(*(new - old for new, old in zip(mark_of(total), first, strict=True)))
