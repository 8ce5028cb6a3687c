"""The front of an index: its first rows, taken one after another while others are put and deleted.

Owns what was read ahead of an index whose rows only it writes. Must not know what the index is of.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import Final

from arcbeam.engine.rows.keyspace import after
from arcbeam.model.interfaces import StateView
from arcbeam.sizes import threshold

_AHEAD: Final = threshold(256)


_UNKNOWN: Final = b""


class Frontier:
    """An index, by its first row.

    Reads rows ahead, some hundred at once: opening a scan for each row would cost more than the row.

    Invariants: `_ahead` (descending) has the rows below `_until` that were in the view when they were read; those of
    them that were deleted since are in `_gone`. Rows below `_until` that were put since are in `_fresh`, and their keys
    in the heap `_keys`, where some were deleted since. At and behind `_until`, only the view knows. `_head` is the
    first key, None if there is none, `_UNKNOWN` if it has to be looked for.

    Args:
        view: of the shard.
        start: what the keys of the index begin with.

    Attributes:
        start: as given.
    """

    __slots__ = ("_ahead", "_end", "_fresh", "_gone", "_head", "_keys", "_until", "_view", "start")

    def __init__(self, view: StateView, start: bytes) -> None:
        end = after(start)
        assert end is not None
        self.start = start
        self._view = view
        self._end = end
        self._until = start
        self._ahead: list[tuple[bytes, bytes]] = []
        self._gone: set[bytes] = set()
        self._keys: list[bytes] = []
        self._fresh: dict[bytes, bytes] = {}
        self._head: bytes | None = _UNKNOWN

    def put(self, key: bytes, value: bytes) -> None:
        """Adds a row that is not there."""
        self._view.put(key, value)
        if key < self._until:
            heapq.heappush(self._keys, key)
            self._fresh[key] = value
            if self._head is None or key < self._head:
                self._head = key

    def delete(self, key: bytes) -> None:
        """Removes a row that is there."""
        self._view.delete(key)
        if key == self._head:
            self._head = _UNKNOWN
        if key < self._until and self._fresh.pop(key, None) is None:
            self._gone.add(key)

    def first(self) -> bytes | None:
        """The key of the first row; None if there is none."""
        head = self._head
        if head != _UNKNOWN:
            return head
        ahead, keys, gone = self._ahead, self._keys, self._gone
        while True:
            while keys and keys[0] not in self._fresh:
                heapq.heappop(keys)
            while gone and ahead and ahead[-1][0] in gone:
                gone.discard(ahead.pop()[0])
            if ahead:
                head = ahead[-1][0]
                if keys and keys[0] < head:
                    head = keys[0]
            elif keys:
                head = keys[0]
            elif self._until == self._end:
                head = None
            else:
                self._read()
                continue
            self._head = head
            return head

    def take(self, key: bytes) -> bytes:
        """Removes the row whose key `first` gave; its value."""
        self._view.delete(key)
        ahead, fresh = self._ahead, self._fresh
        if ahead and ahead[-1][0] == key and key not in fresh:
            value = ahead.pop()[1]
        else:
            value = fresh.pop(key)
        # Where nothing was put or deleted among the rows that were read, the next of them is the first.
        self._head = ahead[-1][0] if ahead and not (self._keys or self._gone) else _UNKNOWN
        return value

    def _read(self) -> None:
        rows = list(islice(self._view.scan(self._until, self._end), _AHEAD))
        self._until = rows[-1][0] + b"\0" if len(rows) == _AHEAD else self._end
        rows.reverse()
        self._ahead[:] = rows
