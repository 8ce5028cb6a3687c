"""Accumulators by windows and key equal those from adding each element to each of its windows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import repeat
from typing import Any

import pytest
from apache_beam import CombineFn, coders
from apache_beam.transforms import combiners
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.harness.transforms.folds import fold_of
from arcbeam.harness.transforms.slices import Slices

KEYS = coders.FastPrimitivesCoder().get_impl()
WINDOWS = [(b"a",), (b"b",), (b"a", b"b"), (b"b", b"c"), (b"a", b"b", b"c")]


class Gathered(CombineFn):
    """A list; changes its first argument, and records that it was compacted."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add_input(self, accumulator: list[Any], element: Any) -> list[Any]:
        accumulator.append(element)
        return accumulator

    def merge_accumulators(self, accumulators: list[list[Any]]) -> list[Any]:
        first, *others = accumulators
        for other in others:
            first.extend(other)
        return first

    def extract_output(self, accumulator: list[Any]) -> list[Any]:
        return sorted(accumulator)


class SkipsEmpty(Gathered):
    """Changes the first accumulator that is not empty."""

    def merge_accumulators(self, accumulators: list[list[Any]]) -> list[Any]:
        first, *others = [*filter(None, accumulators), []]
        for other in others:
            first.extend(other)
        return first


class LargestTakesAll(Gathered):
    """Changes the largest accumulator."""

    def merge_accumulators(self, accumulators: list[list[Any]]) -> list[Any]:
        largest = max(accumulators, key=len)
        for other in accumulators:
            if other is not largest:
                largest.extend(other)
        return largest


class Compacted(Gathered):
    """The same; becomes a tuple when compacted."""

    def compact(self, accumulator: list[Any]) -> Any:
        assert type(accumulator) is list
        return tuple(accumulator)


def added(
    slices: Slices, blocks: list[tuple[tuple[bytes, ...], list[tuple[Any, int]]]]
) -> dict[tuple[bytes, bytes], list[Any]]:
    """Add blocks; a value is its own time. Return the added values by window and encoded key."""
    expected: dict[tuple[bytes, bytes], list[Any]] = defaultdict(list)
    for windows, pairs in blocks:
        slices.add(windows, pairs, [value for _, value in pairs])
        for window in windows:
            for key, value in pairs:
                expected[window, KEYS.encode(key)].append(value)
    return expected


def taken(slices: Slices, longest: int = 3) -> dict[tuple[bytes, bytes], tuple[Any, Any]]:
    """Return accumulator and time by window and encoded key."""
    found: dict[tuple[bytes, bytes], tuple[Any, Any]] = {}
    for part in slices.take(longest):
        assert 0 < len(part.pairs) <= longest
        for (key, accumulator), micros in zip(part.pairs, part.times or repeat(None), strict=False):
            place = part.window, KEYS.encode(key)
            assert place not in found
            found[place] = accumulator, micros
    return found


KEY = st.one_of(st.integers(0, 2), st.booleans(), st.none(), st.sampled_from(["1", b"1", 1.0, (1,), (True,)]))
BLOCKS = st.lists(
    st.tuples(st.sampled_from(WINDOWS), st.lists(st.tuples(KEY, st.integers(0, 9)), min_size=1, max_size=6)), max_size=6
)


@pytest.mark.contract("PLAN-02")
@pytest.mark.parametrize(
    "fn",
    [Gathered(), Compacted(), SkipsEmpty(), LargestTakesAll(), combiners.ToListCombineFn()],
    ids=lambda fn: type(fn).__name__,
)
@pytest.mark.parametrize("choose", [None, min, max])
@given(blocks=BLOCKS)
def test_element_is_once_in_each_window(fn: Any, choose: Callable[[int, int], int] | None, blocks: list[Any]) -> None:
    slices = Slices(fn, fold_of(fn), KEYS, choose)
    for _ in range(2):  # the first iteration leaves nothing
        expected = added(slices, blocks)
        shares = fold_of(fn) is not None
        assert slices.added == sum(len(pairs) * (1 if shares else len(windows)) for windows, pairs in blocks)
        found = taken(slices)
        assert {place: sorted(values) for place, (values, _) in found.items()} == {
            place: sorted(values) for place, values in expected.items()
        }
        for place, (accumulator, micros) in found.items():
            assert micros == (None if choose is None else choose(expected[place]))  # type: ignore[call-arg, arg-type]
            assert type(accumulator) is (tuple if type(fn) is Compacted else list)
        assert slices.entries == slices.added == slices.overhead == 0


@pytest.mark.contract("PLAN-02")
def test_element_in_many_windows_is_added_once() -> None:
    windows = tuple(bytes([n]) for n in range(60))
    slices = Slices(combiners.CountCombineFn(), fold_of(combiners.CountCombineFn()), KEYS, None)
    for _ in range(1000):
        slices.add(windows, [("k", 1)], repeat(0))
    assert slices.entries == 1
    assert taken(slices) == {(window, KEYS.encode("k")): (1000, None) for window in windows}


def test_accumulators_are_counted() -> None:
    slices = Slices(Gathered(), None, KEYS, None)
    slices.add((b"a",), [(1, 1), (2, 1), (1, 1)], repeat(0))
    slices.add((b"a",), [(1, 1), ((1,), 1), ("x", 1)], repeat(0))
    slices.add((b"b",), [(1, 1)], repeat(0))
    assert (slices.entries, slices.added) == (5, 7)
    assert slices.overhead > 0
