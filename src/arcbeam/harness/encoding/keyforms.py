"""Forms of keys, by which a table identifies keys: for most keys faster to compute than their encodings.

Owns the *form* of a key: keys whose forms are of one kind and equal have equal encodings. 1, 1.0 and True are equal but
three keys, and so are (1,) and (True,). So a kind contains the exact types of a key and of its parts. A key without
such a form uses its encoding. A key's form does not depend on other keys. Must not know tables, blocks or windows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from apache_beam.coders import coder_impl

PLAIN = frozenset({int, str, bytes, bool, type(None)})
"""Exact types of keys that are their own form."""

Kind = Any
"""A type, or a type and those of its parts; None is the kind of encodings."""

_KEY, _VALUE = itemgetter(0), itemgetter(1)
_ITSELF: Callable[[Any], Any] = tuple


class PairsOfOneForm(NamedTuple):
    """Pairs whose keys have forms of one kind.

    Attributes:
        kind: the kind of the forms.
        pairs: form and value.
        keys: the key of each pair, if a form is neither the key itself nor its encoding; else None.
    """

    kind: Kind
    pairs: list[tuple[Any, Any]]
    keys: list[Any] | None

    def note_keys(self, key_of: dict[Any, Any], table: dict[Any, Any], before: int) -> None:
        """Record the keys of forms that these pairs have added to a table, if a form does not determine its key.

        Args:
            key_of: receives a key for each form; all keys of a form have the same encoding.
            table: by form.
            before: number of forms that were in the table before.
        """
        # New forms are at the end of a table. Most forms are known, so `key_of` is not consulted for each element.
        new = list(islice(reversed(table), len(table) - before))
        if self.keys is not None and new:
            key_of_form = dict(zip(map(_KEY, self.pairs), self.keys, strict=True))
            key_of.update(zip(new, map(key_of_form.__getitem__, new), strict=True))


class KeyForms:
    """The forms of keys of one coder.

    Args:
        impl: the coder's impl.
        encode: encodes a key; by default the coder's method.
    """

    def __init__(self, impl: Any, encode: Callable[[Any], bytes] | None = None) -> None:
        self._encode: Callable[[Any], bytes] = encode or impl.encode
        # The SDK's coder of any type writes a frozen dataclass as its type and its init fields.
        self._writes_fields = isinstance(impl, coder_impl.FastPrimitivesCoderImpl)
        self._parts: dict[type, Callable[[Any], Any] | None] = {tuple: _ITSELF}

    def of(self, pairs: list[tuple[Any, Any]]) -> Iterator[PairsOfOneForm]:
        """Yield pairs with forms instead of keys, by kind; the pairs of a key stay in order."""
        kinds = set(map(type, map(_KEY, pairs)))
        if len(kinds) == 1:
            (kind,) = kinds
            if kind in PLAIN:
                yield PairsOfOneForm(kind, pairs, None)
                return
            keys = [key for key, _ in pairs]
            alike = self._of_a_type(kind, keys)
            if alike is not None:
                formed, forms = alike
                if forms is keys:
                    yield PairsOfOneForm(formed, pairs, None)
                else:
                    originals = None if formed is None else keys
                    yield PairsOfOneForm(formed, list(zip(forms, map(_VALUE, pairs), strict=True)), originals)
                return
        yield from self._each(pairs)

    def one(self, key: Any) -> tuple[Kind, Any]:
        """Return the kind and the form of a key."""
        kind = type(key)
        if kind in PLAIN or (kind is float and _is_regular((key,))):
            return kind, key
        parts_of = self._parts_of(kind)
        if parts_of is not None:
            parts = key if parts_of is _ITSELF else parts_of(key)
            types = tuple(map(type, parts))
            if all(t in PLAIN or (t is float and _is_regular((x,))) for t, x in zip(types, parts, strict=True)):
                return (kind, *types), parts
        return None, self._encode(key)

    def _each(self, pairs: Iterable[tuple[Any, Any]]) -> Iterator[PairsOfOneForm]:
        found: dict[Kind, PairsOfOneForm] = {}
        for key, value in pairs:
            kind, form = self.one(key)
            alike = found.get(kind)
            if alike is None:
                alike = found[kind] = PairsOfOneForm(kind, [], None if kind is None or form is key else [])
            alike.pairs.append((form, value))
            if alike.keys is not None:
                alike.keys.append(key)
        yield from found.values()

    def _of_a_type(self, kind: type, keys: list[Any]) -> tuple[Kind, list[Any]] | None:
        """Return the kind and the forms of keys of one type; None if they are of several kinds."""
        if kind is float:
            return (kind, keys) if _is_regular(keys) else None
        parts_of = self._parts_of(kind)
        if parts_of is None:
            return None, list(map(self._encode, keys))
        forms = keys if parts_of is _ITSELF else list(map(parts_of, keys))
        lengths = set(map(len, forms))
        if len(lengths) > 1:
            return None
        types: list[type] = []
        for place in range(lengths.pop()):
            part = itemgetter(place)
            found = set(map(type, map(part, forms)))
            if len(found) > 1 or (float in found and not _is_regular(map(part, forms))):
                return None
            if not (float in found or found <= PLAIN):
                return None, list(map(self._encode, keys))
            types += found
        return (kind, *types), forms

    def _parts_of(self, kind: type) -> Callable[[Any], Any] | None:
        """Return a function that splits keys of a type into a tuple; None if there is none."""
        if kind not in self._parts:
            self._parts[kind] = _ITSELF if _is_tuple(kind) else self._fields_of(kind)
        return self._parts[kind]

    def _fields_of(self, kind: type) -> Callable[[Any], Any] | None:
        if not self._writes_fields or not dataclasses.is_dataclass(kind) or not _is_frozen(kind):
            return None
        names = [field.name for field in dataclasses.fields(kind) if field.init]
        # With one name, the result would not be a tuple.
        return attrgetter(*names) if len(names) > 1 else None


def _is_tuple(kind: type) -> bool:
    """Return whether values of a type are compared and iterated like tuples."""
    same = ("__eq__", "__hash__", "__iter__", "__len__", "__getitem__")
    return issubclass(kind, tuple) and all(getattr(kind, name) is getattr(tuple, name) for name in same)


def _is_regular(numbers: Iterable[float]) -> bool:
    """Return whether exactly the equal floats have equal encodings: no zeros of both signs, no NaN."""
    numbers = tuple(numbers)
    total = sum(numbers)
    # With infinities of both signs the sum is NaN, too. Those keys use their encodings, one by one.
    return 0.0 not in numbers and (total == total or not any(x != x for x in numbers))


def _is_frozen(kind: Any) -> bool:
    return bool(kind.__dataclass_params__.frozen)
