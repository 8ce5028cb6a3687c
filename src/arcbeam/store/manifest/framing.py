"""The frame of a job's files for people: a header as a manifest's, then the content.

Owns the header. Must not know what the content means.
"""

from __future__ import annotations

import struct
from zlib import crc32

_HEADER = struct.Struct("<8sIQI")


def framed(magic: bytes, version: int, payload: bytes) -> bytes:
    """Return the bytes of a file.

    Args:
        magic: its first 8 bytes.
        version: of its format.
        payload: its content.
    """
    return _HEADER.pack(magic, version, len(payload), crc32(payload)) + payload


def unframed(magic: bytes, version: int, data: bytes, what: str) -> bytes:
    """Return the content of a file.

    Args:
        magic: see `framed`.
        version: the version that can be read.
        data: the bytes of the file.
        what: what the file is, for errors: "a plan".

    Raises:
        ValueError: it is torn or changed, or has another version; the text says which.
    """
    if len(data) < _HEADER.size or not data.startswith(magic):
        raise ValueError(f"it does not begin as {what}")
    _, found, length, crc = _HEADER.unpack_from(data)
    if found != version:
        raise ValueError(f"it has format {found}; this version of arcbeam reads {version}")
    payload = data[_HEADER.size :]
    if len(payload) != length or crc32(payload) != crc:
        raise ValueError(f"it is torn or changed: {len(payload)} of {length} bytes")
    return payload
