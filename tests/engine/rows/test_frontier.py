"""The first row of an index is known, whatever rows are put and deleted before it, near it and far after it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.rows import frontier
from arcbeam.engine.rows.frontier import Frontier
from arcbeam.testing.views import MemoryView

_START = b"i"
_NUMBERS = st.integers(0, 999)
_ACTS = st.lists(st.tuples(st.sampled_from(["put", "put", "delete", "take", "take"]), _NUMBERS), max_size=80)


def _key(number: int) -> bytes:
    return _START + number.to_bytes(2, "big")


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 999), st.integers(1, 7), _ACTS)
def test_first_row_is_known(initial: int, every: int, acts: list[tuple[str, int]]) -> None:
    model = {_key(number): b"%d" % number for number in range(0, initial, every)}
    view = MemoryView({**model, b"h": b"before", b"j": b"after"})
    front = Frontier(view, _START)
    for i, (act, number) in enumerate(acts):
        key, value = _key(number), b"%d.%d" % (number, i)
        match act:
            case "put" if key not in model:
                front.put(key, value)
                model[key] = value
            case "delete" if key in model:
                front.delete(key)
                del model[key]
            case "take" if model:
                first = front.first()
                assert first == min(model)
                assert front.take(first) == model.pop(first)
        assert front.first() == min(model, default=None)
    assert view.snapshot() == dict(sorted({**model, b"h": b"before", b"j": b"after"}.items()))


def test_rows_are_put_where_others_were_taken() -> None:
    front = Frontier(MemoryView(), _START)
    assert front.first() is None
    for number in (5, 3):
        front.put(_key(number), b"")
        assert front.first() == _key(number)
    assert front.take(_key(3)) == b""
    front.put(_key(3), b"again")
    front.delete(_key(3))
    front.put(_key(3), b"once more")
    assert front.take(_key(3)) == b"once more"
    assert front.first() == _key(5)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_keys_with_common_prefix_are_found_between_reads(monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    """At any end of a read, the next row is the first of the next read, and a row put there is there once."""
    monkeypatch.setattr(frontier, "_AHEAD_ROWS_MAX", ahead)
    keys = [_START + b"k" * (n // 4) + b"\0" * (n % 4) for n in range(24)]
    for seed in range(20):
        chance = random.Random(seed)
        model = {key: b"old" for key in keys if chance.random() < 0.7}
        front = Frontier(MemoryView(model), _START)
        while (first := front.first()) is not None:
            assert first == min(model)
            assert front.take(first) == model.pop(first)
            for key in [*(key for key in keys if key > first and chance.random() < 0.02), first + b"\0"]:
                if key not in model and chance.random() < 0.7 and len(key) < 9:
                    front.put(key, b"new")
                    model[key] = b"new"
                    if chance.random() < 0.3:
                        front.delete(key)
                        del model[key]
        assert not model
