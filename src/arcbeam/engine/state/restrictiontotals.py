"""The totals of a splittable stage's restrictions in one shard.

Owns the row of totals, which changes with each restriction: thousands may wait for hours, but a micro-batch should only
cost what it touches. Must not know the rows of single restrictions.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from arcbeam.engine.rows import sequences
from arcbeam.model.interfaces import StateView

_HEADER: Final = struct.Struct(">BQQQ")
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class TooManyRestrictions:
    """A root with more live restrictions than intended.

    Attributes:
        root: its name.
        live: the number of live restrictions in this shard.
        bound: the intended maximum.
    """

    root: str
    live: int
    bound: int

    def __str__(self) -> str:
        return f"{self.live} restrictions of {self.root!r} are not done; at most {self.bound} are intended"


@dataclass(slots=True)
class RestrictionTotals:
    """The totals of a stage's restrictions in a shard.

    Attributes:
        live: the number of restrictions that are not done.
        finite: the exact sum of finite sizes. Exact, so that small sizes are not lost when huge ones are added.
        silent: the number of restrictions that report no watermark, by output; outputs with none are missing.
        endless: the number of restrictions with an infinite size.
        unsized: the number of restrictions whose size is NaN or minus infinity.
    """

    live: int = 0
    finite: Fraction = Fraction(0)
    silent: dict[str, int] = field(default_factory=dict)
    endless: int = 0
    unsized: int = 0

    @property
    def size(self) -> float:
        """The total size."""
        if self.unsized:
            return math.nan
        try:
            return math.inf if self.endless else float(self.finite)
        except OverflowError:
            return math.inf if self.finite > 0 else -math.inf

    def count(self, size: float, silent: Iterable[str], change: int) -> None:
        """Count a restriction that was added (1) or removed (-1).

        Args:
            size: its size.
            silent: the outputs for which it reports no watermark.
            change: 1 or -1.
        """
        self.live += change
        if math.isfinite(size):
            self.finite += Fraction(change * size)
        elif size == math.inf:
            self.endless += change
        else:
            self.unsized += change
        for output in silent:
            self.silent[output] = self.silent.get(output, 0) + change
            if not self.silent[output]:
                del self.silent[output]


class RestrictionTotalsRow:
    """The row of totals. It has the version and the numbers of live, endless and unsized restrictions. Then follow,
    each preceded by its length: the numerator and the denominator of the finite size, and each output with the number
    of restrictions that are silent for it.

    Args:
        view: the view of the shard.
        row: the row's key.
        outputs: the stage's outputs.
        counted: counts from the beginning. It is called if there is no such row, or if the row is of another version or
            of other outputs.
    """

    __slots__ = ("_counted", "_known", "_outputs", "_row", "_view")

    def __init__(
        self, view: StateView, row: bytes, outputs: tuple[str, ...], counted: Callable[[], RestrictionTotals]
    ) -> None:
        self._view, self._row, self._outputs, self._counted = view, row, outputs, counted
        self._known: RestrictionTotals | None = None

    def fits(self) -> bool:
        """Return whether there is a row for the stage's current outputs."""
        if self._known is None:
            self._known = self._stored()
        return self._known is not None

    def recount(self) -> None:
        """Count from the beginning, and write the row."""
        self._known = self._counted()
        self._write(self._known)

    def read(self) -> RestrictionTotals:
        """Return the totals. Do not change them."""
        if not self.fits():
            self._known = self._counted()
        assert self._known is not None
        return self._known

    def count(self, size: float, silent: Iterable[str], change: int) -> None:
        """See `RestrictionTotals`. Called before the restriction's own rows are changed."""
        known = self.read()
        known.count(size, silent, change)
        self._write(known)

    def _write(self, known: RestrictionTotals) -> None:
        if not known.live:
            self._view.delete(self._row)
            return
        numbers = [_bytes(known.finite.numerator), _bytes(known.finite.denominator)]
        counted = [each for output in self._outputs for each in (output.encode(), _bytes(known.silent.get(output, 0)))]
        header = _HEADER.pack(_VERSION, known.live, known.endless, known.unsized)
        self._view.put(self._row, header + b"".join(map(sequences.framed, (*numbers, *counted))))

    def _stored(self) -> RestrictionTotals | None:
        stored = self._view.get(self._row)
        if stored is None or stored[0] != _VERSION:
            return None
        _, live, endless, unsized = _HEADER.unpack_from(stored)
        numerator, denominator, *counted = sequences.unframed(stored, _HEADER.size)
        counts = {counted[i].decode(): _int(counted[i + 1]) for i in range(0, len(counted), 2)}
        if counts.keys() != set(self._outputs):
            return None
        silent = {output: count for output, count in counts.items() if count}
        return RestrictionTotals(live, Fraction(_int(numerator), _int(denominator)), silent, endless, unsized)


def outputs_of(stored: bytes) -> tuple[str, ...] | None:
    """Return the outputs that a row of totals counts; None if the row is of another version."""
    if stored[0] != _VERSION:
        return None
    _, _, *counted = sequences.unframed(stored, _HEADER.size)
    return tuple(each.decode() for each in counted[::2])


def _bytes(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def _int(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)
