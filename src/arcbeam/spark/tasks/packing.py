"""Blobs on their way through Spark, packed where that makes them smaller.

Owns when packing is worth its time. A byte of a blob is copied some ten times between two Python workers (sockets,
Arrow, sort, shuffle, and back), which takes several times what LZ4 takes; and Spark compresses what it shuffles anyway.
Must not know what is in a blob.
"""

from __future__ import annotations

import pyarrow as pa

from arcbeam.sizes import threshold

LEAST_BYTES = threshold(2048)
"""Smaller blobs cost by the row, not by the byte."""
_WORTH = 0.8
"""A packed blob has at most so much of its bytes."""
_TRIED_AGAIN = threshold(15)
"""Behind one that was not worth it, so many go unseen."""

_CODEC = pa.Codec("lz4_raw")


class Packer:
    """Packs the blobs of one task. What looks as if it could not be packed is tried now and then only.

    Args:
        on: whether at all.
    """

    def __init__(self, *, on: bool = True) -> None:
        self._on, self._unseen = on, 0

    def pack(self, blob: bytes) -> tuple[bytes, int]:
        """A blob as it travels, and how many bytes it has unpacked; 0 if it travels as it is."""
        size = len(blob)
        if size < LEAST_BYTES or not self._on:
            return blob, 0
        if self._unseen:
            self._unseen -= 1
            return blob, 0
        packed: bytes = _CODEC.compress(blob, asbytes=True)
        if len(packed) > _WORTH * size:
            self._unseen = _TRIED_AGAIN
            return blob, 0
        return packed, size


def unpacked(blob: bytes, size: int) -> bytes:
    """What `Packer.pack` has packed."""
    whole: bytes = _CODEC.decompress(blob, size, asbytes=True) if size else blob
    return whole
