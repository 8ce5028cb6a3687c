"""Timers that will have fired when a micro-batch ends: they need no rows.

Owns their order, which is that of the rows that they would have. Must not know their meaning, nor a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
_HEAD = 9
"""The bytes of an order before the slot: moment and rank."""


class InMemoryTimers(Generic[T]):
    """Timers in memory, each with its *order*: the key of the row that it would have in the index, after the stage.

    Invariant: the order of each timer is in `_ordered` or `_fresh`, together with orders of timers that were set again
    or removed since. `_ordered` descends from the first call of `first` on; later orders are in the heap `_fresh`.
    """

    __slots__ = ("_fresh", "_is_ordered", "_ordered", "_timers")

    def __init__(self) -> None:
        self._timers: dict[bytes, tuple[bytes, T]] = {}
        self._ordered: list[bytes] = []
        self._fresh: list[bytes] = []
        self._is_ordered = False

    def __bool__(self) -> bool:
        return bool(self._timers)

    def __iter__(self) -> Iterator[T]:
        return (timer for _, timer in self._timers.values())

    def put(self, order: bytes, timer: T) -> None:
        """Add a timer, in place of the one in its slot."""
        self._timers[order[_HEAD:]] = order, timer
        if self._is_ordered:
            heapq.heappush(self._fresh, order)
        else:
            self._ordered.append(order)

    def get(self, slot: bytes) -> T | None:
        """Return the timer of a slot."""
        known = self._timers.get(slot)
        return None if known is None else known[1]

    def remove(self, slot: bytes) -> None:
        """Remove the timer of a slot, if there is one."""
        self._timers.pop(slot, None)

    def first(self) -> bytes | None:
        """Return the order of the first timer; None if there is none."""
        ordered, fresh = self._ordered, self._fresh
        if not self._is_ordered:
            ordered.sort(reverse=True)
            self._is_ordered = True
        while ordered and self._is_stale(ordered[-1]):
            ordered.pop()
        while fresh and self._is_stale(fresh[0]):
            heapq.heappop(fresh)
        if ordered and fresh:
            return min(ordered[-1], fresh[0])
        return ordered[-1] if ordered else fresh[0] if fresh else None

    def take(self, order: bytes) -> T:
        """Remove and return the timer whose order `first` returned."""
        if self._ordered and self._ordered[-1] == order:
            self._ordered.pop()
        else:
            heapq.heappop(self._fresh)
        return self._timers.pop(order[_HEAD:])[1]

    def below(self, limit: bytes) -> Iterator[T]:
        """Remove and yield the first timers, one after another, while their orders are below a limit.

        The iteration ends when a timer is set meanwhile, because it may be before the next. Call it again for more.
        """
        ordered, fresh, timers = self._ordered, self._fresh, self._timers
        if not self._is_ordered:
            self.first()
        while ordered and not fresh and ordered[-1] < limit:
            order = ordered.pop()
            slot = order[_HEAD:]
            known = timers.get(slot)
            if known is not None and known[0] == order:
                del timers[slot]
                yield known[1]

    def take_all(self) -> list[T]:
        """Remove and return all timers, in no order."""
        timers = list(self)
        self._timers.clear()
        self._ordered, self._fresh, self._is_ordered = [], [], False
        return timers

    def _is_stale(self, order: bytes) -> bool:
        known = self._timers.get(order[_HEAD:])
        return known is None or known[0] != order
