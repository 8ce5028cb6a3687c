"""Adding many elements to accumulators at once, for CombineFns that everybody uses.

Owns which CombineFns are known, and what is done for them instead of a call of `add_input` for each element. A fold
gives the same accumulators as `add_input` would; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apache_beam.transforms import combiners, cy_combiners

Fold = Callable[[dict[Any, Any], list[tuple[Any, Any]]], None]
"""Adds pairs of key and value to a table of accumulators by key. Equal keys of the pairs must be one key."""


def _counting(table: dict[Any, int], pairs: list[tuple[Any, Any]]) -> None:
    get = table.get
    for key, _ in pairs:
        table[key] = get(key, 0) + 1


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


def fold_of(combine_fn: Any) -> Fold | None:
    """The fold that stands for a CombineFn's `create_accumulator` and `add_input`; None if there is none."""
    kind = type(combine_fn)
    if kind is combiners.CountCombineFn:
        return _counting
    if kind is combiners.MeanCombineFn:
        return _mean
    if kind is combiners.ToListCombineFn:
        return _listing
    base = cy_combiners.AccumulatorCombineFn
    if isinstance(combine_fn, base) and kind.__module__ == base.__module__ and kind.add_input is base.add_input:
        return _accumulating(combine_fn._accumulator_type)
    return None
