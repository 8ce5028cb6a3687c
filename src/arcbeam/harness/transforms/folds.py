"""Adding many elements to accumulators in one call, for common CombineFns.

Owns which CombineFns are known, and what replaces a call of `add_input` for each element: a fold for pairs of any keys,
and one for values of one key, as in a global combine. A fold creates the same accumulators as `add_input`; a test
compares them.
"""

from __future__ import annotations

import operator
import random
from collections import Counter
from collections.abc import Callable
from functools import partial, reduce
from heapq import heappush, heappushpop, heapreplace
from typing import Any, NamedTuple

from apache_beam.transforms import combiners, core, cy_combiners

from arcbeam.harness.transforms.tuplefolds import tuple_fold_of

_KEY = operator.itemgetter(0)
_NOTHING = object()

Adding = Callable[[dict[Any, Any], list[tuple[Any, Any]]], None]
"""Adds pairs of key and value to a table by key. Equal keys of the pairs must be one key."""


class Fold(NamedTuple):
    """Adds many elements.

    Attributes:
        add: adds pairs to a table by key.
        accumulator: makes an accumulator from the table's entry of a key; None if the entry is the accumulator.
        compacted: whether these accumulators are compact.
    """

    add: Adding
    accumulator: Callable[[Any], Any] | None = None
    compacted: bool = False


SameKeyFold = Callable[[Any, list[Any]], Any]
"""Adds values to an accumulator, which it may change, and returns it or another one."""


def _counting(table: dict[Any, int], pairs: list[tuple[Any, Any]]) -> None:
    # `Counter.update` is compiled. It requires only a dict, not a `Counter`.
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


def _accumulating(kind: Any) -> Adding:
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


def _buffering(fn: Callable[[list[Any]], Any], longest: int) -> Adding:
    """Return the fold for a function of many values, which is called when a buffer is full."""

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


# One result of `sum`, `max` or `min` is equivalent to a buffer of values, and the table needs no lists.


def _buffer_of(value: Any) -> list[Any]:
    return [value]


def _summing(table: dict[Any, Any], pairs: list[tuple[Any, Any]]) -> None:
    get = table.get
    for key, value in pairs:
        # `sum` begins with 0, and raises an error for what cannot be added to that. No `+=`: it may change an element.
        table[key] = get(key, 0) + value


def _keeping_most(table: dict[Any, Any], pairs: list[tuple[Any, Any]]) -> None:
    get = table.get
    for key, value in pairs:
        found = get(key, _NOTHING)
        if found is _NOTHING or value > found:
            table[key] = value


def _keeping_least(table: dict[Any, Any], pairs: list[tuple[Any, Any]]) -> None:
    get = table.get
    for key, value in pairs:
        found = get(key, _NOTHING)
        if found is _NOTHING or value < found:
            table[key] = value


_BUILT_IN: dict[Any, Fold] = {
    fn: Fold(add, _buffer_of, compacted=True)
    for fn, add in ((sum, _summing), (max, _keeping_most), (min, _keeping_least))
}


def _largest(count: int) -> Adding:
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


def _sampling(count: int) -> Adding:
    """Keep the elements with the largest random numbers. Most numbers are too small, so no pair is created for them."""

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


# The same for a single accumulator.


def _count_values(accumulator: int, values: list[Any]) -> int:
    return accumulator + len(values)


def _mean_values(accumulator: tuple[Any, int], values: list[Any]) -> tuple[Any, int]:
    total, count = accumulator
    # No `sum`: some Python versions round it differently.
    return reduce(operator.add, values, total), count + len(values)


def _list_values(accumulator: list[Any], values: list[Any]) -> list[Any]:
    accumulator += values
    return accumulator


def _set_values(accumulator: set[Any], values: list[Any]) -> set[Any]:
    accumulator.update(values)
    return accumulator


def _accumulate_values(accumulator: Any, values: list[Any]) -> Any:
    add = accumulator.add_input
    for value in values:
        add(value)
    return accumulator


def _buffer_values(fn: Callable[[list[Any]], Any], longest: int, accumulator: list[Any], values: list[Any]) -> Any:
    if any(fn is known for known in _BUILT_IN):
        accumulator += values
        return [fn(accumulator)] if len(accumulator) > longest else accumulator
    start = 0
    while start < len(values):
        # User code is called with the same lists as without a fold.
        stop = start + longest + 1 - len(accumulator)
        accumulator += values[start:stop]
        if len(accumulator) > longest:
            accumulator = [fn(accumulator)]
        start = stop
    return accumulator


def _largest_values(count: int, accumulator: tuple[bool, list[Any]], values: list[Any]) -> tuple[bool, list[Any]]:
    heap = accumulator[1]
    missing = max(0, count - len(heap))
    for value in values[:missing]:
        heappush(heap, value)
    if count and len(values) > missing:
        lowest = heap[0]
        for value in values[missing:] if missing else values:
            if lowest < value:
                heapreplace(heap, value)
                lowest = heap[0]
    return accumulator


_BUFFERING = (core.CallableWrapperCombineFn, core.NoSideInputsCallableWrapperCombineFn)

_SIMPLE_OF_ONE: dict[type, SameKeyFold] = {
    combiners.CountCombineFn: _count_values,
    combiners.MeanCombineFn: _mean_values,
    combiners.ToListCombineFn: _list_values,
    combiners.ToSetCombineFn: _set_values,
}

_SIMPLE: dict[type, Adding] = {
    combiners.CountCombineFn: _counting,
    combiners.MeanCombineFn: _mean,
    combiners.ToListCombineFn: _listing,
    combiners.ToSetCombineFn: _setting,
    combiners.ToDictCombineFn: _mapping,
}


def fold_of(combine_fn: Any) -> Fold | None:
    """Return the fold that replaces a CombineFn's `create_accumulator` and `add_input`; None if there is none."""
    if type(combine_fn) in _BUFFERING:
        found = next((fold for fn, fold in _BUILT_IN.items() if combine_fn._fn is fn), None)
        return found or Fold(_buffering(combine_fn._fn, combine_fn._buffer_size))
    add = _adding_of(combine_fn)
    if add is not None:
        return Fold(add)
    together = tuple_fold_of(combine_fn)
    return None if together is None else Fold(*together)


def _adding_of(combine_fn: Any) -> Adding | None:
    kind = type(combine_fn)
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if kind is combiners.SampleCombineFn and _by_size(combine_fn._top_combiner):
        return _sampling(combine_fn._top_combiner._n)
    if _by_size(combine_fn):
        return _largest(combine_fn._n)
    if _is_accumulating(combine_fn):
        return _accumulating(combine_fn._accumulator_type)
    return None


def same_key_fold_of(combine_fn: Any) -> SameKeyFold | None:
    """Return the fold that replaces `add_input` of many values to one accumulator; None if there is none."""
    kind = type(combine_fn)
    if kind in _SIMPLE_OF_ONE:
        return _SIMPLE_OF_ONE[kind]
    if kind in _BUFFERING:
        return partial(_buffer_values, combine_fn._fn, combine_fn._buffer_size)
    if _by_size(combine_fn):
        return partial(_largest_values, combine_fn._n)
    return _accumulate_values if _is_accumulating(combine_fn) else None


def _is_accumulating(combine_fn: Any) -> bool:
    kind, base = type(combine_fn), cy_combiners.AccumulatorCombineFn
    return isinstance(combine_fn, base) and kind.__module__ == base.__module__ and kind.add_input is base.add_input


def _by_size(combine_fn: Any) -> bool:
    """Return whether it is the SDK's CombineFn for the largest elements, compared by their own order only."""
    kinds = combiners.TopCombineFn, combiners.Largest
    return type(combine_fn) in kinds and combine_fn._compare is operator.lt and not combine_fn._key
