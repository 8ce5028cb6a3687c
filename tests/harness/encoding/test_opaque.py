"""Opaque values, and lists of them."""

from __future__ import annotations

import datetime
import enum
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
from apache_beam import coders

from arcbeam.harness.encoding.opaque import Encodings, opacity

ANYTHING = coders.FastPrimitivesCoder()


class Thing:
    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and other.n == self.n

    __hash__ = None  # type: ignore[assignment]


class Named(NamedTuple):
    id: int
    what: Any


class Color(enum.Enum):
    RED = 1


class OwnCoder(coders.Coder):
    def encode(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def decode(self, encoded: bytes) -> Any:
        return pickle.loads(encoded)


@pytest.mark.parametrize(
    "value",
    [
        *(1, 1.5, "a", b"a", None, True, (1, "a"), [1, [2]], {"a": 1}, {1}, Named(1, 2.5), Color.RED, ()),
        *(np.int64(1), np.zeros(3), datetime.datetime(2020, 1, 1), Named(1, datetime.date(2020, 1, 1))),
    ],
)
def test_values_of_a_known_size(value: Any) -> None:
    is_opaque = opacity(ANYTHING)
    assert is_opaque is not None
    assert not is_opaque(value)


@pytest.mark.parametrize(
    "value",
    [Thing(1), (1, Thing(1)), [Thing(1)], {"a": Thing(1)}, Named(1, Thing(1)), np.array([Thing(1)]), iter(())],
)
def test_values_of_an_unknown_size(value: Any) -> None:
    is_opaque = opacity(ANYTHING)
    assert is_opaque is not None
    assert is_opaque(value)


def test_coders_without_opaque_values() -> None:
    number = coders.VarIntCoder()
    for coder in (number, coders.TupleCoder([number, coders.StrUtf8Coder()]), coders.IterableCoder(number)):
        assert opacity(coder) is None
    for coder, value, known in (
        (OwnCoder(), 1, None),
        (coders.TupleCoder([number, ANYTHING]), (1, Thing(1)), (1, 1)),
        (coders.NullableCoder(OwnCoder()), Thing(1), None),
        (coders.IterableCoder(ANYTHING), [Thing(1)], [1]),
    ):
        is_opaque = opacity(coder)
        assert is_opaque is not None
        assert is_opaque(value)
        assert known is None or not is_opaque(known)
    assert not opacity(coders.NullableCoder(OwnCoder()))(None)  # type: ignore[misc]


@pytest.mark.parametrize("coder", [ANYTHING, OwnCoder()])
def test_list_of_encodings_equals_encoded_list(coder: Any) -> None:
    values = [Thing(n) for n in range(20)]
    encodings = [coder.get_impl().encode_nested(value) for value in values]
    assert Encodings().encode(encodings) == coders.ListCoder(coder).get_impl().encode(values)
