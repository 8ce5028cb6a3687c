"""Times that are too far ahead of all others to be believed, until others are near them.

Owns the rule. Must not know who has seen the times, nor in which order, in which shards and micro-batches: the rule
does not, so what is believed in the end is the same however a stream is cut.

Times form chains: each is at most `jump` behind the next. A chain is believed if it has the latest time that is
believed already, or more than `others` times. What is believed is all up to the end of the last such chain; what is
behind that end decides nothing any more. So what is kept is that end, and the later times, whose chains are too short.
Elements of the very same time count once: one that is read twice confirms nothing, nor does a clock that stands.

No more than `MOST` - 1 times are ever doubted. One more, and the first of them is believed: also a stream whose
elements are all further apart than `jump` moves on.

In other words: the latest that is believed is the first of all times (or the beginning of time) behind which there is
none within `jump`, no chain of more than `others` times, and fewer than `MOST` times in all. Where that is so of some
times it is so of fewer; hence more times only ever move it on, and those up to it may be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from arcbeam.model.observers import MOST
from arcbeam.model.timestamps import Timestamp

Doubted = Mapping[str, tuple[Timestamp, ...]]
"""The times that observers have seen and do not believe, by their names; of each in order, and no time twice."""

NOTHING_DOUBTED: Final[Doubted] = MappingProxyType({})


class Belief(NamedTuple):
    """What an observer makes of the times that it has seen.

    Attributes:
        latest: the latest that is believed; None: none is.
        doubted: all that are later, in order.
    """

    latest: Timestamp | None
    doubted: tuple[Timestamp, ...]


def believed(latest: int | None, times: Iterable[int], jump: int, others: int) -> Belief:
    """What is believed when more is seen.

    Args:
        latest: that was believed already.
        times: what is doubted, and what was seen; in any order.
        jump: microseconds.
        others: how many must be near a time.
    """
    later = sorted({time for time in times if latest is None or time > latest})
    kept = 0
    before, length = latest, 0 if latest is None else others + 1
    for at, time in enumerate(later, 1):
        length = length + 1 if before is not None and time - before <= jump else 1
        before = time
        if length > others:
            kept = at
    if len(later) - kept >= MOST:
        kept = len(later) - MOST + 1
        while kept < len(later) and later[kept] - later[kept - 1] <= jump:
            kept += 1
    if kept:
        latest = later[kept - 1]
    return Belief(None if latest is None else Timestamp(latest), tuple(map(Timestamp, later[kept:])))
