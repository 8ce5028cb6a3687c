"""A micro-batch's changes on top of a committed version."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from arcbeam.model.interfaces import StateView
from arcbeam.store.shards import overlay
from arcbeam.store.shards.overlay import EmptyBase, Overlay


class DictBase:
    """A committed version in memory."""

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self.entries = entries

    def get(self, key: bytes) -> bytes | None:
        return self.entries.get(key)

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((k, v) for k, v in self.entries.items() if start <= k and (end is None or k < end)))

    def close(self) -> None:
        pass


KEYS = st.binary(max_size=2)
VALUES = st.binary(max_size=3)


class Changing(RuleBasedStateMachine):
    """An overlay against a dict; sometimes its changes are committed."""

    def __init__(self) -> None:
        super().__init__()
        self.base: dict[bytes, bytes] = {b"b": b"0", b"d": b"0"}
        self.model = dict(self.base)
        self.view: StateView = Overlay(DictBase(self.base))

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        self.view.put(key, value)
        self.model[key] = value

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.view.delete(key)
        self.model.pop(key, None)

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        assert self.view.get(key) == self.model.get(key)

    @rule(start=KEYS, end=st.none() | KEYS)
    def scan(self, start: bytes, end: bytes | None) -> None:
        expected = sorted((k, v) for k, v in self.model.items() if start <= k and (end is None or k < end))
        assert list(self.view.scan(start, end)) == expected

    @rule()
    def commit(self) -> None:
        assert isinstance(self.view, Overlay)
        changes = list(self.view.changes())
        assert [key for key, _ in changes] == sorted(key for key, _ in changes)
        for key, value in changes:
            if value is None:
                del self.base[key], key  # a deleted key is one that the base has
            else:
                self.base[key] = value
        assert self.base == self.model
        self.view.close()
        self.view = Overlay(DictBase(self.base))

    @invariant()
    def all_is_there(self) -> None:
        assert list(self.view.scan(b"")) == sorted(self.model.items())


Changing.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
test_an_overlay_is_a_dict = pytest.mark.contract("STORE-06")(Changing.TestCase)


def test_many_keys_in_any_order_stay_sorted() -> None:
    view = Overlay(EmptyBase())
    model: dict[bytes, bytes] = {}
    for i in range(5_000):
        key = b"%05d" % (7919 * i % 5_000)
        view.put(key, b"v")
        model[key] = b"v"
        if i % 97 == 0:
            assert [key for key, _ in view.scan(b"01", b"02")] == sorted(k for k in model if b"01" <= k < b"02")
    assert [key for key, _ in view.scan(b"")] == sorted(model)


@pytest.mark.contract("STORE-06")
@pytest.mark.parametrize("by", [1, 50, 2000], ids=["one by one", "some at once", "all at once"])
@pytest.mark.parametrize("stride", [1, 1_009], ids=["ascending", "scattered"])
def test_prefix_keys_are_scanned_across_blocks(by: int, stride: int) -> None:
    """At each end of a block of changed keys: its last key is a prefix of the next one."""
    keys = [b"k%03d" % (i // 20) + b"\0" * (i % 20) for i in range(2_000)]
    view = Overlay(DictBase(dict.fromkeys(keys[::7], b"base")))
    for at in range(0, len(keys), by):
        for i in range(at, min(at + by, len(keys))):
            view.put(keys[i * stride % len(keys)], b"new")
        next(view.scan(b""))
    for start, end in ((0, 1_999), (511, 512), (511, 514), (100, 1_700), (1_023, 1_025)):
        assert list(view.scan(keys[start], keys[end])) == [(key, b"new") for key in keys[start:end]]


@pytest.mark.parametrize("seed", range(10))
def test_scans_between_any_two_keys_of_split_blocks(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Inserting single keys splits blocks; scans begin and end at their borders."""
    monkeypatch.setattr(overlay, "_BLOCK_KEYS", 2)
    keys = [b"%02d" % i for i in range(30)]
    order = random.Random(seed).sample(keys, len(keys))
    view, there = Overlay(EmptyBase()), list[bytes]()
    for n, key in enumerate(order):
        view.put(key, b"v")
        there.append(key)
        if n % 5 and n > 10:
            next(view.scan(b""))
        if n % 5 == 0:
            ordered = sorted(there)
            for start in [*keys, b""]:
                for end in [*keys[::3], None]:
                    expected = [one for one in ordered if start <= one and (end is None or one < end)]
                    assert [found for found, _ in view.scan(start, end)] == expected


def test_scan_survives_writes_on_both_sides() -> None:
    view = Overlay(DictBase({b"%05d" % i: b"" for i in range(0, 3_000, 2)}))
    for i in range(1, 3_000, 2):
        view.put(b"%05d" % i, b"")
    seen = []
    for key, _ in view.scan(b""):
        seen.append(key)
        view.delete(key)
        if not key.endswith(b"x"):
            view.put(key + b"x", b"new")
        assert list(view.scan(key, key + b"x")) == []
    assert [key for key in seen if not key.endswith(b"x")] == [b"%05d" % i for i in range(3_000)]
    assert seen == sorted(seen)
    assert view.get(b"00000") is None


def test_delete_of_missing_key_leaves_no_trace() -> None:
    view = Overlay(DictBase({b"a": b""}))
    view.put(b"timer", b"")
    view.delete(b"timer")
    view.delete(b"a")
    assert list(view.changes()) == [(b"a", None)]
    assert view.written == 11
