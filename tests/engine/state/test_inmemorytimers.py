"""Timers without rows fire in the order of the rows that they would have."""

from __future__ import annotations

import random
from operator import itemgetter

import pytest

from arcbeam.engine.state.inmemorytimers import InMemoryTimers


def order_of(time: int, slot: bytes) -> bytes:
    return time.to_bytes(8, "big") + b"\0" + slot


@pytest.mark.parametrize("seed", range(20))
def test_timers_are_taken_in_order(seed: int) -> None:
    chance = random.Random(seed)
    imminent: InMemoryTimers[bytes, bytes, int] = InMemoryTimers(itemgetter(slice(9, None)))
    model: dict[bytes, bytes] = {}
    for _ in range(200):
        slot = b"%d" % chance.randrange(8)
        match chance.choice(["put", "put", "put", "remove", "take", "take", "below", "all"]):
            case "put":
                model[slot] = order_of(chance.randrange(5), slot)
                imminent.put(slot, model[slot], int(slot))
            case "remove":
                model.pop(slot, None)
                imminent.remove(slot)
            case "take" if model:
                first = imminent.first()
                assert first is not None
                assert first == min(model.values())
                assert imminent.take(first) == int(first[9:])
                del model[first[9:]]
            case "below":
                limit = order_of(chance.randrange(6), b"4")
                for taken in imminent.below(limit):
                    first = min(model.values())
                    assert (taken, first < limit) == (int(first[9:]), True)
                    del model[first[9:]]
                    if not chance.randrange(4):
                        model[slot] = order_of(chance.randrange(6), slot)
                        imminent.put(slot, model[slot], int(slot))
                    if not chance.randrange(6):
                        break
            case "all" if chance.random() < 0.1:
                assert sorted(imminent.take_all()) == sorted(map(int, model))
                model.clear()
        assert imminent.get(slot) == (int(slot) if slot in model else None)
        assert sorted(imminent) == sorted(map(int, model))
        assert bool(imminent) == bool(model)
    if not model:
        assert imminent.first() is None


def test_moved_timer_fires_at_new_place() -> None:
    imminent: InMemoryTimers[bytes, bytes, int] = InMemoryTimers(itemgetter(slice(9, None)))
    for time, slot in ((1, 1), (2, 2), (3, 1)):
        imminent.put(b"%d" % slot, order_of(time, b"%d" % slot), slot)
    assert list(imminent.below(order_of(9, b""))) == [2, 1]


def test_repeated_setting_takes_no_more_memory() -> None:
    imminent: InMemoryTimers[bytes, bytes, int] = InMemoryTimers(itemgetter(slice(9, None)))
    for n in range(2_000):
        imminent.put(b"end", order_of(90_000, b"end"), 0)
        imminent.put(b"loop", order_of(n, b"loop"), n)
        if n >= 1_000:
            assert list(imminent.below(order_of(n + 1, b""))) == [n]
        assert len(imminent._fresh) < 100
        assert len(imminent._ordered) <= 2
