"""Many values of one coder as bytes, at once: in columns where that is faster than one after the other.

Owns the bytes of a list of values inside a block, and what may be written that way: values for which it is known that
they come back as the coder would have brought them back, down to their types. Everything else is written as the SDK's
list coder has it, and so is, with its errors, what turns out not to fit. These bytes are read by the same job only.

- Tuples and rows (`TupleCoder`, `RowCoder`): each field is a column, written by its own coder, beside a row's nulls.
- Of values without a type (`FastPrimitivesCoder`) those that it would pickle one by one: numpy's numbers and arrays are
  one buffer; named tuples are their class, once, and columns.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterable
from itertools import repeat
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
from apache_beam import coders
from apache_beam.coders import coder_impl, row_coder

_FEWEST = 16
"""With fewer values, columns cost more than they save."""
_TRIES = 3
"""Lists in a row that may turn out not to fit, before no more is tried."""
_LISTED, _ARRAY, _RECORDS, _COLUMNS, _PICKLED = range(5)
"""How values are written; the byte in front of them."""
_NUMBERS = "biufc"
_FLAT = frozenset((int, float, str, bytes, bool, type(None)))

_new: Callable[..., Any] = tuple.__new__


class Unfit(Exception):
    """Values are not of a form."""


class Form(Protocol):
    """How the values of a coder are written and read."""

    def write(self, values: list[Any], stream: Any) -> None:
        """Appends values, at least one, to the SDK's output stream; raises whatever if they are not of the form."""
        ...

    def read(self, stream: Any, count: int) -> list[Any]:
        """Takes as many values from the SDK's input stream."""
        ...


class Bulk:
    """Lists of values of a coder as bytes, where that is faster than one after the other.

    Args:
        coder: of a value.
    """

    def __init__(self, coder: Any) -> None:
        self._form = form = _form(coder)
        self._hopes = 0 if isinstance(form, _Listed) else _TRIES

    def encode(self, values: list[Any]) -> bytes | None:
        """Values as bytes; None if that is not worth it, or not known to be the same: a list is to be written."""
        form = self._form
        if not self._hopes or len(values) < _FEWEST or (isinstance(form, _Objects) and form.are_listed(values)):
            return None
        stream = coder_impl.create_OutputStream()
        try:
            form.write(values, stream)
        except Exception:
            # Whoever writes them one by one says what is wrong with which, if anything.
            self._hopes -= 1
            return None
        self._hopes = _TRIES
        encoded: bytes = stream.get()
        return encoded

    def read(self, stream: Any, count: int) -> list[Any]:
        """Takes the values of `encode` from the SDK's input stream."""
        return self._form.read(stream, count)


def is_named_tuple(kind: type) -> bool:
    """Whether a type is a named tuple as it was generated: its instances are their fields, and made of nothing else."""
    code = getattr(kind.__new__, "__code__", None)
    return (
        kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and getattr(code, "co_names", None) == ("_tuple_new",)
    )


def _form(coder: Any) -> Form:
    kind = type(coder)
    if kind is coders.FastPrimitivesCoder:
        impl = coder.get_impl()
        if getattr(impl, "requires_deterministic_step_label", None) is None:
            return _Objects(coder)
    if kind is coders.StrUtf8Coder:
        return _Strings()
    if kind is coders.TupleCoder and coder.coders():
        return _Tuples(coder)
    if kind is row_coder.RowCoder and coder.components and not coder.schema.encoding_positions_set:
        return _Rows(coder)
    return _Listed(coder)


class _Listed:
    """One after the other, as the SDK's list coder does it."""

    def __init__(self, coder: Any) -> None:
        self._impl = coders.ListCoder(coder).get_impl()

    def write(self, values: list[Any], stream: Any) -> None:
        self._impl.encode_to_stream(values, stream, True)

    def read(self, stream: Any, count: int) -> list[Any]:
        values: list[Any] = self._impl.decode_from_stream(stream, True)
        return values


_anything = _Listed(coders.FastPrimitivesCoder())


class _Strings:
    """Strings: the coder of anything is faster with them than their own, and takes them just so."""

    def write(self, values: list[Any], stream: Any) -> None:
        if set(map(type, values)) != {str}:
            raise Unfit
        _anything.write(values, stream)

    def read(self, stream: Any, count: int) -> list[Any]:
        return _anything.read(stream, count)


class _Objects:
    """What the SDK's coder of anything takes: mostly in a list; what it would pickle, if possible, not."""

    def __init__(self, coder: Any) -> None:
        self._listed = _Listed(coder)
        self._pickled = _Listed(coder._fallback_coder)

    def are_listed(self, values: list[Any]) -> bool:
        """Whether values would be written as a list."""
        return self._how(values, inside=False) == _LISTED

    def write(self, values: list[Any], stream: Any, *, inside: bool = False) -> None:
        """See `Form`; what is `inside` is part of values that would have been pickled."""
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
        kinds = set(map(type, values))
        if kinds <= _FLAT:
            return _LISTED
        if len(kinds) > 1:
            return _PICKLED if inside else _LISTED
        (kind,) = kinds
        if _is_number(kind, values) or (kind is np.ndarray and _are_alike(values)):
            return _ARRAY
        if is_named_tuple(kind) and _pickles_as_itself(kind) and kind._fields:  # type: ignore[attr-defined]
            return _RECORDS
        # Tuples of what is not pickled anyway are as fast in a list.
        if kind is tuple and not _FLAT.issuperset(map(type, values[0])) and len(set(map(len, values))) == 1:
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
        """See `Form`."""
        how = stream.read_byte()
        if how == _LISTED:
            return self._listed.read(stream, count)
        if how == _PICKLED:
            return self._pickled.read(stream, count)
        if how == _ARRAY:
            return _read_array(stream, count)
        kind = self._pickled.read(stream, 1)[0] if how == _RECORDS else None
        columns = [self.read(stream, count) for _ in range(stream.read_var_int64())]
        rows = zip(*columns, strict=True)
        return list(rows) if kind is None else list(map(_new, repeat(kind), rows))


class _Tuples:
    """Tuples of a fixed length."""

    def __init__(self, coder: Any) -> None:
        self._forms = [_form(component) for component in coder.coders()]

    def write(self, values: list[Any], stream: Any) -> None:
        # The coder takes any sequence, and brings back a tuple.
        if set(map(type, values)) != {tuple} or set(map(len, values)) != {len(self._forms)}:
            raise Unfit
        for form, column in zip(self._forms, zip(*values, strict=True), strict=True):
            form.write(list(column), stream)

    def read(self, stream: Any, count: int) -> list[Any]:
        columns = [form.read(stream, count) for form in self._forms]
        return list(zip(*columns, strict=True))


class _Rows:
    """Rows of a schema: whatever has the fields as attributes goes in, the schema's own type comes out."""

    def __init__(self, coder: Any) -> None:
        self._names = [field.name for field in coder.schema.fields]
        self._nullable = [field.type.nullable for field in coder.schema.fields]
        self._forms = [_form(component) for component in coder.components]
        self._kind = kind = coder.to_type_hint()
        self._generated = is_named_tuple(kind) and list(kind._fields) == self._names

    def write(self, values: list[Any], stream: Any) -> None:
        if self._generated and set(map(type, values)) == {self._kind}:
            columns: Iterable[Any] = zip(*values, strict=True)
        else:
            columns = (map(attrgetter(name), values) for name in self._names)
        for form, nullable, column in zip(self._forms, self._nullable, columns, strict=True):
            present = list(column)
            if nullable:
                nulls = bytes([value is None for value in present])
                any_null = 1 in nulls
                stream.write_byte(any_null)
                if any_null:
                    stream.write(nulls)
                    present = [value for value in present if value is not None]
            elif None in present:
                raise Unfit
            if present:
                form.write(present, stream)

    def read(self, stream: Any, count: int) -> list[Any]:
        columns = [
            self._read_column(form, n, stream, count) for form, n in zip(self._forms, self._nullable, strict=True)
        ]
        rows = zip(*columns, strict=True)
        if self._generated:
            return list(map(_new, repeat(self._kind), rows))
        return [self._kind(*row) for row in rows]

    def _read_column(self, form: Form, nullable: bool, stream: Any, count: int) -> list[Any]:
        if not nullable or not stream.read_byte():
            return form.read(stream, count)
        nulls: bytes = stream.read(count)
        present = nulls.count(0)
        values = iter(form.read(stream, present) if present else ())
        return [None if null else next(values) for null in nulls]


# What would be pickled.


def _pickles_as_itself(kind: type) -> bool:
    """Whether pickling an instance is calling its class with its fields, and nothing else."""
    return (
        kind.__dictoffset__ == 0
        and kind not in copyreg.dispatch_table
        and not hasattr(kind, "__setstate__")
        and all(getattr(kind, name, None) is getattr(object, name, None) for name in _PICKLING)
    )


_PICKLING = ("__reduce__", "__reduce_ex__", "__getstate__")


def _is_number(kind: type, values: list[Any]) -> bool:
    return issubclass(kind, np.number | np.bool_) and values[0].dtype.kind in _NUMBERS


def _are_alike(arrays: list[Any]) -> bool:
    """Whether arrays are of numbers, and the same but for these."""
    first = arrays[0]
    if first.dtype.kind not in _NUMBERS or not first.ndim or not first.flags.c_contiguous:
        return False
    return len({(array.dtype, array.shape, array.strides) for array in arrays}) == 1


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
