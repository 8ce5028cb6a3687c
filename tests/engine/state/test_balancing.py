"""Restrictions are spread by size, and moved only where that helps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.state.balancing import MovableRestriction, RestrictionMove, pack, rebalance

_SIZES = st.lists(st.floats(0.1, 100) | st.sampled_from([0.0, math.nan, math.inf, -1.0]), max_size=30)


def _weights(sizes: list[float]) -> list[float]:
    known = [size for size in sizes if 0 < size < math.inf]
    return [size if 0 < size < math.inf else (sum(known) / len(known) if known else 1.0) for size in sizes]


@pytest.mark.contract("SDF-08")
@settings(max_examples=60, deadline=None)
@given(_SIZES, st.integers(1, 6))
def test_no_shard_is_packed_much_too_full(sizes: list[float], shards: int) -> None:
    places = pack(sizes, shards)
    weights = _weights(sizes)
    assert len(places) == len(sizes)
    assert set(places) <= set(range(shards))
    loads = [sum(w for w, place in zip(weights, places, strict=True) if place == shard) for shard in range(shards)]
    most = max(weights, default=0.0)
    assert max(loads) <= sum(weights) / shards + most * (shards - 1) / shards + 1e-6


def test_things_of_unknown_size_are_spread_evenly() -> None:
    places = pack([0.0] * 12, 4)
    assert sorted(places) == sorted([0, 1, 2, 3] * 3)


@pytest.mark.contract("SDF-08")
@settings(max_examples=60, deadline=None)
@given(st.lists(_SIZES, min_size=1, max_size=6), st.sampled_from([0.0, 0.25, 1.0]))
def test_moves_relieve_fullest_shard_and_happen_once(all_sizes: list[list[float]], slack: float) -> None:
    held = {
        shard: [MovableRestriction(b"%d.%d" % (shard, i), size) for i, size in enumerate(sizes)]
        for shard, sizes in enumerate(all_sizes)
    }
    moves = rebalance(held, slack)
    assert moves == rebalance(dict(reversed(held.items())), slack)
    assert len({move.id for move in moves}) == len(moves)
    things = [thing for shard in sorted(held) for thing in held[shard]]
    weights = dict(zip((t.id for t in things), _weights([t.size for t in things]), strict=True))
    loads = {shard: sum(weights[thing.id] for thing in held[shard]) for shard in held}
    limit = sum(loads.values()) / len(loads) * (1 + slack)
    for move in moves:
        assert loads[move.source] > limit - 1e-6
        assert any(thing.id == move.id for thing in held[move.source])
        assert loads[move.target] + weights[move.id] < loads[move.source] + 1e-6
        loads[move.source] -= weights[move.id]
        loads[move.target] += weights[move.id]
    for shard, load in loads.items():
        stays = [weights[t.id] for t in held[shard] if t.id not in {m.id for m in moves}]
        # If a shard is still too full, no move of its things to the emptiest shard would help.
        if load > limit + 1e-6 and stays:
            assert min(stays) > (load - min(loads.values())) * 3 / 4 - 1e-6


def test_shard_without_fixed_work_has_none() -> None:
    held = {0: [MovableRestriction(b"a", 0.1), MovableRestriction(b"b", 0.1)], 1: []}
    assert rebalance(held) == [RestrictionMove(b"b", 0, 1)]
    assert rebalance(held, fixed={1: 0.2}) == []
    assert rebalance({0: [MovableRestriction(b"a", 0.1)], 1: []}, fixed={0: 0.2}) == [RestrictionMove(b"a", 0, 1)]


def test_single_straggler_is_not_moved() -> None:
    assert rebalance({0: [MovableRestriction(b"huge", 100.0)], 1: []}) == []
    assert rebalance({0: [MovableRestriction(b"huge", 100.0), MovableRestriction(b"small", 1.0)], 1: []}) == [
        RestrictionMove(b"small", 0, 1)
    ]
    assert rebalance({0: [MovableRestriction(b"a", 10.0)], 1: [MovableRestriction(b"b", 9.0)]}) == []
    assert rebalance({0: []}) == []


def test_restrictions_of_one_shard_are_spread_over_all() -> None:
    moves = rebalance({0: [MovableRestriction(b"%d" % i, 1.0) for i in range(4000)], 1: [], 2: [], 3: []}, 0.1)
    assert 2800 <= len(moves) <= 3000


def test_fixed_work_counts() -> None:
    held = {0: [MovableRestriction(b"a", 1.0), MovableRestriction(b"b", 1.0)], 1: []}
    assert [move.target for move in rebalance(held)] == [1]
    assert rebalance(held, fixed={1: 2.0}) == []
    assert [move.target for move in rebalance({0: [], 1: [MovableRestriction(b"a", 1.0)]}, fixed={1: 5.0})] == [0]
