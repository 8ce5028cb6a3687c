"""The changes of a running micro-batch on top of a committed version: the engine's view of a shard's state.

Owns the merge of both, and the order of the changes. Must not know where the committed version is stored.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator
from typing import Protocol

from typing_extensions import override

from arcbeam.sizes import threshold
from arcbeam.store.shards.shardfile import Entry


class Base(Protocol):
    """A committed version of a shard. It does not change while it is open."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none."""
        ...

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries with start <= key < end, ascending; to the last one if `end` is None."""
        ...

    def close(self) -> None:
        """Release it; it cannot be used any more."""
        ...


class EmptyBase(Base):
    """A shard that never had an entry."""

    @override
    def get(self, key: bytes) -> bytes | None:
        return None

    @override
    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    @override
    def close(self) -> None:
        pass


class Overlay:
    """A shard's state for one micro-batch; an `arcbeam.model.interfaces.StateView`.

    Memory: the micro-batch's changes. The overlay owns `base`; `close` closes both.

    Attributes:
        written: see `StateView`. It also counts overwritten rows, for a micro-batch's budget.
    """

    def __init__(self, base: Base) -> None:
        self._base = base
        self._base_get = base.get
        self._changes: dict[bytes, bytes | None] = {}  # None: deleted
        self._unsorted: defaultdict[bytes, list[bytes]] = defaultdict(list)
        self._sorted = _SortedKeys()
        self.written = 0
        # Invariant: each key of `_changes` is in exactly one of `_unsorted` and `_sorted`. Unsorted keys are grouped by
        # their first byte: a scan of one kind of rows does not sort the others.

    @property
    def empty(self) -> bool:
        """Whether it has no entry, here or below."""
        if any(value is not None for value in self._changes.values()):
            return False
        return next(self.scan(b""), None) is None

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, written here or below; None if there is none."""
        try:
            return self._changes[key]
        except KeyError:
            return self._base_get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Sets a key's value, here only."""
        changes = self._changes
        if key not in changes:
            self._unsorted[key[:1]].append(key)
        changes[key] = value
        self.written += len(key) + len(value)

    def delete(self, key: bytes) -> None:
        """Removes a key, here only."""
        changes = self._changes
        if key not in changes:
            self._unsorted[key[:1]].append(key)
        changes[key] = None
        self.written += len(key)

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """See `StateView`. It is unspecified whether writes ahead of the iteration are visible."""
        if self._unsorted:
            low, high = start[:1], None if end is None else end[:1]
            for first in [f for f in self._unsorted if low <= f and (high is None or f <= high)]:
                self._sorted.add(self._unsorted.pop(first))
        if not self._sorted.any(start, end):
            return self._base.scan(start, end)
        return self._merged(start, end)

    def _merged(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        changes, base = self._changes, self._base.scan(start, end)
        below = next(base, None)
        for key in self._sorted.between(start, end):
            while below is not None and below[0] < key:
                yield below
                below = next(base, None)
            if below is not None and below[0] == key:
                below = next(base, None)
            value = changes[key]
            if value is not None:
                yield key, value
        if below is not None:
            yield below
            yield from base

    def changes(self) -> Iterator[Entry]:
        """Yield the micro-batch's changes, ascending by key; deleted keys only if the base has them."""
        for key in sorted(self._changes):
            value = self._changes[key]
            if value is not None or self._base_get(key) is not None:
                yield key, value

    def close(self) -> None:
        """Discard the changes and close the base."""
        self._changes = {}
        self._unsorted.clear()
        self._sorted = _SortedKeys()
        self._base.close()


_BLOCK_KEYS = threshold(512)


class _SortedKeys:
    """Distinct keys in order, in blocks of some hundred, so that inserting a key is cheap."""

    def __init__(self) -> None:
        self._blocks: list[list[bytes]] = []
        self._last: list[bytes] = []  # of each block
        self._count = 0

    def add(self, keys: list[bytes]) -> None:
        """Add new keys."""
        if 8 * len(keys) > self._count:
            every = [key for block in self._blocks for key in block]
            every += keys
            every.sort()
            self._blocks = [every[i : i + _BLOCK_KEYS] for i in range(0, len(every), _BLOCK_KEYS)]
            self._last = [block[-1] for block in self._blocks]
        else:
            for key in keys:
                self._add(key)
        self._count += len(keys)

    def _add(self, key: bytes) -> None:
        i = min(bisect_left(self._last, key), len(self._blocks) - 1)
        block = self._blocks[i]
        insort(block, key)
        if len(block) > 2 * _BLOCK_KEYS:
            self._blocks[i : i + 1] = [block[:_BLOCK_KEYS], block[_BLOCK_KEYS:]]
            self._last[i : i + 1] = [block[_BLOCK_KEYS - 1], block[-1]]
        else:
            self._last[i] = block[-1]

    def any(self, start: bytes, end: bytes | None) -> bool:
        """Return whether there is a key with start <= key < end."""
        i = bisect_left(self._last, start)
        if i == len(self._blocks):
            return False
        if end is None:
            return True
        block = self._blocks[i]
        return block[bisect_left(block, start)] < end

    def between(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        """Yield the keys with start <= key < end, ascending. Keys may be added meanwhile; it may miss those ahead."""
        i = bisect_left(self._last, start)
        while i < len(self._blocks):
            block = self._blocks[i]
            first = bisect_left(block, start)
            part = block[first : len(block) if end is None else bisect_left(block, end, first)]
            done = first + len(part) < len(block)
            yield from part
            if done:
                return
            # SUBTLE: blocks may have been split meanwhile: search again for the key after the last one.
            start = part[-1] + b"\0"
            i = bisect_left(self._last, start)
