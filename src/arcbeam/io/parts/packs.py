"""When a part is full; and encoded records, packed: what travels, and waits in state, in the place of single records.

Owns `Roll`, the form of packs, and where in one a part is full. To handle two bytestrings costs the same for one record
and for thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from apache_beam.coders import BytesCoder, TupleCoder


@dataclass(frozen=True, slots=True)
class Roll:
    """When a part is closed, and the next one begins; whichever comes first. A window's end closes its parts anyway.

    Attributes:
        bytes: as many, before they are compressed, or more by less than a record. None: however many.
        elements: as many records.
        seconds: by the clock, since the first record of the part came. In a bounded pipeline nothing is published
            before the end, so there the clock closes nothing.
        idle_seconds: by the clock, since the last record of the part came; likewise.

    Raises:
        ValueError: one is not above zero.
    """

    bytes: int | None = None
    elements: int | None = None
    seconds: float | None = None
    idle_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("bytes", "elements", "seconds", "idle_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"Roll({name}={value!r}): it has to be above 0")


Plain = tuple[bytes, bytes]
"""As it travels: lengths, unsigned, of 32 bits, little-endian; and the records, one after the other."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Records, in order.

    Attributes:
        lengths: of each.
        data: all of them.
    """

    lengths: Any
    data: bytes

    @staticmethod
    def of(plain: Plain) -> Pack:
        """Reads one."""
        lengths, data = plain
        return Pack(np.frombuffer(lengths, "<u4"), data)

    def plain(self) -> Plain:
        """As it travels."""
        return self.lengths.tobytes(), self.data

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[bytes]:
        """The records."""
        start = 0
        for length in self.lengths.tolist():
            yield self.data[start : (start := start + length)]

    def split(self, count: int) -> tuple[Pack, Pack]:
        """The first records, and the others."""
        if count >= len(self):
            return self, Pack(self.lengths[:0], b"")
        size = int(self.lengths[:count].sum())
        return Pack(self.lengths[:count], self.data[:size]), Pack(self.lengths[count:], self.data[size:])


def packed(encoded: Sequence[bytes]) -> Plain:
    """Packs records."""
    return np.fromiter(map(len, encoded), "<u4", len(encoded)).tobytes(), b"".join(encoded)


def missing(roll: Roll, count: int, size: int, pack: Pack) -> int | None:
    """How many records of a pack make a part full.

    Args:
        roll: when it is.
        count: the records that it has.
        size: their bytes.
        pack: what comes.

    Returns:
        At least one; None: all of them do not.
    """
    most = None
    if roll.elements is not None and count + len(pack) >= roll.elements:
        most = roll.elements - count
    if roll.bytes is not None and size + len(pack.data) >= roll.bytes:
        ends = np.cumsum(pack.lengths, dtype=np.int64)
        full = int(np.searchsorted(ends, roll.bytes - size)) + 1
        most = full if most is None else min(most, full)
    return most


def pack_coder() -> Any:
    """Of packs as they travel."""
    return TupleCoder([BytesCoder(), BytesCoder()])
