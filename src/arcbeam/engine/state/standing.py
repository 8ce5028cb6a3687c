"""How the restrictions of one splittable stage stand in one shard, all together.

Owns the row that says so, which changes with each of them: thousands may wait for hours, and a step costs what it
touches. Must not know single restrictions' rows.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from arcbeam.engine.rows import sequences
from arcbeam.model.seams import StateView

_HEADER: Final = struct.Struct(">BQd")
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Crowded:
    """A root of which more restrictions live than should.

    Attributes:
        root: its name.
        live: how many live in this shard.
        bound: how many should at most.
    """

    root: str
    live: int
    bound: int

    def __str__(self) -> str:
        return f"{self.live} restrictions of {self.root!r} are not done; {self.bound} should be enough"


@dataclass(slots=True)
class Standing:
    """The restrictions of a stage in a shard, taken together.

    Attributes:
        live: how many are not done.
        size: of all.
        silent: how many report no watermark, by output; none that all report one for.
    """

    live: int = 0
    size: float = 0.0
    silent: dict[str, int] = field(default_factory=dict)

    def count(self, size: float, silent: Iterable[str], change: int) -> None:
        """One has come (1) or gone (-1).

        Args:
            size: of it.
            silent: outputs that it reports no watermark for.
            change: which of both.
        """
        self.live += change
        # Of what is not a number, or has no end, nothing is left when it is taken away.
        self.size = self.size + change * size if self.live else 0.0
        for output in silent:
            self.silent[output] = self.silent.get(output, 0) + change
            if not self.silent[output]:
                del self.silent[output]


class StandingRow:
    """The row of it.

    Args:
        view: of the shard.
        row: its key.
        counted: counts anew, where there is no such row, or it is of no use.
    """

    __slots__ = ("_counted", "_known", "_row", "_view")

    def __init__(self, view: StateView, row: bytes, counted: Callable[[], Standing]) -> None:
        self._view, self._row, self._counted = view, row, counted
        self._known: Standing | None = None

    def read(self) -> Standing:
        """How they stand. Not to be changed."""
        if self._known is None or not math.isfinite(self._known.size):
            self._known = self._stored() or self._counted()
        return self._known

    def count(self, size: float, silent: Iterable[str], change: int) -> None:
        """See `Standing`. Called before the restriction's own rows are changed."""
        known = self.read()
        known.count(size, silent, change)
        if not known.live:
            self._view.delete(self._row)
            return
        told = [each for output, n in known.silent.items() for each in (output.encode(), n.to_bytes(8, "big"))]
        header = _HEADER.pack(_VERSION, known.live, known.size)
        self._view.put(self._row, header + b"".join(map(sequences.framed, told)))

    def _stored(self) -> Standing | None:
        stored = self._view.get(self._row)
        if stored is None or stored[0] != _VERSION:
            return None
        _, live, size = _HEADER.unpack_from(stored)
        if not math.isfinite(size):
            return None
        told = list(sequences.unframed(stored, _HEADER.size))
        silent = {told[i].decode(): int.from_bytes(told[i + 1], "big") for i in range(0, len(told), 2)}
        return Standing(live, size, silent)
