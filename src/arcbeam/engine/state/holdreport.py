"""How the restrictions of one splittable stage stand in one shard, all together.

Owns the row that says so, which changes with each of them: thousands may wait for hours, and a micro-batch costs what
it touches. Must not know single restrictions' rows.
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
_VERSION: Final = 2


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
class HoldReport:
    """The restrictions of a stage in a shard, taken together.

    Attributes:
        live: how many are not done.
        finite: the sizes that have an end, summed. Exactly: what is small is still there when what was huge has gone.
        silent: how many report no watermark, by output; none that all report one for.
        endless: how many have a size without an end.
        unsized: how many have a size that is no number, or minus infinity.
    """

    live: int = 0
    finite: Fraction = Fraction(0)
    silent: dict[str, int] = field(default_factory=dict)
    endless: int = 0
    unsized: int = 0

    @property
    def size(self) -> float:
        """Of all."""
        if self.unsized:
            return math.nan
        try:
            return math.inf if self.endless else float(self.finite)
        except OverflowError:
            return math.inf if self.finite > 0 else -math.inf

    def count(self, size: float, silent: Iterable[str], change: int) -> None:
        """One has come (1) or gone (-1).

        Args:
            size: of it.
            silent: outputs that it reports no watermark for.
            change: which of both.
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


class HoldReportRow:
    """The row of it: version, how many are live, endless and unsized; then, each behind its length, the numerator and
    the denominator of what is finite, and each output with the number of those that are silent for it.

    Args:
        view: of the shard.
        row: its key.
        outputs: of the stage.
        counted: counts anew, where there is no such row, or it is of no use: of another version, or of other outputs.
    """

    __slots__ = ("_counted", "_known", "_outputs", "_row", "_view")

    def __init__(
        self, view: StateView, row: bytes, outputs: tuple[str, ...], counted: Callable[[], HoldReport]
    ) -> None:
        self._view, self._row, self._outputs, self._counted = view, row, outputs, counted
        self._known: HoldReport | None = None

    def fits(self) -> bool:
        """Whether there is a row, of the outputs that the stage has."""
        if self._known is None:
            self._known = self._stored()
        return self._known is not None

    def anew(self) -> None:
        """Counts them, and says so."""
        self._known = self._counted()
        self._say(self._known)

    def read(self) -> HoldReport:
        """How they stand. Not to be changed."""
        if not self.fits():
            self._known = self._counted()
        assert self._known is not None
        return self._known

    def count(self, size: float, silent: Iterable[str], change: int) -> None:
        """See `HoldReport`. Called before the restriction's own rows are changed."""
        known = self.read()
        known.count(size, silent, change)
        self._say(known)

    def _say(self, known: HoldReport) -> None:
        if not known.live:
            self._view.delete(self._row)
            return
        numbers = [_bytes(known.finite.numerator), _bytes(known.finite.denominator)]
        told = [each for output in self._outputs for each in (output.encode(), _bytes(known.silent.get(output, 0)))]
        header = _HEADER.pack(_VERSION, known.live, known.endless, known.unsized)
        self._view.put(self._row, header + b"".join(map(sequences.framed, (*numbers, *told))))

    def _stored(self) -> HoldReport | None:
        stored = self._view.get(self._row)
        if stored is None or stored[0] != _VERSION:
            return None
        _, live, endless, unsized = _HEADER.unpack_from(stored)
        numerator, denominator, *told = sequences.unframed(stored, _HEADER.size)
        counts = {told[i].decode(): _int(told[i + 1]) for i in range(0, len(told), 2)}
        if counts.keys() != set(self._outputs):
            return None
        silent = {output: count for output, count in counts.items() if count}
        return HoldReport(live, Fraction(_int(numerator), _int(denominator)), silent, endless, unsized)


def _bytes(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def _int(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)
