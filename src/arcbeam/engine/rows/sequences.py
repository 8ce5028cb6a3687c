"""Byte strings in the order in which they were appended, in the rows of a view.

Owns the rows behind a given beginning of keys: one *tail*, which takes what is appended until it has grown, and
*sealed* rows, which are never written again. Must not know whose values they are.

    beginning, four bytes      a sealed row: values, each behind its length
    beginning, 0xff            the tail: the number of sealed rows (four bytes), then values

So a small sequence is one row, appending to a large one costs no more than to a small one, and all rows of a sequence
are in the order of its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from arcbeam.model.interfaces import StateView
from arcbeam.sizes import threshold

TAIL: Final = b"\xff"
_SEAL = threshold(1024)
"""A tail that has grown to so many bytes is sealed."""
_ROW = threshold(1 << 20)
"""Values that are appended at once are cut into rows of about this size."""
_NONE_SEALED = bytes(4)
_SHORT = tuple(bytes((n,)) for n in range(0x80))


def framed(value: bytes) -> bytes:
    """A value behind its length: a byte that is the length, if it is below 128, else four bytes."""
    size = len(value)
    if size < 0x80:
        return _SHORT[size] + value
    return (size | 0x8000_0000).to_bytes(4, "big") + value


def unframed(data: bytes, position: int = 0) -> Iterator[bytes]:
    """The values that stand one behind another from a position on."""
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
    """Appends one value to the sequence whose rows begin with `start`; whether that was empty."""
    row = start + TAIL
    tail = view.get(row)
    if tail is None:
        view.put(row, _NONE_SEALED + framed(value))
        return True
    if len(tail) <= _SEAL:
        view.put(row, tail + framed(value))
    else:
        view.put(row, _sealed(view, start, tail) + framed(value))
    return False


def extend(view: StateView, start: bytes, values: Iterable[bytes]) -> bool:
    """Appends values, as they come, to the sequence whose rows begin with `start`; whether it had none, and has now."""
    old = view.get(start + TAIL)
    return _extend(view, start, old, values) and old is None


def replace(view: StateView, start: bytes, values: Sequence[bytes]) -> bool:
    """Makes values, at least one, all that the sequence has whose rows begin with `start`; whether it was empty."""
    old = view.get(start + TAIL)
    if old is not None and old[:4] != _NONE_SEALED:
        _clear_sealed(view, start, old)
    if len(values) == 1:
        view.put(start + TAIL, _NONE_SEALED + framed(values[0]))
    else:
        _extend(view, start, None, values)
    return old is None


def _extend(view: StateView, start: bytes, old: bytes | None, values: Iterable[bytes]) -> bool:
    """Appends values to a sequence that has this tail; whether it has any then."""
    tail = bytearray(old or _NONE_SEALED)
    limit = _SEAL
    for value in values:
        if len(tail) > limit:
            tail = bytearray(_sealed(view, start, bytes(tail)))
            limit = _ROW
        tail += framed(value)
    if len(tail) > 4:
        view.put(start + TAIL, bytes(tail))
        return True
    return False


def read(view: StateView, start: bytes) -> Iterator[bytes]:
    """The values of a sequence as it is now; what is appended later does not disturb the iteration.

    What is cleared later may be missing.
    """
    tail = view.get(start + TAIL)
    if tail is None:
        return iter(())
    if tail[:4] == _NONE_SEALED:
        # One short value is what most are.
        return iter((tail[5:],)) if tail[4] == len(tail) - 5 and tail[4] < 0x80 else unframed(tail, 4)
    return _all(view, start, tail)


def clear(view: StateView, start: bytes) -> bool:
    """Removes all values of a sequence; whether it had any."""
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
    """The values that one row of a sequence holds, for who scans over many sequences.

    Args:
        row: what stands in its key behind the sequence's beginning.
        value: its value.
    """
    return unframed(value, 4 if row == TAIL else 0)


def _sealed(view: StateView, start: bytes, tail: bytes) -> bytes:
    """Seals a tail that has values; gives the new one."""
    view.put(start + tail[:4], tail[4:])
    return (int.from_bytes(tail[:4], "big") + 1).to_bytes(4, "big")


def _all(view: StateView, start: bytes, tail: bytes) -> Iterator[bytes]:
    for _, data in view.scan(start + _NONE_SEALED, start + tail[:4]):
        yield from unframed(data)
    yield from unframed(tail, 4)
