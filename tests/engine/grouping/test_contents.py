"""The contents of a window: written once, read for a pane, moved by a merge."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.engine.grouping.contents import TAIL_BYTES, Accumulated, EncodedPaneValues, WindowBag, block
from arcbeam.errors import StateFormatError
from arcbeam.testing.views import MemoryView
from tests.engine.grouping.grouping_strategies import Concat

pytestmark = pytest.mark.contract("ENG-11")


class CountingView(MemoryView):
    """Counts reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.read = self.put_in = 0

    def get(self, key: bytes) -> bytes | None:
        value = super().get(key)
        self.read += len(value or b"")
        return value

    def put(self, key: bytes, value: bytes) -> None:
        self.put_in += len(value)
        super().put(key, value)


def entry(address: bytes, number: int) -> bytes:
    return address + bytes([number])


def reopened(bag: WindowBag, view: MemoryView, fresh: bytes = b"a") -> WindowBag:
    tail = bag.store()
    return WindowBag(view, entry, fresh, bag.address, bag.entries, tail)


def released(taken: Any) -> None:
    """Remove the rows of a pane, as when user code has returned."""
    if isinstance(taken, EncodedPaneValues) and taken.lent is not None:
        taken.lent.release()


sizes = st.one_of(st.integers(0, 20), st.integers(200, 700), st.just(70_000))
values = st.lists(sizes.flatmap(lambda size: st.just(b"x" * size)), min_size=1, max_size=8)


@given(pieces=st.lists(values, max_size=6), keep=st.booleans())
def test_elements_leave_as_they_arrived(pieces: list[list[bytes]], keep: bool) -> None:
    view = MemoryView()
    bag = WindowBag(view, entry, b"a")
    for piece in pieces:
        bag.add(piece)
        bag = reopened(bag, view)
    taken = bag.take(keep)
    expected = [value for piece in pieces for value in piece]
    assert list(taken) == expected == list(taken)
    released(taken)
    again = list(reopened(bag, view).take(False))
    assert again == (expected if keep else [])
    bag.clear()
    assert not len(view)


def test_blocks_of_many_elements_are_decoded() -> None:
    elements = [str(n).encode() for n in range(1000)]
    assert list(EncodedPaneValues((block(elements), block([b""])), [b"rest"])) == [*elements, b"", b"rest"]


def test_cost_of_element_is_independent_of_count() -> None:
    view = CountingView()
    bag = WindowBag(view, entry, b"a")
    for _ in range(200):
        bag.add([b"x" * 100])
        bag = reopened(bag, view)
    assert view.read == 0
    assert view.put_in < 200 * 110
    assert len(bag.store()) <= TAIL_BYTES
    assert len(list(bag.take(False))) == 200


def test_bag_with_fewer_entries_moves() -> None:
    view = CountingView()
    large, small = WindowBag(view, entry, b"large"), WindowBag(view, entry, b"small")
    for bag, times in ((large, 9), (small, 2)):
        for _ in range(times):
            bag.add([b"x" * TAIL_BYTES])
            bag.store()
    view.put_in = 0
    small.add([b"tail"])
    small.absorb(large)
    assert view.put_in < 3 * TAIL_BYTES
    assert len(view) == 11
    assert len(list(small.take(False))) == 12
    assert not len(view)


def test_two_bags_never_share_entries() -> None:
    """A window is merged into another, its entries stay, and a new window of the same name begins."""
    view = MemoryView()
    first, again = WindowBag(view, entry, b"w"), WindowBag(view, entry, b"w")
    for bag in (first, again):
        bag.add([b"x" * 2 * TAIL_BYTES])
        bag.store()
    assert len(view) == 2
    again.clear()
    assert len(list(first.take(False))) == 1


def test_unknown_blocks_are_refused() -> None:
    with pytest.raises(StateFormatError, match="a window's elements"):
        list(EncodedPaneValues((b"\x07abc",)))


@given(pieces=st.lists(st.lists(st.binary(max_size=3).map(bytes.hex).map(str.encode), max_size=3)), keep=st.booleans())
def test_only_accumulator_is_stored(pieces: list[list[bytes]], keep: bool) -> None:
    contents = Accumulated(Concat())
    for piece in pieces:
        contents.add(piece)
        contents = Accumulated(Concat(), contents.store())
    expected = sorted(value.decode() for piece in pieces for value in piece)
    result = contents.take(keep)
    assert sorted(result) == expected
    contents.add([b"more"])
    assert sorted(result) == expected, "an emitted pane does not change"
    assert sorted(contents.take(False)) == sorted([*(expected if keep else []), "more"])
    assert contents.store() == b""


class Emptying(Concat):
    """Changes an accumulator in each allowed call."""

    def compact(self, accumulator: list[str]) -> list[str]:
        kept = sorted(accumulator)
        accumulator.clear()
        return kept

    def merge(self, accumulators: Any) -> list[str]:
        first = accumulators[0]
        for each in accumulators[1:]:
            first += each
            each.clear()
        return first  # type: ignore[no-any-return]


def test_result_is_independent_of_stored_accumulator() -> None:
    contents = Accumulated(Emptying())
    results = []
    for value in (b"b", b"a", b"c"):
        contents.add([value])
        results.append(contents.take(True))
    other = Accumulated(Emptying())
    other.add([b"d"])
    contents.absorb(other)
    results.append(contents.take(False))
    assert results == [["b"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]]


def test_tails_of_merged_bags_are_joined() -> None:
    for sizes in ((1, 1), (1, 3), (3, 1)):
        view = MemoryView()
        bags = []
        for name, size in zip((b"one", b"other"), sizes, strict=True):
            bag = WindowBag(view, entry, name)
            for n in range(size):
                bag.add([name * TAIL_BYTES] if n else [name])
                bag = reopened(bag, view, name)
            bag.add([name + b" at last"])
            bags.append(reopened(bag, view, name))
        bags[0].absorb(bags[1])
        taken = reopened(bags[0], view).take(False)
        found = sorted(taken)
        released(taken)
        expected = [
            v
            for name, size in zip((b"one", b"other"), sizes, strict=True)
            for v in [name, *[name * TAIL_BYTES] * (size - 1), name + b" at last"]
        ]
        assert found == sorted(expected)
        assert not len(view)


def test_accumulators_merge() -> None:
    one, other = Accumulated(Concat()), Accumulated(Concat())
    other.add([b"b"])
    one.absorb(Accumulated(Concat(), other.store()))
    one.add([b"a"])
    one.absorb(Accumulated(Concat()))
    assert sorted(one.take(False)) == ["a", "b"]


class Nothing:
    """A combiner whose accumulator is None, and has no bytes."""

    def create(self) -> Any:
        return None

    def add(self, accumulator: Any, values: Any) -> Any:
        return accumulator

    def merge(self, accumulators: Any) -> Any:
        return None

    def compact(self, accumulator: Any) -> Any:
        return accumulator

    def extract(self, accumulator: Any) -> Any:
        assert accumulator is None
        return "nothing"

    def encode(self, accumulator: Any) -> bytes:
        return b""

    def decode(self, data: bytes) -> Any:
        assert data == b""


def test_accumulator_may_be_none_without_bytes() -> None:
    contents = Accumulated(Nothing())
    contents.add([b"x"])
    stored = contents.store()
    assert stored
    assert Accumulated(Nothing(), stored).take(True) == "nothing"
