"""Groups of elements with the same windows, as exchanges deliver them: some elements of a simulation.

Owns their bytes. Must not know their readers.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from arcbeam.engine.grouping.groupings import KeyElements, UniformElements, WindowedElement
from arcbeam.model.windows import Window


def together(elements: KeyElements) -> KeyElements:
    """Return the same elements; about two thirds of those with the same windows as `UniformElements`."""
    every = list(elements)
    if not every or len({windows for _, _, windows, _ in every}) > 1:
        return elements
    value: Any = every[0][0]
    kind = value[-1] % 3 if isinstance(value, bytes) and value else 0
    return elements if kind == 0 else _Several(every, every[0][2], packed=kind == 1)


def unpack(packed: bytes) -> Sequence[bytes]:
    """See `arcbeam.engine.grouping.windowbuffer.Unpack`."""
    values: list[bytes] = pickle.loads(packed)
    return values


class _Several(UniformElements):
    """See `UniformElements`."""

    __slots__ = ("_elements", "packed", "windows")

    def __init__(self, elements: list[WindowedElement], windows: tuple[Window, ...], *, packed: bool) -> None:
        self._elements, self.windows = elements, windows
        self.packed = pickle.dumps([value for value, *_ in elements]) if packed else None

    def __len__(self) -> int:
        return len(self._elements)

    def __iter__(self) -> Iterator[WindowedElement]:
        return iter(self._elements)
