"""Values that stay encoded while a block of them is passed on.

Owns the block of encoded values. Must not know what made the bytes, or reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.encoding.frames import COUNT

Positions = NDArray[np.int64]


class EncodedValues(Block):
    """A block of encoded values that share time, windows and pane. They are decoded at the first access to `values`.

    Attributes:
        decode: decodes a list of values, each in the nested encoding, with their number before them.
        data: the values, one after the other.
        ends: the place after each value.
    """

    __slots__ = ("data", "decode", "ends")

    def __init__(
        self,
        decode: Callable[[bytes], list[Any]],
        data: bytes,
        ends: Positions,
        micros: int,
        windows: tuple[Any, ...],
        pane: Any,
    ) -> None:
        # SUBTLE: `values` is not set, so the first access to it calls `__getattr__`.
        self.decode, self.data, self.ends = decode, data, ends
        self.micros, self.windows, self.panes = micros, windows, pane
        self._elements, self.plain, self.uniform = None, False, True

    def __getattr__(self, name: str) -> Any:
        if name != "values":
            raise AttributeError(name)
        self.values = self.decode(COUNT.pack(len(self.ends)) + self.data)
        return self.values

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def stamp(self) -> tuple[int, tuple[Any, ...], Any]:
        """Time, windows and pane of all."""
        return self._columns()

    def at(self, micros: int) -> EncodedValues:
        """Return the same values at another time."""
        return self._like(self.data, self.ends, micros)

    @override
    def element(self, index: int) -> Any:
        place = range(len(self))[index]
        return Block(self.slice(place, place + 1).values, *self._columns()).element(0)

    @override
    def slice(self, start: int, stop: int | None, step: int = 1) -> Block:
        """See `Block`; a contiguous part stays encoded."""
        if step != 1:
            return super().slice(start, stop, step)
        ends = self.ends[start:stop]
        first = int(self.ends[start - 1]) if 0 < start <= len(self.ends) else 0
        data = self.data[first : int(ends[-1])] if len(ends) else b""
        return self._like(data, ends - first, self.micros)

    def _like(self, data: bytes, ends: Positions, micros: int) -> EncodedValues:
        """Return a block of other values, or at another time."""
        return EncodedValues(self.decode, data, ends, micros, self.windows, self.panes)
