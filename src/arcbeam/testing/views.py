"""An ordered key-value view in memory.

Owns nothing durable: it replaces the store's view of a shard. Must not know what its rows mean.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping

_BLOCK = 512
_BLOCKS_MAX = 8


class MemoryView:
    """A `StateView` in memory. A scan sees later writes ahead of it, except to keys in its current block.

    Invariants: `_blocks` are not empty, and contain distinct keys in ascending order; some keys may be deleted. Every
    key of `_rows` is in `_blocks` or in `_fresh`. `_lasts` has the last key of each block.

    Args:
        rows: the initial rows.

    Attributes:
        written: see `StateView`.
    """

    __slots__ = ("_blocks", "_fresh", "_lasts", "_rows", "written")

    def __init__(self, rows: Mapping[bytes, bytes] | None = None) -> None:
        self._rows: dict[bytes, bytes] = dict(rows or {})
        self._fresh: list[bytes] = list(self._rows)
        self._blocks: list[list[bytes]] = []
        self._lasts: list[bytes] = []
        self.written = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def empty(self) -> bool:
        """Whether it has no row."""
        return not self._rows

    def snapshot(self) -> dict[bytes, bytes]:
        """Return a copy of all rows, in ascending order."""
        return dict(sorted(self._rows.items()))

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none."""
        return self._rows.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key's value."""
        rows = self._rows
        if key not in rows:
            self._fresh.append(key)
        rows[key] = value
        self.written += len(key) + len(value)

    def delete(self, key: bytes) -> None:
        """Remove a key, if it exists."""
        self._rows.pop(key, None)
        self.written += len(key)

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries with start <= key < end, in ascending order; to the last key if `end` is None."""
        rows = self._rows
        while True:
            if self._fresh:
                self._arrange()
            at = bisect_left(self._lasts, start)
            if at == len(self._blocks):
                return
            block = self._blocks[at]
            place = bisect_left(block, start)
            if block[place] not in rows:
                # A scan removes the deleted keys that it meets, so that keys taken from the front do not accumulate.
                if not (block := self._live(at)):
                    continue
                place = bisect_left(block, start)
            last = block[-1]
            # A copy: the caller may write between two entries.
            for key in block[place:]:
                if end is not None and key >= end:
                    return
                value = rows.get(key)
                if value is not None:
                    yield key, value
            start = max(start, last + b"\0")
            if end is not None and start >= end:
                return

    def _live(self, at: int) -> list[bytes]:
        """Return a block without deleted keys; if none is left, remove the block and return it empty."""
        rows, block = self._rows, self._blocks[at]
        live = [key for key in block if key in rows]
        if len(live) < len(block):
            if live:
                self._blocks[at], self._lasts[at] = live, live[-1]
            else:
                del self._blocks[at], self._lasts[at]
        return live

    def _arrange(self) -> None:
        """Move fresh keys into blocks: few keys one by one, many by sorting all."""
        fresh, self._fresh = self._fresh, []
        if len(fresh) > _BLOCKS_MAX + len(self._blocks) * 16:
            keys = sorted(self._rows)
            self._blocks = [keys[i : i + _BLOCK] for i in range(0, len(keys), _BLOCK)]
            self._lasts = [block[-1] for block in self._blocks]
            return
        for key in fresh:
            self._insert(key)

    def _insert(self, key: bytes) -> None:
        if key not in self._rows:
            return
        if not self._blocks:
            self._blocks, self._lasts = [[key]], [key]
            return
        at = min(bisect_left(self._lasts, key), len(self._blocks) - 1)
        block = self._blocks[at]
        place = bisect_right(block, key)
        if place and block[place - 1] == key:
            return
        block.insert(place, key)
        if len(block) > 2 * _BLOCK:
            self._blocks[at : at + 1] = [block[:_BLOCK], block[_BLOCK:]]
            self._lasts[at : at + 1] = [block[_BLOCK - 1], block[-1]]
        else:
            self._lasts[at] = block[-1]
