"""The contents of a state cell: encoded, in the order in which they are read.

Owns how a bag is divided into chunks, how an ordered list is kept in order, and how both are decoded. Must not know
keys.
"""

from __future__ import annotations

from bisect import bisect_left, insort_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from apache_beam.coders.coder_impl import create_InputStream, create_OutputStream

from arcbeam.sizes import threshold

Cell = list[tuple[int, bytes]]
"""Contents of a cell. Bag: (number of elements, their nested encodings), in order of arrival. Ordered list: (sort key,
nested encoding of one element), ascending, and in order of arrival for equal keys."""

ListRange = tuple[int, int] | None
"""Sort keys from the first (included) to the second (excluded); None: all."""

_CHUNK_BYTES = threshold(1 << 20)
"""A write is divided into chunks of about this size, so that reading needs no more memory."""
_EAGER_BYTES = threshold(64 * 1024)
"""Contents up to this size are decoded at once, larger ones during iteration."""
_ENTRIES_MAX = threshold(16)
"""Up to this many new entries of an ordered list are inserted one by one."""

_sort_key = itemgetter(0)


def whole(chunks: Iterable[bytes], coder: Any) -> Iterator[Any]:
    """Yield the elements of chunks of nested encodings."""
    decode = coder.decode_from_stream
    for chunk in chunks:
        stream = create_InputStream(chunk)
        while stream.size() > 0:
            yield decode(stream, True)


def counted(entries: Iterable[tuple[int, bytes]], coder: Any) -> Iterator[Any]:
    """Yield the elements of a bag's chunks. The counts preserve elements whose encoding is empty."""
    decode = coder.decode_from_stream
    for count, data in entries:
        stream = create_InputStream(data)
        for _ in range(count):
            yield decode(stream, True)


@dataclass(frozen=True, slots=True)
class _Frozen:
    """The elements of a bag at one moment, decoded at each iteration."""

    entries: tuple[tuple[int, bytes], ...]
    coder: Any

    def __iter__(self) -> Iterator[Any]:
        return counted(self.entries, self.coder)


def bag_elements(cell: Cell, coder: Any) -> Iterable[Any]:
    """Return the elements of a bag."""
    if len(cell) == 1:
        count, data = cell[0]
        if len(data) <= _EAGER_BYTES:
            decode, stream = coder.decode_from_stream, create_InputStream(data)
            return [decode(stream, True) for _ in range(count)]
    # SUBTLE: a copy of the list, not of the bytes: the cell may grow while it is iterated.
    return _Frozen(tuple(cell), coder)


def list_elements(cell: Cell, start: int, end: int, coder: Any) -> Iterable[Any]:
    """Return the elements [start, end) of an ordered list."""
    chosen = cell[start:end]
    return counted(((1, data) for _, data in chosen), coder)


def list_range(state: Any) -> ListRange:
    """Return the sort keys [start, end) in the state key of an ordered list."""
    return (state.range.start, state.range.end) if state.HasField("range") else None


def places(cell: Cell, range: ListRange) -> tuple[int, int]:
    """Return the positions [start, end) of a range of an ordered list."""
    if range is None:
        return 0, len(cell)
    start = bisect_left(cell, range[0], key=_sort_key)
    return start, bisect_left(cell, range[1], lo=start, key=_sort_key)


def bag_chunks(coder: Any, elements: Iterable[Any]) -> Cell:
    """Encode elements as chunks of a bag."""
    chunks: Cell = []
    encode, stream, count = coder.encode_to_stream, create_OutputStream(), 0
    for element in elements:
        encode(element, stream, True)
        count += 1
        if stream.size() > _CHUNK_BYTES:
            chunks.append((count, stream.get()))
            stream, count = create_OutputStream(), 0
    if count:
        chunks.append((count, stream.get()))
    return chunks


def list_entries(coder: Any, elements: Iterable[tuple[int, Any]]) -> Cell:
    """Encode (sort key, value) pairs as entries of an ordered list."""
    entries: Cell = []
    encode = coder.encode_to_stream
    for element in elements:
        stream = create_OutputStream()
        encode(element, stream, True)
        entries.append((element[0], stream.get()))
    return entries


def insert_entries(cell: Cell, added: Cell) -> None:
    """Add entries to an ordered list."""
    if len(added) > _ENTRIES_MAX:
        cell.extend(added)
        cell.sort(key=_sort_key)  # stable, and fast on two ascending runs
        return
    for entry in added:
        if not cell or cell[-1][0] <= entry[0]:
            cell.append(entry)
        else:
            insort_right(cell, entry, key=_sort_key)
