"""The file of an iterable side input: chunks of bytes, indexed by window, written once.

Owns the layout. All numbers are little-endian:

    header   magic, version, CRC of both
    chunks   in the order of their arrival
    footer   per window, in ascending order: lengths, window, (offset, length, CRC) of each of its chunks;
             then a table of the offsets of these entries, for binary search
    trailer  where footer and table begin, number of windows, CRC of the footer, CRC of the trailer

The writer holds the index in memory; the reader searches the mapped file.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from arcbeam.sizes import threshold
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.fileheader import HEADER_BYTES, file_header, version_in
from arcbeam.store.blobs.private import open_new

MAGIC = b"arcside\0"
"""Its first bytes."""
VERSION = 1
_ENTRY = struct.Struct("<II")
_CHUNK = struct.Struct("<QQI")
_OFFSET = struct.Struct("<Q")
_TRAILER = struct.Struct("<QQQI")
_CRC = struct.Struct("<I")

_JOINED_BYTES = threshold(1 << 20)
"""Adjacent chunks of a window are joined up to this size: fewer entries, and still small enough for memory."""


class ChunkFileWriter:
    """Writes one file. Memory: 24 bytes a chunk, and each window once.

    Args:
        path: must not exist.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_new(path, 1 << 20)
        self._file.write(file_header(MAGIC, VERSION))
        self._end = HEADER_BYTES
        self._index: dict[bytes, array[int]] = {}
        self._last: bytes | None = None

    def append(self, window: bytes, chunk: bytes) -> None:
        """Add a chunk of whole elements to a window. Chunks of a window keep their order."""
        size = len(chunk)
        if not size:
            return
        self._file.write(chunk)
        chunks = self._index.get(window)
        if chunks is None:
            chunks = self._index[window] = array("Q")
        if window == self._last and chunks[-2] + size <= _JOINED_BYTES:
            chunks[-2] += size
            chunks[-1] = crc32(chunk, chunks[-1])
        else:
            chunks.extend((self._end, size, crc32(chunk)))
            self._last = window
        self._end += size

    def forget(self, window: bytes) -> None:
        """Discard the chunks of a window; their bytes stay in the file, unread."""
        self._index.pop(window, None)
        self._last = None

    def finish(self) -> int:
        """Complete the file and close it; return its size in bytes, 0 if nothing was appended."""
        if not self._index:
            self.close()
            return 0
        footer = position = self._end
        crc = 0
        table = array("Q")
        for window in sorted(self._index):
            chunks = self._index[window]
            entry = _ENTRY.pack(len(window), len(chunks) // 3) + window
            entry += b"".join(_CHUNK.pack(*chunks[i : i + 3]) for i in range(0, len(chunks), 3))
            table.append(position)
            position += len(entry)
            crc = crc32(entry, crc)
            self._file.write(entry)
        offsets = struct.pack(f"<{len(table)}Q", *table)
        self._file.write(offsets)
        trailer = _TRAILER.pack(footer, position, len(table), crc32(offsets, crc))
        self._file.write(trailer + _CRC.pack(crc32(trailer)))
        size = self._file.tell()
        self.close()
        return size

    def close(self) -> None:
        """Close the file as it is; without `finish` it is invalid."""
        self._file.close()


class ChunkFile:
    """Reads one file, mapped. Safe among threads.

    Args:
        path: the local file.
        name: of the file, for errors.
        size: its size in bytes, as its writer returned it.

    Raises:
        StoreError: damaged, cut off, not a chunk file, or written by a newer version.
    """

    def __init__(self, path: Path, name: str, size: int) -> None:
        self._name = name
        with open(path, "rb") as file:
            found = os.fstat(file.fileno()).st_size
            if found != size or size < HEADER_BYTES + _TRAILER.size + _CRC.size:
                raise StoreError(f"side-input file '{name}' is cut off: {found} bytes of {size}")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        version = version_in(self._map[:HEADER_BYTES], MAGIC)
        if version is None:
            raise self._damaged("header")
        if version > VERSION:
            raise StoreError(
                f"side-input file '{name}' has format {version}, this version of arcbeam reads up to {VERSION}",
                "use the same version of arcbeam on the driver and on all executors",
            )
        start = size - _TRAILER.size - _CRC.size
        (crc,) = _CRC.unpack_from(self._map, size - _CRC.size)
        if crc32(self._map[start : size - _CRC.size]) != crc:
            raise self._damaged("trailer")
        footer, self._table, self._windows, crc = _TRAILER.unpack_from(self._map, start)
        with memoryview(self._map) as view, view[footer:start] as index:
            if crc32(index) != crc:
                raise self._damaged("index")

    def chunks(self, window: bytes) -> Iterator[bytes]:
        """Yield the chunks of a window in their order; none if the window has no elements here."""
        entry = self._find(window)
        if entry is None:
            return
        position, count = entry
        for _ in range(count):
            offset, length, crc = _CHUNK.unpack_from(self._map, position)
            position += _CHUNK.size
            chunk = self._map[offset : offset + length]
            if crc32(chunk) != crc:
                raise self._damaged(f"chunk at byte {offset}")
            yield chunk

    def windows(self) -> Iterator[bytes]:
        """Yield the windows with elements, ascending."""
        for i in range(self._windows):
            (position,) = _OFFSET.unpack_from(self._map, self._table + i * _OFFSET.size)
            length, _ = _ENTRY.unpack_from(self._map, position)
            position += _ENTRY.size
            yield self._map[position : position + length]

    def _find(self, window: bytes) -> tuple[int, int] | None:
        """Return the position of a window's chunk entries, and their number."""
        low, high, data = 0, self._windows, self._map
        while low < high:
            middle = (low + high) // 2
            (position,) = _OFFSET.unpack_from(data, self._table + middle * _OFFSET.size)
            length, count = _ENTRY.unpack_from(data, position)
            position += _ENTRY.size
            found = data[position : position + length]
            if found == window:
                return position + length, count
            if found < window:
                low = middle + 1
            else:
                high = middle
        return None

    def close(self) -> None:
        """Unmap the file; the object cannot be used any more."""
        self._map.close()

    def _damaged(self, what: str) -> StoreError:
        return StoreError(f"side-input file '{self._name}' is damaged ({what})")
