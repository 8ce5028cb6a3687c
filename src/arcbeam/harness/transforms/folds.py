"""Adding many elements to accumulators at once, for CombineFns that everybody uses.

Owns which CombineFns are known, and what is done for them instead of a call of `add_input` for each element. A fold
gives the same accumulators as `add_input` would; a test compares them.
"""

from __future__ import annotations

import operator
import random
from collections import Counter
from collections.abc import Callable
from heapq import heappush, heappushpop, heapreplace
from typing import Any

from apache_beam.transforms import combiners, core, cy_combiners

from arcbeam.harness.transforms.tuplefolds import tuple_fold_of

_KEY = operator.itemgetter(0)

Fold = Callable[[dict[Any, Any], list[tuple[Any, Any]]], None]
"""Adds pairs of key and value to a table of accumulators by key. Equal keys of the pairs must be one key."""


def _counting(table: dict[Any, int], pairs: list[tuple[Any, Any]]) -> None:
    # It is compiled, and needs no more of a `Counter` than that it is a dict.
    Counter.update(table, map(_KEY, pairs))  # type: ignore[call-overload]


def _mean(table: dict[Any, tuple[Any, int]], pairs: list[tuple[Any, Any]]) -> None:
    get, nothing = table.get, (0, 0)
    for key, value in pairs:
        total, count = get(key, nothing)
        table[key] = total + value, count + 1


def _listing(table: dict[Any, list[Any]], pairs: list[tuple[Any, Any]]) -> None:
    get = table.get
    for key, value in pairs:
        found = get(key)
        if found is None:
            table[key] = [value]
        else:
            found.append(value)


def _accumulating(kind: Any) -> Fold:
    def fold(table: dict[Any, Any], pairs: list[tuple[Any, Any]]) -> None:
        get = table.get
        for key, value in pairs:
            accumulator = get(key)
            if accumulator is None:
                accumulator = table[key] = kind()
            accumulator.add_input(value)

    return fold


def _setting(table: dict[Any, set[Any]], pairs: list[tuple[Any, Any]]) -> None:
    get = table.get
    for key, value in pairs:
        found = get(key)
        if found is None:
            table[key] = {value}
        else:
            found.add(value)


def _mapping(table: dict[Any, dict[Any, Any]], pairs: list[tuple[Any, Any]]) -> None:
    get = table.get
    for key, (name, value) in pairs:
        found = get(key)
        if found is None:
            table[key] = {name: value}
        else:
            found[name] = value


def _buffering(fn: Callable[[list[Any]], Any], longest: int) -> Fold:
    """For a function of many values, called when enough have come together."""

    def fold(table: dict[Any, list[Any]], pairs: list[tuple[Any, Any]]) -> None:
        get = table.get
        for key, value in pairs:
            found = get(key)
            if found is None:
                found = table[key] = [value]
            else:
                found.append(value)
            if len(found) > longest:
                table[key] = [fn(found)]

    return fold


def _largest(count: int) -> Fold:
    def fold(table: dict[Any, tuple[bool, list[Any]]], pairs: list[tuple[Any, Any]]) -> None:
        get = table.get
        for key, value in pairs:
            found = get(key)
            if found is None:
                found = table[key] = False, []
            heap = found[1]
            if len(heap) < count:
                heappush(heap, value)
            else:
                heappushpop(heap, value)

    return fold


def _sampling(count: int) -> Fold:
    """The largest of random numbers, with their elements; most numbers are too small for a pair to be made."""

    def fold(table: dict[Any, tuple[bool, list[Any]]], pairs: list[tuple[Any, Any]]) -> None:
        get = table.get
        for key, value in pairs:
            found = get(key)
            if found is None:
                found = table[key] = False, []
            heap, number = found[1], random.random()
            if len(heap) < count:
                heappush(heap, (number, value))
            elif heap and number > heap[0][0]:
                heapreplace(heap, (number, value))

    return fold


_SIMPLE: dict[type, Fold] = {
    combiners.CountCombineFn: _counting,
    combiners.MeanCombineFn: _mean,
    combiners.ToListCombineFn: _listing,
    combiners.ToSetCombineFn: _setting,
    combiners.ToDictCombineFn: _mapping,
}


def fold_of(combine_fn: Any) -> Fold | None:
    """The fold that stands for a CombineFn's `create_accumulator` and `add_input`; None if there is none."""
    kind = type(combine_fn)
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if kind in (core.CallableWrapperCombineFn, core.NoSideInputsCallableWrapperCombineFn):
        return _buffering(combine_fn._fn, combine_fn._buffer_size)
    if kind is combiners.SampleCombineFn and _by_size(combine_fn._top_combiner):
        return _sampling(combine_fn._top_combiner._n)
    if _by_size(combine_fn):
        return _largest(combine_fn._n)
    base = cy_combiners.AccumulatorCombineFn
    if isinstance(combine_fn, base) and kind.__module__ == base.__module__ and kind.add_input is base.add_input:
        return _accumulating(combine_fn._accumulator_type)
    return tuple_fold_of(combine_fn)


def _by_size(combine_fn: Any) -> bool:
    """Whether it is the SDK's way to the largest elements, by nothing but their own order."""
    kinds = combiners.TopCombineFn, combiners.Largest
    return type(combine_fn) in kinds and combine_fn._compare is operator.lt and not combine_fn._key
