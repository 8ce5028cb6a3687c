"""Encoding of keys: equal keys have equal bytes in every worker, or are refused.

Owns the deterministic form of a key's coder, and that all workers pickle the types of keys in one way. Named tuples,
enums and similar values are written with their pickled type.

- The SDK has two ways to do so, selected by `--update_compatibility_version`, but one cache of each type's bytes for
  both. After a job of one kind, a worker would write keys for a job of the other kind that this job cannot read. Keys
  live no longer than their job, so no compatibility with the older way is needed.
- A class that cannot be imported is pickled with all its contents. These differ between workers: one may have received
  the class with an earlier job, or its SDK has stored something in it. Classes that every worker of a job has received
  (`know`) are written by name only.
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

from arcbeam.harness.encoding.script.space import current
from arcbeam.model.urns import KEY_CODER_URN

_LEFT_TO_FALLBACK = 0xFF
"""First byte of a value that the SDK's coder of any type leaves to its fallback coder."""
_VALUES = frozenset(
    {
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
        *(decimal.Decimal, fractions.Fraction, complex, uuid.UUID, Timestamp, Duration),
        *(kind for kind in np.sctypeDict.values() if issubclass(kind, (np.number, np.bool_, np.str_, np.bytes_))),
        *(np.datetime64, np.timedelta64),
    }
)
"""Types of immutable values without ordered parts: equal encodings are equal pickles."""


def deterministic(coder: Any, step: str) -> Any:
    """Return a coder that reads and writes like another one, but gives equal values equal bytes.

    This is the SDK's deterministic coder where that is correct. For rows it is not: it keeps the order of sets.

    Args:
        coder: the SDK's coder.
        step: the transform that needs it, for errors.

    Raises:
        ValueError: there is no deterministic form.
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
        """Return True: all components are deterministic."""
        return True


def _of_field(coder: Any, step: str) -> Any:
    """Return the deterministic form of the coder of a row's field."""
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
    """Coder of a part of a row."""

    def __init__(self, impl: Any) -> None:
        self._given = impl

    def _create_impl(self) -> Any:
        return self._given

    def is_deterministic(self) -> bool:
        """Return True: it is deterministic for the values that it accepts."""
        return True


class _AnythingImpl(coder_impl.StreamCoderImpl):  # type: ignore[misc]  # Beam is untyped
    """Values of any type. Accepts known immutable values that the SDK accepts in a row but refuses as a key."""

    def __init__(self, coder: Any, step: str) -> None:
        # SUBTLE: the values that it leaves to its fallback coder have a tag of their own.
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
    """Arrays. A set, which a schema also represents as an array, is written in the order of its elements' bytes."""

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
    """Values that are already encoded."""

    def encode_to_stream(self, value: bytes, out: Any, nested: bool) -> None:
        out.write(value)


_named: dict[str, type] = {}
"""Classes that other workers have, too, by the name that the SDK's pickler has given them in all workers. Those of the
script are not among them."""


def know(classes: Iterable[type]) -> None:
    """Set which of the classes that cannot be imported every worker of the current job has; forget all others."""
    _named.clear()
    for found in classes:
        name = _name_of(found)
        if name:
            _named[name] = found


def _name_of(kind: type) -> str:
    name = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(kind)
    return name if isinstance(name, str) else ""


class _ByName:
    """Pickles as a class that the other worker knows by name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return _class_named, (self._name,)


def _is_known(name: str) -> bool:
    script = current()
    return name in _named or (script is not None and script.has_class(name))


def _class_named(name: str) -> Any:
    script = current()
    return _named[name] if name in _named or script is None else script.class_of(name)


def _naming(dumps: Any) -> Any:
    """Wrap the SDK's `dumps`: a known class on its own, as a coder of keys passes it, is pickled by name."""

    @functools.wraps(dumps)
    def dump(o: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(o, type) and _is_known(name := _name_of(o)):
            o = _ByName(name)
        return dumps(o, *args, **kwargs)

    dump.names_classes = True  # type: ignore[attr-defined]
    return dump


def _create_impl(self: Any) -> Any:
    return coders.DeterministicFastPrimitivesCoderV2(self._underlying_coder, self._step_label).get_impl()


def register() -> None:
    """Register our coder in the SDK; make the SDK's older coder use the newer form. Idempotent; in workers only."""
    coders.DeterministicFastPrimitivesCoder._create_impl = _create_impl
    if not hasattr(cloudpickle_pickler.dumps, "names_classes"):
        cloudpickle_pickler.dumps = _naming(cloudpickle_pickler.dumps)
    coders.Coder.register_urn(KEY_CODER_URN, bytes, lambda step, parts, _: deterministic(parts[0], step.decode()))
