"""Encodes many values of one coder together: in columns where that is faster than one after the other.

Owns the bytes of a list of values inside a block, and which values may be written that way: those which are known to be
decoded exactly as by their coder, including types. Everything else is written as by the SDK's list coder. So are values
that turn out not to fit, with that coder's errors. Elements that wait in a window are stored in this form. A later
version, or a changed script, must be able to read it (`tests/harness/encoding/format_1_blocks.json`).

- Tuples and rows (`TupleCoder`, `RowCoder`): each field is a column, written by its own coder, with a row's nulls.
- Values of the coder of any type (`FastPrimitivesCoder`): not pickled one by one, if possible
  (`harness.encoding.untyped`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Protocol

from apache_beam import coders
from apache_beam.coders import coder_impl, row_coder

from arcbeam.harness.encoding.untyped import FLAT, EncodedList, Objects, is_named_tuple, rows_of
from arcbeam.sizes import threshold

VALUES_MIN = threshold(16)
"""With fewer values, columns cost more than they save."""
_TRIES = threshold(3)
"""Consecutive lists that may turn out not to fit, before no more lists are tried."""
_NOT_A_COUNT = b"\xff\xff\xff\xff"
"""Replaces a list's count if the values are written in bulk."""
_COUNT = struct.Struct(">I")


class Unfit(Exception):
    """Raised for values that do not fit a form."""


class Form(Protocol):
    """How the values of a coder are written and read."""

    def write(self, values: list[Any], stream: Any) -> None:
        """Append values, at least one, to the SDK's output stream; raise any exception if they do not fit."""
        ...

    def read(self, stream: Any, count: int) -> list[Any]:
        """Read this many values from the SDK's input stream."""
        ...


class Bulk:
    """Encodes lists of values of a coder, where that is faster than one after the other.

    Args:
        coder: coder of a value.

    Attributes:
        form: how they are written.
    """

    def __init__(self, coder: Any) -> None:
        self.form = form = _form(coder)
        self._hopes = 0 if isinstance(form, EncodedList) else _TRIES

    def encode(self, values: list[Any]) -> bytes | None:
        """Encode values; None if that is not worth it or not known to be exact: then a list must be written."""
        form = self.form
        if not self._hopes or len(values) < VALUES_MIN or (isinstance(form, Objects) and form.are_listed(values)):
            return None
        stream = coder_impl.create_OutputStream()
        try:
            form.write(values, stream)
        except Exception:
            # Writing them one by one reports the value at fault, if any.
            self._hopes -= 1
            return None
        self._hopes = _TRIES
        encoded: bytes = stream.get()
        return encoded

    def read(self, stream: Any, count: int) -> list[Any]:
        """Read the values of `encode` from the SDK's input stream."""
        return self.form.read(stream, count)


class ListBytes:
    """Encodes lists of values: as the SDK's list coder writes them, or in bulk.

    Args:
        coder: coder of a value.
        bulk: whether to write in bulk, where that is faster. Both forms can be read.

    Attributes:
        encode: encodes a list.
        decode: decodes a list.
    """

    def __init__(self, coder: Any, *, bulk: bool = False) -> None:
        impl = coders.ListCoder(coder).get_impl()
        self._encode_list, self._decode_list = impl.encode, impl.decode
        self._bulk = Bulk(coder)
        # Checked first and by type only, because most groups are small.
        self._listed = FLAT if isinstance(self._bulk.form, Objects) else frozenset()
        never = isinstance(self._bulk.form, EncodedList)
        self.encode: Callable[[list[Any]], bytes] = self._encode if bulk and not never else impl.encode
        self.decode: Callable[[bytes], list[Any]] = impl.decode if never else self._decode

    def _encode(self, values: list[Any]) -> bytes:
        few = len(values) < VALUES_MIN or type(values[0]) in self._listed
        if few or (bulk := self._bulk.encode(values)) is None:
            encoded: bytes = self._encode_list(values)
            return encoded
        return _NOT_A_COUNT + _COUNT.pack(len(values)) + bulk

    def _decode(self, encoded: bytes) -> list[Any]:
        if encoded[0] != _NOT_A_COUNT[0]:
            values: list[Any] = self._decode_list(encoded)
            return values
        (count,) = _COUNT.unpack_from(encoded, len(_NOT_A_COUNT))
        stream = coder_impl.create_InputStream(encoded[len(_NOT_A_COUNT) + _COUNT.size :])
        return self._bulk.read(stream, count)


def _form(coder: Any) -> Form:
    kind = type(coder)
    if kind is coders.FastPrimitivesCoder:
        return Objects(coder)
    if kind is coders.StrUtf8Coder:
        return _Strings()
    if kind is coders.TupleCoder and coder.coders():
        return _Tuples(coder)
    if kind is row_coder.RowCoder and coder.components and not coder.schema.encoding_positions_set:
        return _Rows(coder)
    return EncodedList(coder)


_anything = EncodedList(coders.FastPrimitivesCoder())


class _Strings:
    """Strings: the coder of any type is faster than their own coder."""

    def write(self, values: list[Any], stream: Any) -> None:
        if set(map(type, values)) != {str}:
            raise Unfit
        _anything.write(values, stream)

    def read(self, stream: Any, count: int) -> list[Any]:
        return _anything.read(stream, count)


class _Tuples:
    """Tuples of a fixed length."""

    def __init__(self, coder: Any) -> None:
        self._forms = [_form(component) for component in coder.coders()]

    def write(self, values: list[Any], stream: Any) -> None:
        # The coder accepts any sequence, but decodes tuples.
        if set(map(type, values)) != {tuple} or set(map(len, values)) != {len(self._forms)}:
            raise Unfit
        for form, column in zip(self._forms, zip(*values, strict=True), strict=True):
            form.write(list(column), stream)

    def read(self, stream: Any, count: int) -> list[Any]:
        columns = [form.read(stream, count) for form in self._forms]
        return list(zip(*columns, strict=True))


class _Rows:
    """Rows of a schema: accepts objects with the fields as attributes, and decodes to the schema's own type."""

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
        if self._generated:
            return rows_of(self._kind, columns)
        return [self._kind(*row) for row in zip(*columns, strict=True)]

    def _read_column(self, form: Form, nullable: bool, stream: Any, count: int) -> list[Any]:
        if not nullable or not stream.read_byte():
            return form.read(stream, count)
        nulls: bytes = stream.read(count)
        present = nulls.count(0)
        values = iter(form.read(stream, present) if present else ())
        return [None if null else next(values) for null in nulls]
