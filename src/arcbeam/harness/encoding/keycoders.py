"""Keys as bytes: equal keys have equal bytes, in whatever worker they are encoded, or are refused.

Owns the deterministic form of a key's coder, and that workers pickle the types of keys in one way: named tuples, enums
and the like are written with the type pickled in front.

- The SDK has two ways to do so, by `--update_compatibility_version`, and one memory of the bytes of each type for both:
  in a worker that has run a job of the one, a job of the other would write what it cannot read. Keys live no longer
  than their job, so there is nothing that an older way would be compatible with.
- A class that cannot be imported is pickled with all that it holds, and a worker that got it with an earlier job, or
  whose SDK has noted something in it, has other bytes than the next. Those that every worker of a job has been given
  (`know`) are written by their name only.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import functools
import uuid
from collections.abc import Iterable
from typing import Any

import numpy as np
from apache_beam.coders import coder_impl, coders, row_coder
from apache_beam.coders.coder_impl import create_OutputStream
from apache_beam.internal import cloudpickle_pickler
from apache_beam.internal.cloudpickle import cloudpickle
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam.model.urns import KEY_CODER_URN

_LEFT_TO_FALLBACK = 0xFF
"""What the SDK's coder of anything has in front of a value that it leaves to another."""
_VALUES = frozenset(
    {
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
        *(decimal.Decimal, fractions.Fraction, complex, uuid.UUID, Timestamp, Duration),
        *(kind for kind in np.sctypeDict.values() if issubclass(kind, (np.number, np.bool_, np.str_, np.bytes_))),
        *(np.datetime64, np.timedelta64),
    }
)
"""Types of immutable values without parts that have an order: what is written alike is pickled alike."""


def deterministic(coder: Any, step: str) -> Any:
    """A coder that reads and writes like another, and gives equal values equal bytes.

    Where the SDK's is right it is the SDK's; a row's is not, as it keeps sets in their order.

    Args:
        coder: the SDK's.
        step: who needs it; named where an element is refused.

    Raises:
        ValueError: there is no such form.
    """
    match coder:
        case row_coder.RowCoder():
            return _RowKeyCoder(coder.schema, step)
        case coders.TupleCoder():
            return coders.TupleCoder([deterministic(part, step) for part in coder.coders()])
        case coders.TupleSequenceCoder() | coders.ListLikeCoder():
            return type(coder)(deterministic(coder.value_coder(), step))
        case coders.NullableCoder():
            return coders.NullableCoder(deterministic(coder._value_coder, step))
        case _ if coder.is_deterministic():
            return coder
    return coder.as_deterministic_coder(step)


class _RowKeyCoder(row_coder.RowCoder):  # type: ignore[misc]  # Beam is untyped
    """Rows as keys; see `deterministic`."""

    def __init__(self, schema: Any, step: str) -> None:
        super().__init__(schema)
        plain: list[Any] = vars(self)["components"]
        self.components = [_of_field(part, step) for part in plain]

    def is_deterministic(self) -> bool:
        """All components are."""
        return True


def _of_field(coder: Any, step: str) -> Any:
    """`deterministic` for what a row's field is written with."""
    match coder:
        case coders.FastPrimitivesCoder():
            return _Field(_AnythingImpl(coder, step))
        case coders.IterableCoder():
            return _Field(_ArrayImpl(_of_field(coder.value_coder(), step)))
        case coders.MapCoder():
            return coders.DeterministicMapCoder(_of_field(coder._key_coder, step), _of_field(coder._value_coder, step))
        case coders.NullableCoder():
            return coders.NullableCoder(_of_field(coder._value_coder, step))
        case row_coder.LogicalTypeCoder():
            return row_coder.LogicalTypeCoder(coder.logical_type, _of_field(coder.representation_coder, step))
    return deterministic(coder, step)


class _Field(coders.FastCoder):  # type: ignore[misc]  # Beam is untyped
    """What a part of a row is written with."""

    def __init__(self, impl: Any) -> None:
        self._given = impl

    def _create_impl(self) -> Any:
        return self._given

    def is_deterministic(self) -> bool:
        """It is, for what it takes."""
        return True


class _AnythingImpl(coder_impl.StreamCoderImpl):  # type: ignore[misc]  # Beam is untyped
    """Values of any type. What the SDK refuses as a key, but takes in a row, is taken if it is known to be a value."""

    def __init__(self, coder: Any, step: str) -> None:
        # SUBTLE: what this one cannot encode otherwise it leaves to the other, which then has a tag of its own.
        self._impl = coder.as_deterministic_coder(step).get_impl()
        self._fallback = coder.get_impl()

    def encode_to_stream(self, value: Any, out: Any, nested: bool) -> None:
        """See the SDK's `CoderImpl`."""
        if type(value) in _VALUES:
            out.write_byte(_LEFT_TO_FALLBACK)
            self._fallback.encode_to_stream(value, out, nested)
        else:
            self._impl.encode_to_stream(value, out, nested)

    def decode_from_stream(self, in_: Any, nested: bool) -> Any:
        """See the SDK's `CoderImpl`."""
        return self._impl.decode_from_stream(in_, nested)


class _ArrayImpl(coder_impl.StreamCoderImpl):  # type: ignore[misc]  # Beam is untyped
    """Arrays. A set, which a schema has as an array, too, is in the order of its elements' bytes."""

    def __init__(self, element: Any) -> None:
        self._element = element.get_impl()
        self._impl = coder_impl.IterableCoderImpl(self._element)
        self._encoded = coder_impl.IterableCoderImpl(_Encoded())

    def encode_to_stream(self, value: Any, out: Any, nested: bool) -> None:
        """See the SDK's `CoderImpl`."""
        if isinstance(value, (set, frozenset)):
            self._encoded.encode_to_stream(sorted(self._nested(value)), out, nested)
        else:
            self._impl.encode_to_stream(value, out, nested)

    def _nested(self, values: Iterable[Any]) -> Iterable[bytes]:
        for value in values:
            stream = create_OutputStream()
            self._element.encode_to_stream(value, stream, True)
            yield stream.get()

    def decode_from_stream(self, in_: Any, nested: bool) -> Any:
        """See the SDK's `CoderImpl`."""
        return self._impl.decode_from_stream(in_, nested)


class _Encoded(coder_impl.StreamCoderImpl):  # type: ignore[misc]  # Beam is untyped
    """What is bytes already."""

    def encode_to_stream(self, value: bytes, out: Any, nested: bool) -> None:
        out.write(value)


_named: dict[str, type] = {}
"""Classes that other workers have, too, by the name that the SDK's pickler has for them wherever it has seen them."""


def know(classes: Iterable[type]) -> None:
    """Says which classes every worker of the job at hand has, of those that cannot be imported; forgets all others."""
    _named.clear()
    for found in classes:
        name = _name_of(found)
        if name:
            _named[name] = found


def _name_of(kind: type) -> str:
    name = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(kind)
    return name if isinstance(name, str) else ""


class _ByName:
    """Pickles as a class of another worker."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return _class_named, (self._name,)


def _class_named(name: str) -> type:
    return _named[name]


def _naming(dumps: Any) -> Any:
    """The SDK's `dumps`, but for a known class on its own, which is what a coder of keys asks for."""

    @functools.wraps(dumps)
    def dump(o: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(o, type) and (name := _name_of(o)) in _named:
            o = _ByName(name)
        return dumps(o, *args, **kwargs)

    dump.names_classes = True  # type: ignore[attr-defined]
    return dump


def _create_impl(self: Any) -> Any:
    return coders.DeterministicFastPrimitivesCoderV2(self._underlying_coder, self._step_label).get_impl()


def register() -> None:
    """Teaches the SDK our coder; makes the SDK's of the older way use the newer one. Idempotent; in workers only."""
    coders.DeterministicFastPrimitivesCoder._create_impl = _create_impl
    if not hasattr(cloudpickle_pickler.dumps, "names_classes"):
        cloudpickle_pickler.dumps = _naming(cloudpickle_pickler.dumps)
    coders.Coder.register_urn(KEY_CODER_URN, bytes, lambda step, parts, _: deterministic(parts[0], step.decode()))
