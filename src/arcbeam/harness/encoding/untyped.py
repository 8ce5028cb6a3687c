"""Values of the SDK's coder of anything: how they are written where it would pickle them one by one.

Owns what may be written otherwise, by type, and the bytes of that: numpy's numbers and arrays are one buffer; named
tuples are their class, once, and columns; tuples with any of these in them are columns. They come back as from being
pickled. Everything else is a list, as the SDK has it.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import numpy as np
from apache_beam import coders

_LISTED, _ARRAY, _RECORDS, _COLUMNS, _PICKLED = range(5)
"""How values are written; the byte in front of them."""
NUMBERS = "biufc"
"""numpy's kinds of numbers."""
FLAT = frozenset((int, float, str, bytes, bool, type(None)))
"""Types that the coder of anything brings back as pickling does."""
_NATIVE = FLAT | {list, dict, set}
"""Types that it does not pickle, whatever is in them."""
_PICKLING = ("__reduce__", "__reduce_ex__", "__getstate__")
"""By what a class may say how its instances are pickled."""

new_tuple: Callable[..., Any] = tuple.__new__
"""Makes a named tuple of a class and its fields."""


def is_named_tuple(kind: type) -> bool:
    """Whether a type is a named tuple as it was generated: its instances are their fields, and made of nothing else."""
    code = getattr(kind.__new__, "__code__", None)
    return (
        kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and getattr(code, "co_names", None) == ("_tuple_new",)
    )


def rows_of(kind: type, columns: Iterable[Iterable[Any]]) -> list[Any]:
    """Named tuples of a class as it was generated, of their fields' columns."""
    return list(map(new_tuple, repeat(kind), zip(*columns, strict=True)))


class Listed:
    """One after the other, as the SDK's list coder does it."""

    def __init__(self, coder: Any) -> None:
        self._impl = coders.ListCoder(coder).get_impl()

    def write(self, values: list[Any], stream: Any) -> None:
        """See `arcbeam.harness.encoding.bulk.Form`."""
        self._impl.encode_to_stream(values, stream, True)

    def read(self, stream: Any, count: int) -> list[Any]:
        """See `arcbeam.harness.encoding.bulk.Form`."""
        values: list[Any] = self._impl.decode_from_stream(stream, True)
        return values


class Objects:
    """What the SDK's coder of anything takes: mostly in a list; what it would pickle, if possible, not."""

    def __init__(self, coder: Any) -> None:
        self._listed = Listed(coder)
        self._pickled = Listed(coder._fallback_coder)

    def are_listed(self, values: list[Any]) -> bool:
        """Whether values would be written as a list."""
        return self._how(values, inside=False) == _LISTED

    def write(self, values: list[Any], stream: Any, *, inside: bool = False) -> None:
        """See `arcbeam.harness.encoding.bulk.Form`; what is `inside` is part of values that would have been pickled."""
        how = self._how(values, inside)
        stream.write_byte(how)
        if how == _LISTED:
            self._listed.write(values, stream)
        elif how == _PICKLED:
            self._pickled.write(values, stream)
        elif how == _ARRAY:
            _write_array(values, stream)
        elif how == _RECORDS:
            self._write_columns(type(values[0]), values, stream, inside=True)
        else:
            self._write_columns(None, values, stream, inside=inside)

    def _how(self, values: list[Any], inside: bool) -> int:
        if not inside and type(values[0]) in FLAT:
            return _LISTED
        kinds = set(map(type, values))
        if kinds <= FLAT:
            return _LISTED
        if len(kinds) > 1:
            return _PICKLED if inside else _LISTED
        (kind,) = kinds
        if _is_number(kind, values) or (kind is np.ndarray and _are_alike(values)):
            return _ARRAY
        if is_named_tuple(kind) and _pickles_as_itself(kind) and kind._fields:  # type: ignore[attr-defined]
            return _RECORDS
        # Tuples of what is not pickled anyway are as fast in a list.
        if kind is tuple and not _NATIVE.issuperset(map(type, values[0])) and len(set(map(len, values))) == 1:
            return _COLUMNS
        return _PICKLED if inside else _LISTED

    def _write_columns(self, kind: Any, values: list[Any], stream: Any, *, inside: bool) -> None:
        if kind is not None:
            self._pickled.write([kind], stream)
        columns = list(zip(*values, strict=True))
        stream.write_var_int64(len(columns))
        for column in columns:
            self.write(list(column), stream, inside=inside)

    def read(self, stream: Any, count: int) -> list[Any]:
        """See `arcbeam.harness.encoding.bulk.Form`."""
        how = stream.read_byte()
        if how == _LISTED:
            return self._listed.read(stream, count)
        if how == _PICKLED:
            return self._pickled.read(stream, count)
        if how == _ARRAY:
            return _read_array(stream, count)
        kind = self._pickled.read(stream, 1)[0] if how == _RECORDS else None
        columns = [self.read(stream, count) for _ in range(stream.read_var_int64())]
        if kind is None:
            return list(zip(*columns, strict=True))
        if is_named_tuple(kind) and len(kind._fields) == len(columns):
            return rows_of(kind, columns)
        # The class has changed since, in a script that goes on with what another one has kept: as unpickling does it.
        return [kind.__new__(kind, *fields) for fields in zip(*columns, strict=True)]


def _pickles_as_itself(kind: type) -> bool:
    """Whether pickling an instance is calling its class with its fields, and nothing else."""
    return (
        kind.__dictoffset__ == 0
        and kind not in copyreg.dispatch_table
        and not hasattr(kind, "__setstate__")
        and all(getattr(kind, name, None) is getattr(object, name, None) for name in _PICKLING)
    )


def _is_number(kind: type, values: list[Any]) -> bool:
    return issubclass(kind, np.number | np.bool_) and _has_a_name(values[0].dtype)


def _are_alike(arrays: list[Any]) -> bool:
    """Whether arrays are of numbers, and the same but for these."""
    first = arrays[0]
    if not _has_a_name(first.dtype) or not first.ndim or not first.flags.c_contiguous or not first.flags.writeable:
        return False
    return len({(array.dtype, array.shape, array.strides, array.flags.writeable) for array in arrays}) == 1


def _has_a_name(dtype: Any) -> bool:
    """Whether a dtype is one of numbers, and known by its name: of two that are equal only one is."""
    return dtype.kind in NUMBERS and np.dtype(dtype.str).char == dtype.char


def _write_array(values: list[Any], stream: Any) -> None:
    first = values[0]
    shape = first.shape
    stream.write(first.dtype.str.encode(), True)
    stream.write_var_int64(len(shape))
    for length in shape:
        stream.write_var_int64(length)
    stream.write(b"".join(values) if shape else np.fromiter(values, first.dtype, len(values)).tobytes(), True)


def _read_array(stream: Any, count: int) -> list[Any]:
    dtype = np.dtype(stream.read_all(True).decode())
    shape = [stream.read_var_int64() for _ in range(stream.read_var_int64())]
    numbers = np.frombuffer(stream.read_all(True), dtype).reshape(count, *shape)
    # An array is its own: it may be written to, and does not keep the others alive.
    return [array.copy() for array in numbers] if shape else list(numbers)
