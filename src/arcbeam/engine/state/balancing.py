"""The distribution of restrictions over shards: packing new ones, moving waiting ones.

Owns two pure functions of sizes. Must not know more of a restriction than its id and size.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class MovableRestriction:
    """A restriction that can move as a whole.

    Attributes:
        id: unique.
        size: its amount of work. A size that is not a positive finite number counts as the mean of those that are.
    """

    id: bytes
    size: float


@dataclass(frozen=True, slots=True)
class RestrictionMove:
    """A move of one restriction from one shard to another."""

    id: bytes
    source: int
    target: int


def pack(sizes: Sequence[float], shards: int, loads: list[float] | None = None) -> list[int]:
    """Spread restrictions over shards so that no shard has much more than another: the largest first, to the emptiest.

    The fullest shard has at most four thirds of the possible minimum.

    Args:
        sizes: the sizes of the restrictions, as in `MovableRestriction`.
        shards: the number of shards.
        loads: the load of each shard so far, which is updated. None: no load.

    Returns:
        The shard of each restriction.
    """
    weights = _weights(sizes)
    loads = [0.0] * shards if loads is None else loads
    emptiest = [(load, shard) for shard, load in enumerate(loads)]
    heapq.heapify(emptiest)
    places = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: (-weights[i], i)):
        load, shard = emptiest[0]
        places[i] = shard
        loads[shard] = load + weights[i]
        heapq.heapreplace(emptiest, (loads[shard], shard))
    return places


_SHARE_ABOVE_MEAN_MAX: Final = 0.25
"""How much a shard may have above the mean."""


def limit_of(loads: Collection[float], slack: float = _SHARE_ABOVE_MEAN_MAX) -> float:
    """Return the load up to which a shard need not give up any."""
    return sum(loads) / len(loads) * (1 + slack)


def rebalance(
    held: Mapping[int, Sequence[MovableRestriction]],
    slack: float = _SHARE_ABOVE_MEAN_MAX,
    fixed: Mapping[int, float] | None = None,
) -> list[RestrictionMove]:
    """Return the moves after which no shard has much more than its share. No restriction moves twice or without a
    benefit.

    Args:
        held: the restrictions of each shard, including shards without any.
        slack: how much a shard may have above the mean.
        fixed: work of shards that cannot be moved; none if a shard is missing.

    Returns:
        The moves; they do not depend on the order of the mapping.
    """
    shards = sorted(held)
    items = [item for shard in shards for item in held[shard]]
    if len(shards) < 2 or not items:
        return []
    weights = dict(zip((item.id for item in items), _weights([item.size for item in items]), strict=True))
    left = {shard: sorted(((weights[item.id], item.id) for item in held[shard]), reverse=True) for shard in shards}
    fixed = fixed or {}
    loads = {shard: fixed.get(shard, 0.0) + sum(weights[item.id] for item in held[shard]) for shard in shards}
    limit = limit_of(loads.values(), slack)
    fullest = [(-loads[shard], shard) for shard in shards]
    emptiest = [(loads[shard], shard) for shard in shards]
    heapq.heapify(fullest)
    heapq.heapify(emptiest)
    moves: list[RestrictionMove] = []
    while fullest and -fullest[0][0] > limit:
        load, source = heapq.heappop(fullest)
        if -load != loads[source]:
            continue  # an outdated entry
        while emptiest[0][0] != loads[emptiest[0][1]]:
            heapq.heappop(emptiest)
        target = emptiest[0][1]
        best = _best(left[source], loads[source] - loads[target])
        if best is None:
            continue
        weight, id = left[source].pop(best)
        moves.append(RestrictionMove(id, source, target))
        loads[source] -= weight
        loads[target] += weight
        for shard in (source, target):
            heapq.heappush(fullest, (-loads[shard], shard))
            heapq.heappush(emptiest, (loads[shard], shard))
    return moves


def _best(items: Sequence[tuple[float, bytes]], gap: float) -> int | None:
    """Return the index of the restriction, of those in descending order, that narrows a gap well. This is the largest
    with at most half of the gap, or else the smallest, if it has at most three quarters. A smaller gain would not pay
    for a move.
    """
    best = bisect_left(items, -gap / 2, key=lambda item: -item[0])
    if best < len(items):
        return best
    return best - 1 if items and items[-1][0] <= gap * 3 / 4 else None


def _weights(sizes: Sequence[float]) -> list[float]:
    known = [size for size in sizes if 0 < size < math.inf]
    mean = sum(known) / len(known) if known else 1.0
    return [size if 0 < size < math.inf else mean for size in sizes]
