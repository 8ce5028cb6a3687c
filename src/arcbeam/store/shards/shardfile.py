"""One file of a shard's state: entries and deleted keys, sorted by key, written once.

Owns the layout. All numbers are little-endian:

    header   magic, version, CRC of both
    blocks   of some 64 KB: number of entries, lengths of the keys, lengths of the values, the keys, the values; the
             length of a deleted key's value is one that no value has
    footer   kind, numbers of entries and of deleted keys, last key; per block: offset, length, CRC, number of entries,
             first key
    trailer  offset and length of the footer, CRC of the footer, CRC of the trailer

The writer holds one block and the index in memory, the reader the index and its read-ahead. Blocks have columns instead
of consecutive entries: so joining and cutting are done once per block, by loops in C.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise
from operator import add, lt
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from arcbeam.model.files import OWNER, FileKind, Owned
from arcbeam.sizes import threshold
from arcbeam.store.blobs.errors import DamagedFileError, NewerFormatError, StoreError
from arcbeam.store.blobs.fileheader import HEADER_BYTES, file_header, version_in
from arcbeam.store.blobs.localfile import read_range
from arcbeam.store.blobs.private import open_new

VERSION = 1
_MAGIC = b"arcshard"
_COUNT = struct.Struct("<I")
_FOOTER = struct.Struct("<BQQII")
_BLOCK = struct.Struct("<QIIII")
_TRAILER = struct.Struct("<QQII")

_BLOCK_BYTES = threshold(64 << 10)
_READ_AHEAD = threshold(4 << 20)
_TAIL_BYTES = threshold(64 << 10, _TRAILER.size)
_DELETED = (1 << 32) - 1
_MAX_BYTES = _DELETED - 1
_KINDS = (FileKind.DELTA, FileKind.SNAPSHOT)

Entry = tuple[bytes, bytes | None]
"""A key and its value; None if the key is deleted."""

Block = tuple[list[bytes], list[bytes | None]]
"""Keys, and the value of each."""

ReadRange = Callable[[int, int], bytes]
"""Returns a number of bytes from a position on; fewer at the end."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The content of a complete file. `crc` is the footer's, which contains those of the blocks. `owned` is not in the
    file: a reader does not know it.
    """

    kind: FileKind
    size: int
    crc: int
    entries: int
    tombstones: int
    first_key: bytes
    last_key: bytes
    owned: tuple[Owned, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class _IndexEntry:
    offset: int
    length: int
    crc: int
    entries: int


def in_blocks(entries: Iterable[Entry]) -> Iterator[Block]:
    """Group entries into blocks of the size of a file's blocks."""
    keys: list[bytes] = []
    values: list[bytes | None] = []
    size = 0
    for key, value in entries:
        keys.append(key)
        values.append(value)
        size += len(key) if value is None else len(key) + len(value)
        if size >= _BLOCK_BYTES:
            yield keys, values
            keys, values, size = [], [], 0
    if keys:
        yield keys, values


def write_shard_file(path: Path, kind: FileKind, blocks: Iterable[Block]) -> Summary:
    """Write a complete file.

    Args:
        path: must not exist. If this raises, the file is incomplete.
        kind: a snapshot has no deleted keys.
        blocks: of any size, not empty. All keys are distinct and in ascending order.

    Raises:
        ValueError: the keys do not ascend, or a snapshot deletes one.
        StoreError: a key or value is too long.
        OSError: writing failed, for example because the disk is full.
    """
    with open_new(path, 1 << 20) as file:
        return _Writer(file, kind).written(blocks)


class _Writer:
    def __init__(self, file: BinaryIO, kind: FileKind) -> None:
        self._file, self._kind = file, kind
        self._position = self._put(file_header(_MAGIC, VERSION))
        self._index: list[bytes] = []
        self._entries = self._tombstones = 0
        self._first = self._last = b""
        self._owned: dict[bytes, tuple[int, int]] = {}

    def written(self, blocks: Iterable[Block]) -> Summary:
        """Write the given blocks as blocks of the file's size."""
        keys: list[bytes] = []
        values: list[bytes | None] = []
        size, previous = 0, None
        for more, their_values in blocks:
            self._check_order(previous, more)
            previous = more[-1]
            keys += more
            values += their_values
            size += sum(map(len, more)) + sum(map(len, filter(None, their_values)))
            if size >= _BLOCK_BYTES:
                keys, values, size = self._blocks(keys, values)
        if keys:
            self._block(keys, values)
        return self._finished()

    def _check_order(self, previous: bytes | None, keys: list[bytes]) -> None:
        if (previous is None or previous < keys[0]) and all(map(lt, keys, islice(keys, 1, None))):
            return
        for before, key in pairwise([*([] if previous is None else [previous]), *keys]):
            if key <= before:
                raise ValueError(f"keys do not ascend: {key!r} after {before!r}")

    def _blocks(self, keys: list[bytes], values: list[bytes | None]) -> tuple[list[bytes], list[bytes | None], int]:
        """Write full blocks; return the rest, and its size."""
        known = [b"" if value is None else value for value in values]
        lengths = map(len, known)
        ends = list(accumulate(map(add, map(len, keys), lengths)))
        start = size = 0
        while ends[-1] - size >= _BLOCK_BYTES:
            end = bisect_left(ends, size + _BLOCK_BYTES) + 1
            self._block(keys[start:end], values[start:end])
            start, size = end, ends[end - 1]
        return keys[start:], values[start:], ends[-1] - size

    def _put(self, data: bytes) -> int:
        self._file.write(data)
        return len(data)

    def _block(self, keys: list[bytes], values: list[bytes | None]) -> None:
        live = [value for value in values if value is not None]
        deleted = len(values) - len(live)
        if deleted and self._kind == FileKind.SNAPSHOT:
            raise ValueError("a snapshot cannot delete a key")
        if max(map(len, keys)) > _MAX_BYTES or max(map(len, live), default=0) > _MAX_BYTES:
            raise StoreError("a key or a value of the state has 4 GB or more", "split it into several state entries")
        if deleted:
            lengths = [_DELETED if value is None else len(value) for value in values]
        else:
            lengths = list(map(len, live))
        block = b"".join(
            (
                _COUNT.pack(len(keys)),
                struct.pack(f"<{len(keys)}I", *map(len, keys)),
                struct.pack(f"<{len(keys)}I", *lengths),
                *keys,
                *live,
            )
        )
        if not self._index:
            self._first = keys[0]
        self._last = keys[-1]
        self._entries += len(live)
        self._tombstones += deleted
        self._own(keys, values)
        start = _BLOCK.pack(self._position, len(block), crc32(block), len(keys), len(keys[0]))
        self._index.append(start + keys[0])
        self._position += self._put(block)

    def _own(self, keys: list[bytes], values: list[bytes | None]) -> None:
        """Count the rows of a block by owner. Most blocks have one owner."""
        start = 0
        while start < len(keys):
            beginning = keys[start][: OWNER.stop]
            # Keys ascend: if the last one has this beginning, all between have it.
            one = keys[-1][: OWNER.stop] == beginning
            end = len(keys) if one else bisect_right(keys, beginning, start, key=lambda key: key[: OWNER.stop])
            mine = values if end - start == len(values) else values[start:end]
            entries, size = self._owned.get(beginning[OWNER], (0, 0))
            puts = len(mine) - mine.count(None)
            size += sum(map(len, keys[start:end])) + sum(map(len, filter(None, mine)))
            self._owned[beginning[OWNER]] = entries + puts, size
            start = end

    def _finished(self) -> Summary:
        start = _FOOTER.pack(
            _KINDS.index(self._kind), self._entries, self._tombstones, len(self._last), len(self._index)
        )
        footer = start + self._last + b"".join(self._index)
        crc = crc32(footer)
        trailer = _TRAILER.pack(self._position, len(footer), crc, 0)[: -_COUNT.size]
        self._position += self._put(footer) + self._put(trailer + _COUNT.pack(crc32(trailer)))
        owned = tuple(Owned(owner, *counts) for owner, counts in sorted(self._owned.items()))
        return Summary(self._kind, self._position, crc, self._entries, self._tombstones, self._first, self._last, owned)


class ShardFileReader:
    """Reads one file.

    Args:
        read: returns ranges of it.
        size: its size in the manifest.
        crc: of its footer, in the manifest; None if unknown.
        name: of the file, for errors.
        where: its store.

    Attributes:
        summary: its content.

    Raises:
        DamagedFileError: by the constructor and by `scan`: cut off, changed, another file, or not a shard file.
        NewerFormatError: written by a newer version.
    """

    def __init__(self, read: ReadRange, size: int, crc: int | None, name: str, where: object) -> None:
        self._read, self._name, self._where = read, name, where
        self._check_header()
        if size < HEADER_BYTES + _TRAILER.size:
            raise self._damaged("it is cut off")
        tail_start = max(HEADER_BYTES, size - _TAIL_BYTES)
        tail = read(tail_start, size - tail_start + 1)
        if len(tail) != size - tail_start:
            raise self._damaged(f"it does not have the {size} bytes of the manifest")
        trailer = tail[-_TRAILER.size :]
        offset, length, footer_crc, trailer_crc = _TRAILER.unpack(trailer)
        if trailer_crc != crc32(trailer[: -_COUNT.size]) or offset + length + _TRAILER.size != size:
            raise self._damaged("its trailer was changed")
        if crc is not None and footer_crc != crc:
            raise self._damaged("it is not the file that the manifest names")
        footer = tail[offset - tail_start : -_TRAILER.size] if offset >= tail_start else read(offset, length)
        if len(footer) != length or crc32(footer) != footer_crc:
            raise self._damaged("its footer was changed")
        self._index: list[_IndexEntry] = []
        self._first_keys: list[bytes] = []
        self.summary = self._parsed(footer, size, footer_crc)

    def _check_header(self) -> None:
        header = self._read(0, HEADER_BYTES)
        if len(header) != HEADER_BYTES or not header.startswith(_MAGIC):
            raise self._damaged("it does not begin as a shard file")
        version = version_in(header, _MAGIC)
        if version is None:
            raise self._damaged("its header was changed")
        if version > VERSION:
            raise NewerFormatError(
                f"shard file '{self._name}' in '{self._where}' has format {version}; this version of arcbeam reads up "
                f"to {VERSION}",
                "nothing was changed: use the version of arcbeam that wrote it, or a newer one",
            )

    def _parsed(self, footer: bytes, size: int, crc: int) -> Summary:
        kind, entries, tombstones, last_length, blocks = _FOOTER.unpack_from(footer)
        position = _FOOTER.size
        last = footer[position : position + last_length]
        position += last_length
        for _ in range(blocks):
            offset, length, block_crc, number, key_length = _BLOCK.unpack_from(footer, position)
            position += _BLOCK.size
            self._index.append(_IndexEntry(offset, length, block_crc, number))
            self._first_keys.append(footer[position : position + key_length])
            position += key_length
        first = self._first_keys[0] if self._first_keys else b""
        return Summary(_KINDS[kind], size, crc, entries, tombstones, first, last)

    def scan(self, start: bytes = b"", end: bytes | None = None) -> Iterator[Entry]:
        """Yield the entries with start <= key < end, ascending, also deleted keys; to the last if `end` is None."""
        for keys, values in self.blocks(start, end):
            yield from zip(keys, values, strict=True)

    def blocks(self, start: bytes = b"", end: bytes | None = None) -> Iterator[Block]:
        """Yield the same in blocks."""
        at = max(bisect_right(self._first_keys, start) - 1, 0)
        while at < len(self._index) and (end is None or self._first_keys[at] < end):
            stop = at + 1
            while (
                stop < len(self._index)
                and self._index[stop].offset + self._index[stop].length - self._index[at].offset <= _READ_AHEAD
                and (end is None or self._first_keys[stop] < end)
            ):
                stop += 1
            base = self._index[at].offset
            data = memoryview(self._read(base, self._index[stop - 1].offset + self._index[stop - 1].length - base))
            for i in range(at, stop):
                block = self._decoded(data, base, i)
                if start or end is not None:
                    block = _between(block, start, end)
                if block[0]:
                    yield block
            at = stop

    def _decoded(self, data: memoryview, base: int, i: int) -> Block:
        entry = self._index[i]
        block = bytes(data[entry.offset - base : entry.offset - base + entry.length])
        if len(block) != entry.length or crc32(block) != entry.crc:
            raise self._damaged(f"block {i} of {len(self._index)} was changed or cut off")
        number = entry.entries
        lengths = array("I")
        assert lengths.itemsize == _COUNT.size
        lengths.frombytes(block[_COUNT.size : _COUNT.size * (1 + 2 * number)])
        if _BIG_ENDIAN:
            lengths.byteswap()
        key_ends = list(accumulate(lengths[:number], initial=_COUNT.size * (1 + 2 * number)))
        keys = [block[a:b] for a, b in pairwise(key_ends)]
        of_values = lengths[number:]
        if _DELETED in of_values:
            values: list[bytes | None] = []
            position = key_ends[-1]
            for length in of_values:
                if length == _DELETED:
                    values.append(None)
                else:
                    values.append(block[position : position + length])
                    position += length
        else:
            ends = list(accumulate(of_values, initial=key_ends[-1]))
            values = [block[a:b] for a, b in pairwise(ends)]
        return keys, values

    def _damaged(self, what: str) -> DamagedFileError:
        return DamagedFileError(
            f"shard file '{self._name}' in '{self._where}' is damaged: {what}",
            "nothing was changed: restore the file from a backup, or resume from a savepoint that does not need it",
        )


_BIG_ENDIAN = struct.pack("=I", 1) != struct.pack("<I", 1)


def _between(block: Block, start: bytes, end: bytes | None) -> Block:
    keys, values = block
    first = bisect_left(keys, start)
    last = len(keys) if end is None else bisect_left(keys, end)
    return keys[first:last], values[first:last]


def local_reader(path: Path) -> ReadRange:
    """Return a function that reads ranges of a local file; the file is open while the function is alive."""
    file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed when it is collected

    def read(start: int, length: int) -> bytes:
        return read_range(file.fileno(), start, length)

    return read
