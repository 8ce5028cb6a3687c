"""A file of frames: consecutive byte strings; written once, read from the beginning.

Owns the layout, and how such a file gets into a location and out of it. Callers define the meaning of frames. All
numbers are little-endian:

    header   magic, version, CRC of both
    frames   each: length, CRC of the bytes, the bytes
    end      a length that no frame has, CRC of the number of frames

A reader needs no more memory than one frame, and no copy of a remote file on the local disk.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from arcbeam.store.blobs.errors import LostFileError, StoreError
from arcbeam.store.blobs.fileheader import HEADER_BYTES, file_header, version_in
from arcbeam.store.blobs.private import open_new
from arcbeam.store.jobtemp.location import JobLocation

_MAGIC = b"arcframe"
VERSION = 1
_FRAME = struct.Struct("<QI")
_NUMBER = struct.Struct("<Q")
_END = (1 << 64) - 1


class FrameFileWriter:
    """Writes one file. If it is dropped without `close`, no file is left.

    Args:
        location: where the file is published.
        name: its name, which no other writer may use.

    Raises:
        StoreError: by all methods, if it cannot be written.
    """

    def __init__(self, location: JobLocation, name: str) -> None:
        self._location, self._name = location, name
        self._path = location.scratch_file()
        self._finalizer = weakref.finalize(self, _remove, self._path)
        self._finalizer.atexit = False
        self._frames = 0
        try:
            self._file = open_new(self._path, 1 << 20)
            self._file.write(file_header(_MAGIC, VERSION))
        except OSError as e:
            raise self._unwritten(e) from e

    def append(self, frame: Any) -> None:
        """Add a frame: any contiguous buffer of bytes."""
        view = memoryview(frame).cast("B")
        try:
            self._file.write(_FRAME.pack(len(view), crc32(view)))
            self._file.write(view)
        except OSError as e:
            raise self._unwritten(e) from e
        self._frames += 1

    def close(self) -> int:
        """Publish the file; return its size in bytes. Call it once."""
        try:
            self._file.write(_FRAME.pack(_END, crc32(_NUMBER.pack(self._frames))))
            size = self._file.tell()
            self._file.close()
        except OSError as e:
            raise self._unwritten(e) from e
        self._location.put_file(self._path, self._name)
        self._finalizer()
        return size

    def _unwritten(self, error: OSError) -> StoreError:
        return StoreError(f"file '{self._name}' cannot be written: {error}", "check that the disk has free space")


def read_frames(location: JobLocation, name: str) -> Iterator[bytes]:
    """Yield the frames of a file, in their order.

    Raises:
        LostFileError: missing, damaged or cut off; possibly after some frames.
        StoreError: written by a newer version, or unreadable.
    """
    with location.reader(name) as read:
        version = version_in(read(HEADER_BYTES), _MAGIC)
        if version is None:
            raise _damaged(name, "header")
        if version > VERSION:
            raise StoreError(
                f"file '{name}' has format {version}, this version of arcbeam reads up to {VERSION}",
                "use the same version of arcbeam on the driver and on all executors",
            )
        number = 0
        while True:
            start = read(_FRAME.size)
            if len(start) != _FRAME.size:
                raise _damaged(name, f"cut off after {number} frames")
            length, crc = _FRAME.unpack(start)
            if length == _END:
                break
            frame = read(length)
            if len(frame) != length or crc32(frame) != crc:
                raise _damaged(name, f"frame {number}")
            number += 1
            yield frame
        if crc32(_NUMBER.pack(number)) != crc:
            raise _damaged(name, "number of frames")


def _damaged(name: str, what: str) -> StoreError:
    return LostFileError(f"file '{name}' is damaged ({what})")


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
