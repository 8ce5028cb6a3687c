"""The blobs of the exchange: the layout of groups and elements in bytes.

Owns the layout of groups, the container of a group's values, and the record of what accumulators stand for. Elements
that are not grouped travel as blocks (see `harness.encoding.blocks`).

*elements*: a sequence as the SDK's list coder writes it (count, then each element nested).
*groups*: records `(key length u32, window length u16, payload length u32, key, window, payload)`. The payload is an
*elements* sequence of values (or in bulk: `harness.encoding.bulk`), or a block. Keys and windows are compared as bytes.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, NamedTuple

from apache_beam.coders import coder_impl

from arcbeam.model.rows import Row
from arcbeam.sizes import threshold

HEADER = struct.Struct("<IHI")
_pack = HEADER.pack
COUNT = struct.Struct(">i")
"""The list coder's count of elements, which precedes them."""

BLOB_BYTES = threshold(256 * 1024)
"""A blob is written when it exceeds this size; a single element may be larger."""

_SEGMENT_BYTES = threshold(1 << 20)
"""Payloads of a group are spilled together up to this size, and read back together."""
_SPILLED_BYTES_MIN = threshold(512)
"""Spilling less memory than this gains nothing, because its place in the file must be recorded."""
_LENGTH = struct.Struct("<I")


def record(key: bytes, window: bytes, payload: bytes) -> bytes:
    """Return a record of the *groups* layout."""
    return b"".join((_pack(len(key), len(window), len(payload)), key, window, payload))


def records(blob: bytes) -> Iterator[tuple[bytes, bytes, int, int]]:
    """Yield the records of a blob: (key, window, payload's start, payload's end)."""
    position, end, unpack, size = 0, len(blob), HEADER.unpack_from, HEADER.size
    while position < end:
        key_length, window_length, payload_length = unpack(blob, position)
        key_end = position + size + key_length
        payload_start = key_end + window_length
        position_next = payload_start + payload_length
        yield blob[position + size : key_end], blob[key_end:payload_start], payload_start, position_next
        position = position_next


TALLY = b"tally"
"""In place of the window of a record. Records with keys for a stage of a streaming job have no window."""
TALLY_KEY = b""
"""The key of such records: all are in one shard."""
_TALLY_HEAD = struct.Struct("<q")
_TALLY_WINDOW = struct.Struct("<Hq")


class Tally:
    """By how many elements exceed the accumulators that are written. It travels with them, as a record.

    Its payload: the number for all windows; then for each window the length of its encoding, its number, the encoding.

    Attributes:
        elements: in all; an element counts once.
        windows: by encoded window; an element counts once in each of its windows.
    """

    __slots__ = ("elements", "windows")

    def __init__(self) -> None:
        self.elements = 0
        self.windows: dict[bytes, int] = {}

    def __bool__(self) -> bool:
        return bool(self.elements or self.windows)

    def add(self, elements: int, windows: Mapping[bytes, int]) -> None:
        """Add some; a window may be at zero."""
        self.elements += elements
        known = self.windows
        for window, more in windows.items():
            if more:
                known[window] = known.get(window, 0) + more

    def encoded(self) -> bytes:
        """Return the record."""
        windows = (_TALLY_WINDOW.pack(len(window), more) + window for window, more in self.windows.items())
        return record(TALLY_KEY, TALLY, _TALLY_HEAD.pack(self.elements) + b"".join(windows))

    @staticmethod
    def of(payloads: Iterable[bytes]) -> Tally:
        """Return the sum of records, from their payloads."""
        tally = Tally()
        for payload in payloads:
            at, windows = _TALLY_HEAD.size, dict[bytes, int]()
            while at < len(payload):
                length, more = _TALLY_WINDOW.unpack_from(payload, at)
                at += _TALLY_WINDOW.size
                windows[payload[at : at + length]] = more
                at += length
            tally.add(_TALLY_HEAD.unpack_from(payload)[0], windows)
        return tally


class Spool:
    """An append-only local file for payloads that do not fit in memory. It disappears with its last reader.

    Attributes:
        size: bytes written.
    """

    def __init__(self) -> None:
        fd, self._path = tempfile.mkstemp(prefix="arcbeam-group-")
        self._file = os.fdopen(fd, "wb", buffering=1 << 20)
        os.unlink(self._path)  # the descriptor keeps it alive; a killed worker leaves no file
        self._fd = os.dup(self._file.fileno())
        self.size = 0

    def append(self, payload: bytes) -> int:
        """Write a payload; return its offset."""
        offset = self.size
        self._file.write(payload)
        self.size += len(payload)
        return offset

    def read(self, offset: int, length: int) -> bytes:
        """Read a payload."""
        self._file.flush()
        data = os.pread(self._fd, length, offset)
        if len(data) < length:  # SUBTLE: one call reads 2 GiB at most
            parts, done = [data], len(data)
            while done < length and parts[-1]:
                parts.append(os.pread(self._fd, length - done, offset + done))
                done += len(parts[-1])
            data = b"".join(parts)
        if len(data) < length:
            raise OSError(f"a file of spilled values is truncated: it has {len(data)} of {length} bytes")
        return data

    def __del__(self) -> None:
        self._file.close()
        os.close(self._fd)


class _Segment(NamedTuple):
    """Payloads in a spool; each is preceded by its length."""

    spool: Spool
    offset: int
    length: int

    def payloads(self) -> Iterator[bytes]:
        data = self.spool.read(self.offset, self.length)
        position = 0
        while position < self.length:
            (size,) = _LENGTH.unpack_from(data, position)
            position += _LENGTH.size
            yield data[position : position + size]
            position += size


class Chunks:
    """The payloads of one key (and window), in order of arrival, in memory or in a spool.

    Attributes:
        size: bytes of all payloads.
    """

    __slots__ = ("_memory", "_spilled", "size")

    def __init__(self) -> None:
        self._spilled: list[_Segment] | None = None  # precedes the payloads in memory
        self._memory: list[bytes] = []
        self.size = 0

    def append(self, payload: bytes) -> None:
        """Add a payload, in memory."""
        self._memory.append(payload)
        self.size += len(payload)

    def extend(self, other: Chunks) -> None:
        """Add all payloads of another object, when windows merge."""
        # Values of merged windows have no defined order, so payloads in files stay first.
        self._spilled = [*(self._spilled or ()), *(other._spilled or ())] or None
        self._memory += other._memory
        self.size += other.size

    def spill(self, spool: Spool) -> None:
        """Move payloads from memory to the spool, if it is worth it."""
        if sum(map(len, self._memory)) + 64 * len(self._memory) < _SPILLED_BYTES_MIN:
            return
        if self._spilled is None:
            self._spilled = []
        # SUBTLE: from the end, so that written payloads are freed at once.
        waiting, self._memory = self._memory, []
        waiting.reverse()
        while waiting:
            offset, length = spool.size, 0
            while waiting and length < _SEGMENT_BYTES:
                payload = waiting.pop()
                spool.append(_LENGTH.pack(len(payload)))
                spool.append(payload)
                length = spool.size - offset
            self._spilled.append(_Segment(spool, offset, length))

    def __iter__(self) -> Iterator[bytes]:
        for segment in self._spilled or ():
            yield from segment.payloads()
        yield from self._memory


def in_file(payloads: Iterable[bytes]) -> Chunks:
    """Return payloads that were moved to a local file, a few at a time."""
    chunks, spool, size = Chunks(), Spool(), 0
    for payload in payloads:
        chunks.append(payload)
        size += len(payload)
        if size >= _SEGMENT_BYTES:
            chunks.spill(spool)
            size = 0
    chunks.spill(spool)
    return chunks


class GroupValues:
    """The values of a group, decoded during iteration; may be iterated any number of times.

    All payloads together may be larger than memory. Only one payload is decoded in memory.
    """

    __slots__ = ("_chunks", "_decode")

    def __init__(self, chunks: Chunks, decode: Callable[[bytes], list[Any]]) -> None:
        self._chunks = chunks
        self._decode = decode

    def __iter__(self) -> Iterator[Any]:
        for payload in self._chunks:
            yield from self._decode(payload)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def __repr__(self) -> str:
        return f"<values of a group, {self._chunks.size} bytes encoded>"


coder_impl.FastPrimitivesCoderImpl.register_iterable_like_type(GroupValues)

KeyGroup = tuple[bytes, dict[bytes, Chunks]]
"""An encoded key, and its payloads by encoded window."""


_bucket_of = attrgetter("bucket")


def buckets(rows: Iterable[Row], few: int) -> Iterator[list[Row] | Iterator[Row]]:
    """Yield the rows of each bucket: a list, if their blobs are small; otherwise an iterator.

    Args:
        rows: in ascending order of bucket. A bucket's rows must be taken before the next bucket.
        few: maximum bytes of the blobs in a list.
    """
    for _, grouped in groupby(rows, _bucket_of):
        of_bucket = iter(grouped)
        taken, size = list[Row](), 0
        for row in of_bucket:
            taken.append(row)
            size += len(row.blob)
            if size > few:
                yield chain(taken, of_bucket)
                break
        else:
            yield taken


def key_groups(rows: Iterable[Row], memory: int) -> Iterator[KeyGroup]:
    """Join the records of each key.

    Args:
        rows: in ascending order of bucket.
        memory: bytes of payloads to hold; beyond it a bucket's payloads are moved to a local file.
    """
    bucket, groups = -1, dict[bytes, dict[bytes, Chunks]]()
    held, spool = 0, None
    for row in rows:
        if row.bucket != bucket:
            yield from groups.items()
            bucket, groups, held, spool = row.bucket, {}, 0, None
        blob = row.blob
        for key, window, start, end in records(blob):
            windows = groups.get(key)
            if windows is None:
                windows = groups[key] = {}
            chunks = windows.get(window)
            if chunks is None:
                chunks = windows[window] = Chunks()
            chunks.append(blob[start:end])
        held += len(blob)
        if held > memory:
            spool = spool or Spool()
            for windows in groups.values():
                for chunks in windows.values():
                    chunks.spill(spool)
            held = 0
    yield from groups.items()
