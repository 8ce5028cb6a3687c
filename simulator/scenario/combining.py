"""A combiner of atoms: what comes out names all that went in.

Owns its accumulators' bytes. Must not know stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def joined(atoms: Iterable[bytes]) -> bytes:
    """The value of an element of these atoms."""
    return b",".join(atoms)


def atoms_of(value: bytes) -> Iterator[bytes]:
    """The atoms of an element."""
    return iter(value.split(b",")) if value else iter(())


class Atoms:
    """An `engine.grouping.contents.Combiner`; accumulators are lists of values, in order of arrival."""

    def create(self) -> list[bytes]:
        """See `Combiner`."""
        return []

    def add(self, accumulator: Any, values: Sequence[Any]) -> list[bytes]:
        """See `Combiner`."""
        return [*accumulator, *values]

    def merge(self, accumulators: Sequence[Any]) -> list[bytes]:
        """See `Combiner`."""
        return [value for accumulator in accumulators for value in accumulator]

    def compact(self, accumulator: Any) -> list[bytes]:
        """See `Combiner`."""
        return list(accumulator)

    def extract(self, accumulator: Any) -> list[bytes]:
        """See `Combiner`."""
        return list(accumulator)

    def encode(self, accumulator: Any) -> bytes:
        """See `Combiner`."""
        return b";".join(accumulator)

    def decode(self, data: bytes) -> list[bytes]:
        """See `Combiner`."""
        return data.split(b";") if data else []
