"""`Roll`, and packs: encoded records that travel and wait in the state together.

Owns when a part is full, the form of packs, and where to split a pack. Handling two byte strings costs the same for one
record and for thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from apache_beam.coders import BytesCoder, TupleCoder


@dataclass(frozen=True, slots=True)
class Roll:
    """When a part is closed and the next one begins: at the first limit. The end of a window also closes its parts.

    Attributes:
        bytes: size before compression. A part exceeds it by less than one record. None: no limit.
        elements: number of records.
        seconds: processing time since the part's first record arrived. Ignored in a bounded pipeline, which publishes
            only at its end.
        idle_seconds: processing time since the part's last record arrived. Ignored in a bounded pipeline.

    Raises:
        ValueError: a limit is not positive.
    """

    bytes: int | None = None
    elements: int | None = None
    seconds: float | None = None
    idle_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("bytes", "elements", "seconds", "idle_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"Roll({name}={value!r}): expected a value above 0")


Plain = tuple[bytes, bytes]
"""A pack as it travels: the lengths as unsigned little-endian 32-bit integers, and the concatenated records."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Records, in order.

    Attributes:
        lengths: the length of each record.
        data: the concatenated records.
    """

    lengths: Any
    data: bytes

    @staticmethod
    def of(plain: Plain) -> Pack:
        """Read a pack."""
        lengths, data = plain
        return Pack(np.frombuffer(lengths, "<u4"), data)

    def plain(self) -> Plain:
        """Return the form in which it travels."""
        return self.lengths.tobytes(), self.data

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the records."""
        start = 0
        for length in self.lengths.tolist():
            yield self.data[start : (start := start + length)]

    def split(self, count: int) -> tuple[Pack, Pack]:
        """Split after a number of records."""
        if count >= len(self):
            return self, Pack(self.lengths[:0], b"")
        size = int(self.lengths[:count].sum())
        return Pack(self.lengths[:count], self.data[:size]), Pack(self.lengths[count:], self.data[size:])


def packed(encoded: Sequence[bytes]) -> Plain:
    """Pack records."""
    return np.fromiter(map(len, encoded), "<u4", len(encoded)).tobytes(), b"".join(encoded)


def missing(roll: Roll, count: int, size: int, pack: Pack) -> int | None:
    """Return how many records of a pack fill a part.

    Args:
        roll: the limits of a part.
        count: records that the part has.
        size: bytes that the part has.
        pack: the records to add.

    Returns:
        At least one; None if all of them do not fill the part.
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
    """Return the coder of packs."""
    return TupleCoder([BytesCoder(), BytesCoder()])
