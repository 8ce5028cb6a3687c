"""The ways to write it: the functions that every peer applies, and the right answer of each.

The works of `work` are fast for every peer; these are the same tasks as users commonly write them, with a row for each
way. Knows neither Beam nor Spark.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bench.works.work import KEYS, Answer, M, Work, digest_number, key_of

LARGEST = 10
_PRIME = 10_007
WIDE = 400
"""Number of columns for the keys with two parts."""


# ----------------------------------------------------------------------------------------------------- generators


def once(x: int) -> Iterator[int]:
    yield x * 3 + 1


def zero_or_once(x: int) -> Iterator[int]:
    if x % 4:
        yield x ^ 0x5555


def once_or_twice(x: int) -> Iterator[int]:
    yield x
    if x % 2:
        yield x + 1


# ----------------------------------------------------------------------------------------------------------- keys


@dataclass(frozen=True)
class Place:
    row: int
    column: int


class Cell(NamedTuple):
    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of keys, with 100,000 keys (or as many as it has).

    Attributes:
        what: its description.
        number: returns a key's number, from 0: the inverse of the function that makes it.
        keys: how many there are.
    """

    what: str
    number: Callable[[Any], int]
    keys: int = KEYS


def by_tuple(x: int) -> tuple[tuple[int, int], int]:
    return divmod(key_of(x), WIDE), x


def by_float(x: int) -> tuple[float, int]:
    return key_of(x) / 4, x


def by_bool(x: int) -> tuple[bool, int]:
    return key_of(x) % 2 == 0, x


def by_none(x: int) -> tuple[None, int]:
    return None, x


def by_dataclass(x: int) -> tuple[Place, int]:
    key = key_of(x)
    return Place(key // WIDE, key % WIDE), x


def by_namedtuple(x: int) -> tuple[Cell, int]:
    key = key_of(x)
    return Cell(key // WIDE, key % WIDE), x


KEYED: dict[str, Callable[[int], Any]] = {
    "tuple": by_tuple,
    "float": by_float,
    "bool": by_bool,
    "none": by_none,
    "dataclass": by_dataclass,
    "namedtuple": by_namedtuple,
}
"""Functions that give a number a key, by kind; each peer has its own rows."""


def _of_parts(key: Any) -> int:
    return key.row * WIDE + key.column


KINDS = {
    "tuple": Kind("tuples of two numbers", lambda key: key[0] * WIDE + key[1]),
    "float": Kind("floats", lambda key: int(key * 4)),
    "bool": Kind("True and False", lambda key: 0 if key else 1, 2),
    "none": Kind("None", lambda key: 0, 1),
    "dataclass": Kind("a frozen dataclass", _of_parts),
    "namedtuple": Kind("a named tuple", _of_parts),
    "row": Kind("rows (`beam.Row`, Spark's `Row`)", _of_parts),
}


def digest_by(kind: str) -> Callable[[tuple[Any, int]], int]:
    """Return the digest of a pair of a key and a number."""
    number = KINDS[kind].number
    return lambda pair: (number(pair[0]) * 31 + pair[1]) % _PRIME


def digest_key(kind: str) -> Callable[[Any], int]:
    """Return the digest of a key."""
    number = KINDS[kind].number
    return lambda key: number(key) % _PRIME


# -------------------------------------------------------------------------------------------------------- answers


@functools.cache
def _yields(elements: int) -> Answer:
    x = np.arange(elements, dtype=np.int64) * 3 + 1
    x = x[x % 4 != 0] ^ 0x5555
    x = np.concatenate([x, x[x % 2 != 0] + 1])
    return Answer(len(x), int((x % _PRIME).sum()))


def _mapped(elements: int) -> np.ndarray:
    return np.asarray((np.arange(elements, dtype=np.int64) * 3 + 1) ^ 0x5555)


def _one(value: float) -> Answer:
    return Answer(1, digest_number(int(value)))


@functools.cache
def _sum(elements: int) -> Answer:
    return _one(int(_mapped(elements).sum()))


@functools.cache
def _mean(elements: int) -> Answer:
    return _one(int(_mapped(elements).sum()) / elements)


@functools.cache
def _largest(elements: int) -> Answer:
    return _one(int(np.sort(_mapped(elements))[-LARGEST:].sum()))


def _numbers_of(kind: str, elements: int) -> np.ndarray:
    x = np.arange(elements, dtype=np.uint64)
    keys = (x * np.uint64(2654435761) & np.uint64(0xFFFFFFFF)) % np.uint64(KEYS)
    return np.asarray((keys % np.uint64(KINDS[kind].keys)).astype(np.int64))


@functools.cache
def _per_key(kind: str, elements: int) -> Answer:
    numbers = _numbers_of(kind, elements)
    # Exact, because all sums stay below 2**53.
    sums = np.bincount(numbers, np.arange(elements)).astype(np.int64)
    present = np.unique(numbers)
    return Answer(len(present), int(((present * 31 + sums[present]) % _PRIME).sum()))


@functools.cache
def _distinct(kind: str, elements: int) -> Answer:
    present = np.unique(_numbers_of(kind, elements))
    return Answer(len(present), int((present % _PRIME).sum()))


def _way(name: str, what: str, answer: Callable[[int], Answer]) -> Work:
    return Work(name, what, 2 * M, 200_000, answer, way=True)


def _of_kind(answer: Callable[[str, int], Answer], kind: str) -> Callable[[int], Answer]:
    return lambda elements: answer(kind, elements)


WORKS = {
    work.name: work
    for work in (
        _way("yields", "three ParDos whose `process` yields: once, zero or once, once or twice", _yields),
        _way("count-globally", "three Maps, Count.Globally", lambda elements: _one(elements)),
        _way("sum-globally", "two Maps, CombineGlobally(sum)", _sum),
        _way("top", "two Maps, Top.Largest(10)", _largest),
        _way("mean", "two Maps, Mean.Globally", _mean),
        *(_way(f"sum-{n}", f"CombinePerKey(sum), keys: {k.what}", _of_kind(_per_key, n)) for n, k in KINDS.items()),
        *(_way(f"group-{n}", f"GroupByKey, keys: {k.what}", _of_kind(_per_key, n)) for n, k in KINDS.items()),
        *(_way(f"distinct-{n}", f"Distinct: {KINDS[n].what}", _of_kind(_distinct, n)) for n in ("tuple", "dataclass")),
    )
}
