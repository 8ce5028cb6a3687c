"""Conversion of elements to a user's batch type (numpy, pandas, Arrow, lists) and back, whole lists at once.

Owns conversions that are faster than those of the SDK's `BatchConverter`s and have the same results. Each is for one
converter, by its exact type, and for values for which equality is known. All others use the converter. A contract test
covers the SDK internals that this module relies on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from apache_beam.typehints.batch import ListBatchConverter, NumpyBatchConverter

from arcbeam.harness.encoding.batchbytes import is_converter
from arcbeam.harness.encoding.blocks import Block, Each
from arcbeam.harness.encoding.untyped import is_named_tuple, rows_of
from arcbeam.harness.operations.blockoperation import BLOCK_ELEMENTS_MAX, once

Explode = Callable[[Any], Iterator[list[Any]]]

_OF_PYTHON = {int: np.dtype(np.int64), float: np.dtype(np.float64), bool: np.dtype(np.bool_)}


def alike(block: Block) -> Iterator[Block]:
    """Yield a block for each combination of time, windows and pane, in the order of their first elements."""
    if block.uniform:
        yield block
        return
    columns = [_numbered(column) for column in (block.micros, block.windows, block.panes) if type(column) is Each]
    places: dict[Any, list[int]] = {}
    for place, key in enumerate(zip(*columns, strict=True)):
        places.setdefault(key, []).append(place)
    for same in places.values():
        first = block.element(same[0])
        values = [block.values[place] for place in same]
        yield Block(values, first.timestamp_micros, tuple(first.windows), first.pane_info)


def _numbered(column: Each) -> Iterator[int]:
    """Yield a number for each entry, the same for equal ones."""
    # Equal entries are usually the same object, and identity is faster than hashing a window.
    distinct = dict(zip(map(id, column), column, strict=True))
    numbers: dict[Any, int] = {}
    number_of = {identity: numbers.setdefault(what, len(numbers)) for identity, what in distinct.items()}
    return map(number_of.__getitem__, map(id, column))


def batch_maker(converter: Any) -> Callable[[list[Any]], Any]:
    """Return a function that makes a batch of elements, at least one."""
    if type(converter) is NumpyBatchConverter and converter.element_shape == ():
        return partial(_array_of, converter)
    if is_converter(converter, "arrow", "PyarrowBatchConverter"):
        return partial(_table_of, converter)
    produce: Callable[[list[Any]], Any] = converter.produce_batch
    return produce


def _array_of(converter: Any, values: list[Any]) -> Any:
    # `numpy.stack`, which the SDK calls, first creates an array for each number.
    kind, *others = set(map(type, values))
    dtype = _OF_PYTHON.get(kind)
    if issubclass(kind, np.number | np.bool_):
        dtype = values[0].dtype
    if dtype is None or others:
        return converter.produce_batch(values)
    try:
        return np.fromiter(values, dtype, len(values))
    except OverflowError:
        return converter.produce_batch(values)


def _table_of(converter: Any, values: list[Any]) -> Any:
    # The SDK reads each field of each row by name.
    schema = converter._arrow_schema
    kind, *others = set(map(type, values))
    if others or not is_named_tuple(kind) or kind._fields != tuple(schema.names):  # type: ignore[attr-defined]
        return converter.produce_batch(values)
    import pyarrow

    columns = zip(*values, strict=True)
    arrays = [pyarrow.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def exploder(converter: Any) -> Explode:
    """Return a function that splits a batch into lists of elements, none of them empty or too long.

    The batch may be changed after the last list was taken.
    """
    kind = type(converter)
    if kind is ListBatchConverter:
        return lambda batch: _sliced(batch, len(batch), list)
    if kind is NumpyBatchConverter:
        dimension = converter.partition_dimension
        return lambda batch: _sliced(batch.swapaxes(dimension, 0), batch.shape[dimension], list)
    if is_converter(converter, "arrow", "PyarrowBatchConverter"):
        return _table_exploder(converter)
    if is_converter(converter, "pandas", "DataFrameBatchConverter"):
        return _frame_exploder(converter)
    return lambda batch: _gathered(converter.explode_batch(batch))


def _gathered(elements: Iterable[Any]) -> Iterator[list[Any]]:
    rest = once(elements)
    while values := list(islice(rest, BLOCK_ELEMENTS_MAX)):
        yield values


def _sliced(batch: Any, length: int, values_of: Callable[[Any], list[Any]]) -> Iterator[list[Any]]:
    for start in range(0, length, BLOCK_ELEMENTS_MAX):
        yield values_of(batch[start : start + BLOCK_ELEMENTS_MAX])


def _table_exploder(converter: Any) -> Explode:
    """Return the function for Arrow tables. It converts whole columns to Python values."""
    make = _row_maker(converter.element_type.user_type, converter._arrow_schema.names)

    def explode(batch: Any) -> Iterator[list[Any]]:
        if make is None or batch.num_columns != len(converter._arrow_schema.names):
            yield from _gathered(converter.explode_batch(batch))
            return
        for start in range(0, batch.num_rows, BLOCK_ELEMENTS_MAX):
            part = batch.slice(start, BLOCK_ELEMENTS_MAX)
            yield make([column.to_pylist() for column in part.columns])

    return explode


def _frame_exploder(converter: Any) -> Explode:
    """Return the function for pandas frames. It checks whole columns for nulls."""
    columns = converter._columns
    make = _row_maker(converter.element_type.user_type, columns)

    def explode(batch: Any) -> Iterator[list[Any]]:
        all_series = converter._get_series(batch)
        if make is None or len(all_series) != len(columns):
            yield from _gathered(converter.explode_batch(batch))
            return
        for start in range(0, len(batch), BLOCK_ELEMENTS_MAX):
            yield make([_column(series[start : start + BLOCK_ELEMENTS_MAX]) for series in all_series])

    return explode


def _column(series: Any) -> list[Any]:
    """Return the values that iterating over a pandas series or index gives, with None for nulls."""
    array = series.array
    # Iterating over strings reads the array element by element.
    strings = type(array).__name__ == "StringArray"
    values: list[Any] = array.to_numpy(object).tolist() if strings else list(series)
    nulls = np.asarray(series.isnull())
    if nulls.any():
        return [None if null else value for null, value in zip(nulls.tolist(), values, strict=True)]
    return values


def _row_maker(kind: type, names: list[str]) -> Callable[[list[list[Any]]], list[Any]] | None:
    """Return a function that makes rows from columns; None if it is not known how rows are made."""
    if not is_named_tuple(kind) or kind._fields != tuple(names):  # type: ignore[attr-defined]
        return None
    return partial(rows_of, kind)
