"""An ordered space of keys of any length in an LMDB database, whose own keys have at most 511 bytes.

Owns the mapping. A key of up to 480 bytes is an entry of the main space. A longer key is cut there: its first 480 bytes
lead to another space, in which the rest is the key, cut again if needed:

    k <key>                      an entry
    k <480 bytes> 01             the number of the space for longer keys with this beginning
    a <number> <rest>            an entry of that space
    a <number> <480 bytes> 01    a further space
    00 ...                       the cache's own data

So the order of the keys is kept exactly, and no scan must sort. Hashing long keys would not allow that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, cast

import lmdb

from arcbeam.sizes import threshold

META = b"\0"
MAIN = b"k"
_SUB = b"a"
_NUMBER = struct.Struct(">Q")
_NEXT_NUMBER = META + b"space"

CUT = threshold(480, 8)
"""Keys of up to this number of bytes are entries of the main space, at `MAIN + key`."""
_LINK = b"\x01"
_AFTER_LINK = b"\x02"


def get(txn: lmdb.Transaction, key: bytes) -> bytes | None:
    """Return the value of a key."""
    space = MAIN
    while len(key) > CUT:
        number = _bytes(txn.get(space + key[:CUT] + _LINK))
        if number is None:
            return None
        space, key = _SUB + number, key[CUT:]
    return _bytes(txn.get(space + key))


def _bytes(value: Any) -> bytes | None:
    """Return the result of a transaction as bytes: none of our transactions uses buffers."""
    return cast("bytes | None", value)


def scan(txn: lmdb.Transaction, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries with start <= key < end, ascending."""
    return _scan(txn, MAIN, b"", start, end)


def _scan(
    txn: lmdb.Transaction, space: bytes, path: bytes, start: bytes, end: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    cut = len(space)
    link_length = cut + CUT + len(_LINK)
    if end is None:
        limit = _after(space)
    else:
        limit = space + end if len(end) <= CUT else space + end[:CUT] + _AFTER_LINK
    first = space + start if len(start) <= CUT else space + start[:CUT] + _LINK
    with txn.cursor() as cursor:
        if not cursor.set_range(first):
            return
        for key, value in cast("Iterator[tuple[bytes, bytes]]", cursor.iternext()):
            if key >= limit:
                return
            if len(key) < link_length:
                yield path + key[cut:], value
                continue
            head = key[cut : cut + CUT]
            sub_start = start[CUT:] if start.startswith(head) else b""
            sub_end = end[CUT:] if end is not None and end.startswith(head) else None
            yield from _scan(txn, _SUB + value, path + head, sub_start, sub_end)


def _after(space: bytes) -> bytes:
    """Return the first key after a space."""
    if space == MAIN:
        return b"l"
    return _SUB + _NUMBER.pack(_NUMBER.unpack(space[1:])[0] + 1)


def write(txn: lmdb.Transaction, keys: list[bytes], values: list[bytes | None], *, append: bool) -> None:
    """Write entries, and delete keys without a value.

    Args:
        txn: a write transaction.
        keys: ascending.
        values: of each key.
        append: all keys are greater than all existing ones, and none is deleted.
    """
    if max(map(len, keys), default=0) > CUT:
        for key, value in zip(keys, values, strict=True):
            if value is None:
                _delete(txn, key)
            else:
                txn.put(_made_place(txn, key), value)
        return
    puts = [(MAIN + key, value) for key, value in zip(keys, values, strict=True) if value is not None]
    if len(puts) < len(keys):
        for key, value in zip(keys, values, strict=True):
            if value is None:
                txn.delete(MAIN + key)
    if puts:
        with txn.cursor() as cursor:
            cursor.putmulti(puts, append=append)


def _made_place(txn: lmdb.Transaction, key: bytes) -> bytes:
    """Return the entry's key in the database; create the spaces on its path."""
    space = MAIN
    while len(key) > CUT:
        link = space + key[:CUT] + _LINK
        number = _bytes(txn.get(link))
        if number is None:
            number = _bytes(txn.get(_NEXT_NUMBER)) or _NUMBER.pack(0)
            txn.put(_NEXT_NUMBER, _NUMBER.pack(_NUMBER.unpack(number)[0] + 1))
            txn.put(link, number)
        space, key = _SUB + number, key[CUT:]
    return space + key


def _delete(txn: lmdb.Transaction, key: bytes) -> None:
    """Delete an entry, and the spaces that become empty."""
    links = []
    space = MAIN
    while len(key) > CUT:
        link = space + key[:CUT] + _LINK
        number = _bytes(txn.get(link))
        if number is None:
            return
        links.append(link)
        space, key = _SUB + number, key[CUT:]
    txn.delete(space + key)
    for link in reversed(links):
        with txn.cursor() as cursor:
            if cursor.set_range(space) and (_bytes(cursor.key()) or b"").startswith(space):
                return
        txn.delete(link)
        space = link[: -CUT - len(_LINK)]
