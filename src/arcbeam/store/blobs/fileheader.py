"""The first bytes of the store's binary files: the kind of file, and the version of its format.

Owns their layout, which is the same for all kinds. Little-endian: magic (8 bytes), version (u32), CRC of both (u32).
"""

from __future__ import annotations

import struct
from zlib import crc32

_START = struct.Struct("<8sI")
_CRC = struct.Struct("<I")

HEADER_BYTES = _START.size + _CRC.size


def file_header(magic: bytes, version: int) -> bytes:
    """Return the header of a file; `magic` has eight bytes."""
    start = _START.pack(magic, version)
    return start + _CRC.pack(crc32(start))


def version_in(header: bytes, magic: bytes) -> int | None:
    """Return the version in a header; None if the header is damaged, cut off, or another kind's."""
    if len(header) != HEADER_BYTES:
        return None
    version: int = _START.unpack_from(header)[1]
    return version if header == file_header(magic, version) else None
