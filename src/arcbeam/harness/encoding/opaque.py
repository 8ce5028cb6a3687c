"""Opaque values: their size in memory cannot be determined, only that of their encodings.

Owns which values are opaque, and how a list of their encodings is encoded. Must not know the code that holds them.

A value is opaque if it, or a part of it, would be pickled or has a coder that is unknown here. Exceptions are numpy's
numbers and arrays, and some small types of the standard library.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
from apache_beam import coders
from apache_beam.coders import row_coder
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam.harness.encoding.frames import COUNT
from arcbeam.harness.encoding.untyped import FLAT, is_named_tuple
from arcbeam.sizes import threshold

IsOpaque = Callable[[Any], bool]

_LOOKED_AT = threshold(4)
"""How many parts of a container are checked."""
_SMALL = FLAT | {
    complex,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
    Timestamp,
    Duration,
}
_CONTAINERS = (list, tuple, set, frozenset)
_KNOWN = frozenset(
    (
        coders.BooleanCoder,
        coders.BytesCoder,
        coders.DecimalCoder,
        coders.FloatCoder,
        coders.SinglePrecisionFloatCoder,
        coders.StrUtf8Coder,
        coders.TimestampCoder,
        coders.VarIntCoder,
    )
)
"""Coders that have no opaque values."""


def opacity(coder: Any) -> IsOpaque | None:
    """Return a function that tells whether a value is opaque, from some of its parts; None if no value can be."""
    kind = type(coder)
    if kind in _KNOWN:
        return None
    if kind is coders.FastPrimitivesCoder:
        return _is_opaque
    if kind is coders.TupleCoder:
        return _any_part([opacity(component) for component in coder.coders()], iter)
    if kind is coders.NullableCoder:
        return _any_part([opacity(coder._value_coder)], lambda value: iter((value,)))
    if kind in (coders.ListCoder, coders.IterableCoder, coders.TupleSequenceCoder):
        inner = opacity(coder._elem_coder)
        # Other iterables may be of any kind, and some can be iterated only once.
        return inner and (lambda value: type(value) not in _CONTAINERS or any(map(inner, islice(value, _LOOKED_AT))))
    if kind is row_coder.RowCoder:
        names = [field.name for field in coder.schema.fields]
        inners = [opacity(component) for component in coder.components]
        return _any_part(inners, lambda row: (getattr(row, name) for name in names))
    return _always


def _always(value: Any) -> bool:
    return True


def _any_part(inners: list[IsOpaque | None], parts: Callable[[Any], Iterator[Any]]) -> IsOpaque | None:
    if not any(inners):
        return None

    def is_opaque(value: Any) -> bool:
        pairs = zip(inners, parts(value), strict=False)
        return any(part is not None and inner is not None and inner(part) for inner, part in pairs)

    return is_opaque


def _is_opaque(value: Any) -> bool:
    """Return whether a value of the coder of any type is opaque."""
    kind = type(value)
    if kind in _SMALL or issubclass(kind, np.number | np.bool_ | enum.Enum):
        return False
    if kind in _CONTAINERS or is_named_tuple(kind):
        return any(map(_is_opaque, islice(value, _LOOKED_AT)))
    if kind is dict:
        return any(map(_is_opaque, chain.from_iterable(islice(value.items(), _LOOKED_AT))))
    return kind is not np.ndarray or value.dtype.hasobject


class Encodings:
    """Encodes lists of encoded values, with the same bytes as the SDK's list coder for the values."""

    def encode(self, values: list[bytes]) -> bytes:
        """Encode a list."""
        return b"".join((COUNT.pack(len(values)), *values))

    def encode_to_stream(self, values: list[bytes], stream: Any, nested: bool) -> None:
        """Append an encoded list to the SDK's output stream."""
        stream.write(self.encode(values))
