"""The outlier filter: times far later than all others are not accepted until other times are near them.

Owns the rule. Must not know which shards and micro-batches have seen the times, nor in which order: the rule does not
depend on these, so the result is the same however a stream is cut.

Times form chains: the distance from each to the next is at most `jump`. A chain is accepted if it contains the latest
time that is accepted already, or more than `others` times. All times up to the end of the last accepted chain are
accepted; earlier times have no further effect. So only that end is stored, and the later times, whose chains are too
short. Equal times count once: an element that is read twice confirms nothing, nor does a clock that has stopped.

At most `UNCONFIRMED_MAX` - 1 times are unconfirmed. With one more, the first of them is accepted. So a stream advances
even if all its elements are further apart than `jump`.

In other words: the latest accepted time is the first of all times (or the beginning of time) after which there is no
time within `jump`, no chain of more than `others` times, and fewer than `UNCONFIRMED_MAX` times in all. If this holds
for some times, it holds for a subset. Hence more times only move it forward, and times up to it may be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from arcbeam.model.observers import UNCONFIRMED_MAX
from arcbeam.model.timestamps import Timestamp

UnconfirmedTimes = Mapping[str, tuple[Timestamp, ...]]
"""The times that each observer has seen and not accepted, by its name; ascending and unique."""

NOTHING_UNCONFIRMED: Final[UnconfirmedTimes] = MappingProxyType({})


class OutlierDecision(NamedTuple):
    """The times of an observer, split by the filter.

    Attributes:
        latest: the latest accepted time; None: no time is accepted.
        unconfirmed: all later times, ascending.
    """

    latest: Timestamp | None
    unconfirmed: tuple[Timestamp, ...]


def without_outliers(latest: int | None, times: Iterable[int], jump: int, others: int) -> OutlierDecision:
    """Apply the filter to new times.

    Args:
        latest: the latest time accepted so far.
        times: the unconfirmed and the new times, in any order.
        jump: in microseconds.
        others: how many other times must be near a time.
    """
    later = sorted({time for time in times if latest is None or time > latest})
    kept = 0
    before, length = latest, 0 if latest is None else others + 1
    for at, time in enumerate(later, 1):
        length = length + 1 if before is not None and time - before <= jump else 1
        before = time
        if length > others:
            kept = at
    if len(later) - kept >= UNCONFIRMED_MAX:
        kept = len(later) - UNCONFIRMED_MAX + 1
        while kept < len(later) and later[kept] - later[kept - 1] <= jump:
            kept += 1
    if kept:
        latest = later[kept - 1]
    return OutlierDecision(None if latest is None else Timestamp(latest), tuple(map(Timestamp, later[kept:])))
