"""Compression of blobs on their way through Spark, where that makes them smaller.

Owns when compression is worth its time. A byte of a blob is copied about ten times between two Python workers: sockets,
Arrow, sort, shuffle, and back. This takes several times as long as LZ4, and Spark compresses shuffled data anyway. Must
not know what is in a blob.
"""

from __future__ import annotations

import pyarrow as pa

from arcbeam.sizes import threshold

BLOB_BYTES_MIN = threshold(2048)
"""Smaller blobs cost time per row, not per byte."""
_PACKED_SHARE_MAX = 0.8
"""The maximum size of a packed blob, relative to its original size."""
_TRIED_AGAIN = threshold(15)
"""After a blob that did not shrink enough, this many blobs are not tried."""

_CODEC = pa.Codec("lz4_raw")


class Packer:
    """Packs the blobs of one task. After a blob that does not shrink, only every few blobs are tried.

    Args:
        on: whether to pack at all.
    """

    def __init__(self, *, on: bool = True) -> None:
        self._on, self._unseen = on, 0

    def pack(self, blob: bytes) -> tuple[bytes, int]:
        """Return a blob in packed form and its unpacked size; 0 if it is not packed."""
        size = len(blob)
        if size < BLOB_BYTES_MIN or not self._on:
            return blob, 0
        if self._unseen:
            self._unseen -= 1
            return blob, 0
        packed: bytes = _CODEC.compress(blob, asbytes=True)
        if len(packed) > _PACKED_SHARE_MAX * size:
            self._unseen = _TRIED_AGAIN
            return blob, 0
        return packed, size


def unpacked(blob: bytes, size: int) -> bytes:
    """Return the original of a blob that `Packer.pack` returned."""
    whole: bytes = _CODEC.decompress(blob, size, asbytes=True) if size else blob
    return whole
