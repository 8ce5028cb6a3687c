"""Reading ranges of local files.

Owns what the kernel leaves to its caller: a read may return less than requested, and on Linux never more than 2 GB less
a page. Must not know what is read.
"""

from __future__ import annotations

import os


def read_range(descriptor: int, start: int, length: int) -> bytes:
    """Return `length` bytes of an open file from `start`; fewer, or none, if the file ends before.

    Raises:
        OSError: from the system.
    """
    data = os.pread(descriptor, length, start)
    if len(data) == length or not data:
        return data
    parts, size = [data], len(data)
    while size < length and (data := os.pread(descriptor, length - size, start + size)):
        parts.append(data)
        size += len(data)
    return b"".join(parts)
