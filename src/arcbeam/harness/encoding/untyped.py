"""Values of the SDK's coder of any type: compact encodings where it would pickle them one by one.

Owns which types have such encodings, and their bytes. Numbers and arrays of numpy are one buffer. Named tuples are
their class, once, and columns. Tuples with any of these in them are columns. Decoding gives the same as unpickling.
Everything else is a list, as in the SDK.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import numpy as np
from apache_beam import coders

_LISTED, _ARRAY, _RECORDS, _COLUMNS, _PICKLED = range(5)
"""How values are written; the first byte."""
NUMBERS = "biufc"
"""numpy's kinds of numbers."""
FLAT = frozenset((int, float, str, bytes, bool, type(None)))
"""Types that the coder of any type restores as pickling does."""
_NATIVE = FLAT | {list, dict, set}
"""Types that it does not pickle, whatever they contain."""
_PICKLING = ("__reduce__", "__reduce_ex__", "__getstate__")
"""Methods by which a class can change how its instances are pickled."""

new_tuple: Callable[..., Any] = tuple.__new__
"""Creates a named tuple from a class and its fields."""


def is_named_tuple(kind: type) -> bool:
    """Return whether a type is an unmodified generated named tuple: its instances consist of their fields only."""
    code = getattr(kind.__new__, "__code__", None)
    return (
        kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and getattr(code, "co_names", None) == ("_tuple_new",)
    )


def rows_of(kind: type, columns: Iterable[Iterable[Any]]) -> list[Any]:
    """Create named tuples of an unmodified class from the columns of their fields."""
    return list(map(new_tuple, repeat(kind), zip(*columns, strict=True)))


class EncodedList:
    """Values one after the other, as the SDK's list coder writes them."""

    def __init__(self, coder: Any) -> None:
        self._impl = coders.ListCoder(coder).get_impl()

    def write(self, values: list[Any], stream: Any) -> None:
        """Appends values to the SDK's output stream, as one list."""
        self._impl.encode_to_stream(values, stream, True)

    def read(self, stream: Any, count: int) -> list[Any]:
        """Takes as many values from the SDK's input stream."""
        values: list[Any] = self._impl.decode_from_stream(stream, True)
        return values


class Objects:
    """Values of the SDK's coder of any type: usually in a list, but compact where it would pickle them."""

    def __init__(self, coder: Any) -> None:
        self._listed = EncodedList(coder)
        self._pickled = EncodedList(coder._fallback_coder)

    def are_listed(self, values: list[Any]) -> bool:
        """Return whether values would be written as a list."""
        return self._how(values, inside=False) == _LISTED

    def write(self, values: list[Any], stream: Any, *, inside: bool = False) -> None:
        """See `arcbeam.harness.encoding.bulk.Form`; `inside`: the values are parts of values that would be pickled."""
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
        # Tuples of parts that are not pickled are as fast in a list.
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
        """Takes as many values from the SDK's input stream."""
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
        # The class has changed: the script of a restored job differs from the one that wrote this. As in unpickling.
        return [kind.__new__(kind, *fields) for fields in zip(*columns, strict=True)]


def _pickles_as_itself(kind: type) -> bool:
    """Return whether pickling an instance only calls its class with its fields."""
    return (
        kind.__dictoffset__ == 0
        and kind not in copyreg.dispatch_table
        and not hasattr(kind, "__setstate__")
        and all(getattr(kind, name, None) is getattr(object, name, None) for name in _PICKLING)
    )


def _is_number(kind: type, values: list[Any]) -> bool:
    return issubclass(kind, np.number | np.bool_) and _has_a_name(values[0].dtype)


def _are_alike(arrays: list[Any]) -> bool:
    """Return whether arrays contain numbers, and have equal types and layouts."""
    first = arrays[0]
    if not _has_a_name(first.dtype) or not first.ndim or not first.flags.c_contiguous or not first.flags.writeable:
        return False
    return len({(array.dtype, array.shape, array.strides, array.flags.writeable) for array in arrays}) == 1


def _has_a_name(dtype: Any) -> bool:
    """Return whether a dtype is a number type that its name identifies: of two equal dtypes only one is."""
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
    # Each array is a copy: it can be written to, and does not keep the others alive.
    return [array.copy() for array in numbers] if shape else list(numbers)
