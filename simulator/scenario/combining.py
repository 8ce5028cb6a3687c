"""A combiner of atoms: the output contains all atoms of the input.

Owns the bytes of its accumulators. Must not know stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from typing_extensions import override

from arcbeam.engine.grouping.contents import Combiner


def joined(atoms: Iterable[bytes]) -> bytes:
    """Return the value of an element with these atoms."""
    return b",".join(atoms)


def atoms_of(value: bytes) -> Iterator[bytes]:
    """Return the atoms of an element."""
    return iter(value.split(b",")) if value else iter(())


class Atoms(Combiner):
    """An `engine.grouping.contents.Combiner`; accumulators are lists of values, in order of arrival."""

    @override
    def create(self) -> list[bytes]:
        return []

    @override
    def add(self, accumulator: Any, values: Sequence[Any]) -> list[bytes]:
        return [*accumulator, *values]

    @override
    def merge(self, accumulators: Sequence[Any]) -> list[bytes]:
        return [value for accumulator in accumulators for value in accumulator]

    @override
    def compact(self, accumulator: Any) -> list[bytes]:
        return list(accumulator)

    @override
    def extract(self, accumulator: Any) -> list[bytes]:
        return list(accumulator)

    @override
    def encode(self, accumulator: Any) -> bytes:
        return b";".join(accumulator)

    @override
    def decode(self, data: bytes) -> list[bytes]:
        return data.split(b";") if data else []
