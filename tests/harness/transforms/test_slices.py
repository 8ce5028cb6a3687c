"""Accumulators by windows and key equal those from adding each element to each of its windows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import repeat
from typing import Any, NamedTuple

import pytest
from apache_beam import CombineFn, coders
from apache_beam.transforms import combiners, cy_combiners
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.harness.transforms.folds import fold_of, same_key_fold_of
from arcbeam.harness.transforms.slices import Slices
from tests.harness.transforms.test_folds import KNOWN

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


class Several(NamedTuple):
    """A CombineFn that has a fold, and how its inputs are made of numbers."""

    fn: Any
    input: Callable[[int], Any]


def dictionary(number: int) -> tuple[int, int]:
    return number, -number


def triple(number: int) -> tuple[int, int, int]:
    return number, number, number


OVERLAPPING = [
    *(Several(fn, int) for fn in KNOWN),
    Several(combiners.ToDictCombineFn(), dictionary),
    Several(combiners.TupleCombineFn(max, combiners.CountCombineFn(), combiners.ToListCombineFn()), triple),
    Several(combiners.TupleCombineFn(sum, cy_combiners.SumInt64Fn(), combiners.ToSetCombineFn()), triple),
]
"""Windows of a chain: each of them has up to five slices."""
CHAIN = [tuple(bytes([n]) for n in range(first, last)) for first in range(4) for last in range(first + 1, 5)]


def in_order(output: Any) -> Any:
    """Return an output with its lists sorted: merging may order them differently."""
    if isinstance(output, tuple):
        return tuple(map(in_order, output))
    return sorted(output) if isinstance(output, list) else output


@pytest.mark.contract("PLAN-02")
@pytest.mark.parametrize("several", OVERLAPPING, ids=lambda several: type(several.fn).__name__)
@settings(max_examples=30)
@given(
    places=st.lists(st.tuples(st.sampled_from(CHAIN), st.sampled_from(["k", 1, None])), min_size=3, max_size=12),
    numbers=st.randoms(use_true_random=False),
)
def test_known_fold_is_right_in_overlapping_slices(several: Several, places: list[Any], numbers: Any) -> None:
    fn, fold = several.fn, fold_of(several.fn)
    slices = Slices(fn, fold, KEYS, None, same_key_fold_of(fn))
    inputs: dict[tuple[bytes, bytes], list[Any]] = defaultdict(list)
    # Different numbers: one that is counted twice would show.
    for (windows, key), number in zip(places, numbers.sample(range(1, 100), len(places)), strict=True):
        slices.add(windows, [(key, several.input(number))], repeat(0))
        for window in windows:
            inputs[window, KEYS.encode(key)].append(several.input(number))
    found = taken(slices)
    assert found.keys() == inputs.keys()
    for place, values in inputs.items():
        # The part after the exchange merges what it gets.
        output = in_order(fn.extract_output(fn.merge_accumulators([fn.create_accumulator(), found[place][0]])))
        if type(fn) is combiners.SampleCombineFn:
            assert set(output) <= set(values)
            assert len(output) == len(set(output)) == min(len(values), fn._top_combiner._n)
            continue
        accumulator = fn.create_accumulator()
        for value in values:
            accumulator = fn.add_input(accumulator, value)
        assert output == in_order(fn.extract_output(accumulator))


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


def test_accumulators_of_a_single_slice_are_not_merged() -> None:
    class Alone(Compacted):
        def merge_accumulators(self, accumulators: list[list[Any]]) -> list[Any]:
            raise AssertionError("there is nothing to merge")

    slices = Slices(Alone(), None, KEYS, None)
    for value in range(4):
        slices.add((b"a",), [(value % 2, value)], repeat(0))
        slices.add((b"b",), [(value % 2, value)], repeat(0))
    assert taken(slices) == {
        (window, KEYS.encode(key)): ((key, key + 2), None) for window in (b"a", b"b") for key in (0, 1)
    }
