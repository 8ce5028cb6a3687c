"""Byte strings in the order in which they were appended, in the rows of a view.

Owns the rows of a sequence, whose keys have a common prefix: one *tail*, which takes appended values until it is large,
and *sealed* rows, which are never rewritten. Must not know the meaning of the values.

    prefix, four bytes         a sealed row: values, each preceded by its length
    prefix, 0xff               the tail: the number of sealed rows (four bytes), then values

So a small sequence is one row, appending costs the same for small and large sequences, and all rows of a sequence are
in the order of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from arcbeam.model.interfaces import StateView
from arcbeam.sizes import threshold

TAIL: Final = b"\xff"
_TAIL_BYTES_MAX = threshold(1024)
"""A tail with at least this number of bytes is sealed."""
_ROW_BYTES = threshold(1 << 20)
"""Values that are appended together are cut into rows of about this size."""
_NONE_SEALED = bytes(4)
_SHORT = tuple(bytes((n,)) for n in range(0x80))


def framed(value: bytes) -> bytes:
    """Return a value preceded by its length: one byte if the length is below 128, else four bytes."""
    size = len(value)
    if size < 0x80:
        return _SHORT[size] + value
    return (size | 0x8000_0000).to_bytes(4, "big") + value


def unframed(data: bytes, position: int = 0) -> Iterator[bytes]:
    """Yield the adjacent framed values from a position on."""
    end = len(data)
    while position < end:
        size = data[position]
        position += 1
        if size >= 0x80:
            size = int.from_bytes(data[position - 1 : position + 3], "big") & 0x7FFF_FFFF
            position += 3
        yield data[position : position + size]
        position += size


def append(view: StateView, start: bytes, value: bytes) -> bool:
    """Append one value to the sequence with the prefix `start`; return whether it was empty."""
    row = start + TAIL
    tail = view.get(row)
    if tail is None:
        view.put(row, _NONE_SEALED + framed(value))
        return True
    if len(tail) <= _TAIL_BYTES_MAX:
        view.put(row, tail + framed(value))
    else:
        view.put(row, _sealed(view, start, tail) + framed(value))
    return False


def extend(view: StateView, start: bytes, values: Iterable[bytes]) -> bool:
    """Append values, as they arrive, to the sequence with the prefix `start`; return whether it is no longer empty."""
    old = view.get(start + TAIL)
    return _extend(view, start, old, values) and old is None


class SequenceWriter:
    """Writes a new sequence, row after row, in ascending order.

    Args:
        put: puts a row.
        start: the prefix of the sequence.
    """

    __slots__ = ("_put", "_sealed", "_start", "_tail")

    def __init__(self, put: Callable[[bytes, bytes], None], start: bytes) -> None:
        self._put, self._start = put, start
        self._sealed = 0
        self._tail = bytearray()

    def add(self, value: bytes) -> None:
        """Append a value."""
        if len(self._tail) > _TAIL_BYTES_MAX:
            self._put(self._start + self._sealed.to_bytes(4, "big"), bytes(self._tail))
            self._sealed += 1
            self._tail.clear()
        self._tail += framed(value)

    def end(self) -> None:
        """Write the rest; there is at least one value."""
        self._put(self._start + TAIL, self._sealed.to_bytes(4, "big") + self._tail)


def replace(view: StateView, start: bytes, values: Sequence[bytes]) -> bool:
    """Replace all values of the sequence with the prefix `start` by others, at least one; return whether it was
    empty.
    """
    old = view.get(start + TAIL)
    if old is not None and old[:4] != _NONE_SEALED:
        _clear_sealed(view, start, old)
    if len(values) == 1:
        view.put(start + TAIL, _NONE_SEALED + framed(values[0]))
    else:
        _extend(view, start, None, values)
    return old is None


def _extend(view: StateView, start: bytes, old: bytes | None, values: Iterable[bytes]) -> bool:
    """Append values to a sequence with this tail; return whether it has any then."""
    tail = bytearray(old or _NONE_SEALED)
    limit = _TAIL_BYTES_MAX
    for value in values:
        if len(tail) > limit:
            tail = bytearray(_sealed(view, start, bytes(tail)))
            limit = _ROW_BYTES
        tail += framed(value)
    if len(tail) > 4:
        view.put(start + TAIL, bytes(tail))
        return True
    return False


def read(view: StateView, start: bytes) -> Iterator[bytes]:
    """Return the current values of a sequence; values appended later do not disturb the iteration.

    Values cleared later may be missing.
    """
    tail = view.get(start + TAIL)
    if tail is None:
        return iter(())
    if tail[:4] == _NONE_SEALED:
        # Most sequences are one short value.
        return iter((tail[5:],)) if tail[4] == len(tail) - 5 and tail[4] < 0x80 else unframed(tail, 4)
    return _all(view, start, tail)


def clear(view: StateView, start: bytes) -> bool:
    """Remove all values of a sequence; return whether it had any."""
    row = start + TAIL
    tail = view.get(row)
    if tail is None:
        return False
    if tail[:4] != _NONE_SEALED:
        _clear_sealed(view, start, tail)
    view.delete(row)
    return True


def _clear_sealed(view: StateView, start: bytes, tail: bytes) -> None:
    for sealed, _ in view.scan(start + _NONE_SEALED, start + tail[:4]):
        view.delete(sealed)


def of_row(row: bytes, value: bytes) -> Iterator[bytes]:
    """Yield the values in one row of a sequence, for code that scans many sequences.

    Args:
        row: its key after the sequence's prefix.
        value: its value.
    """
    return unframed(value, 4 if row == TAIL else 0)


def _sealed(view: StateView, start: bytes, tail: bytes) -> bytes:
    """Seal a tail that has values; return the new tail."""
    view.put(start + tail[:4], tail[4:])
    return (int.from_bytes(tail[:4], "big") + 1).to_bytes(4, "big")


def _all(view: StateView, start: bytes, tail: bytes) -> Iterator[bytes]:
    for _, data in view.scan(start + _NONE_SEALED, start + tail[:4]):
        yield from unframed(data)
    yield from unframed(tail, 4)
