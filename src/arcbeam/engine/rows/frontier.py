"""The front of an index: its first rows, taken one after another while other rows are put and deleted.

Owns the rows read ahead; no other code writes the index. Must not know the index's content.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import Final

from arcbeam.engine.rows.keyspace import after
from arcbeam.model.interfaces import StateView
from arcbeam.sizes import threshold

_AHEAD_ROWS_MAX: Final = threshold(256)


_UNKNOWN: Final = b""


class Frontier:
    """An index, accessed by its first row.

    It reads some hundred rows ahead, because opening a scan for each row would cost more than the row.

    Invariants: `_ahead` (descending) has the rows below `_until` that were in the view when they were read; those of
    them deleted since are in `_deleted`. Rows put below `_until` since are in `_fresh`, and their keys in the heap
    `_keys`, which may contain deleted ones. From `_until` on, only the view knows. `_head` is the first key, None if
    there is none, `_UNKNOWN` if it must be searched.

    Args:
        view: the view of the shard.
        start: the common prefix of the index's keys.

    Attributes:
        start: as given.
    """

    __slots__ = ("_ahead", "_deleted", "_end", "_fresh", "_head", "_keys", "_until", "_view", "start")

    def __init__(self, view: StateView, start: bytes) -> None:
        end = after(start)
        assert end is not None
        self.start = start
        self._view = view
        self._end = end
        self._until = start
        self._ahead: list[tuple[bytes, bytes]] = []
        self._deleted: set[bytes] = set()
        self._keys: list[bytes] = []
        self._fresh: dict[bytes, bytes] = {}
        self._head: bytes | None = _UNKNOWN

    def put(self, key: bytes, value: bytes) -> None:
        """Add a row that does not exist."""
        self._view.put(key, value)
        if key < self._until:
            heapq.heappush(self._keys, key)
            self._fresh[key] = value
            if self._head is None or key < self._head:
                self._head = key

    def delete(self, key: bytes) -> None:
        """Delete a row that exists."""
        self._view.delete(key)
        if key == self._head:
            self._head = _UNKNOWN
        if key < self._until and self._fresh.pop(key, None) is None:
            self._deleted.add(key)

    def first(self) -> bytes | None:
        """Return the key of the first row; None if there is none."""
        head = self._head
        if head != _UNKNOWN:
            return head
        ahead, keys, deleted = self._ahead, self._keys, self._deleted
        while True:
            while keys and keys[0] not in self._fresh:
                heapq.heappop(keys)
            while deleted and ahead and ahead[-1][0] in deleted:
                deleted.discard(ahead.pop()[0])
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
        """Delete the row whose key `first` returned; return its value."""
        self._view.delete(key)
        ahead, fresh = self._ahead, self._fresh
        if ahead and ahead[-1][0] == key and key not in fresh:
            value = ahead.pop()[1]
        else:
            value = fresh.pop(key)
        # If no row was put or deleted among the rows read ahead, the next of them is the first.
        self._head = ahead[-1][0] if ahead and not (self._keys or self._deleted) else _UNKNOWN
        return value

    def _read(self) -> None:
        rows = list(islice(self._view.scan(self._until, self._end), _AHEAD_ROWS_MAX))
        self._until = rows[-1][0] + b"\0" if len(rows) == _AHEAD_ROWS_MAX else self._end
        rows.reverse()
        self._ahead[:] = rows
