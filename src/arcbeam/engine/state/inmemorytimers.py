"""Timers that need no rows: they fire before a micro-batch ends, or a bounded job keeps a key's timers in memory.

Owns their order. Must not know their meaning, nor a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from arcbeam.sizes import threshold

Order = TypeVar("Order")
Slot = TypeVar("Slot")
Timer = TypeVar("Timer")

_REPLACED = threshold(64)
"""Number of replaced timers that the heap may contain, besides as many as there are timers."""


class InMemoryTimers(Generic[Order, Slot, Timer]):
    """Timers in memory, each with an *order*, which compares with others, and a *slot*: one timer at most has it.

    No two slots may have equal orders.

    Invariant: from the first call of `first` on, the order of each timer is in `_ordered` or `_fresh`, together with
    orders of timers that were set again or removed since. `_ordered` descends; `_fresh`, a heap, has later ones.

    Args:
        slot_of: returns the slot of an order.
    """

    __slots__ = ("_fresh", "_ordered", "_slot_of", "_timers", "is_ordered")

    def __init__(self, slot_of: Callable[[Order], Slot]) -> None:
        self._slot_of = slot_of
        self._timers: dict[Slot, tuple[Order, Timer]] = {}
        self._ordered: list[Any] = []
        self._fresh: list[Any] = []
        self.is_ordered = False
        """Whether a timer was looked for since there was none."""

    def __bool__(self) -> bool:
        return bool(self._timers)

    def __iter__(self) -> Iterator[Timer]:
        return (timer for _, timer in self._timers.values())

    def put(self, slot: Slot, order: Order, timer: Timer) -> None:
        """Add a timer, in place of the one in its slot."""
        self._timers[slot] = order, timer
        if self.is_ordered:
            fresh = self._fresh
            heapq.heappush(fresh, order)
            if len(fresh) > 2 * len(self._timers) + _REPLACED:
                # In place: an iteration uses the same list.
                fresh[:] = [each for each in fresh if not self._is_stale(each)]
                heapq.heapify(fresh)

    def get(self, slot: Slot) -> Timer | None:
        """Return the timer of a slot."""
        known = self._timers.get(slot)
        return None if known is None else known[1]

    def remove(self, slot: Slot) -> None:
        """Remove the timer of a slot, if there is one."""
        self._timers.pop(slot, None)

    def first(self) -> Order | None:
        """Return the order of the first timer; None if there is none."""
        if not self.is_ordered:
            self._sort()
        ordered, fresh = self._ordered, self._fresh
        while ordered and self._is_stale(ordered[-1]):
            ordered.pop()
        while fresh and self._is_stale(fresh[0]):
            heapq.heappop(fresh)
        if ordered and fresh:
            return min(ordered[-1], fresh[0])  # type: ignore[no-any-return]
        return ordered[-1] if ordered else fresh[0] if fresh else None

    def take(self, order: Order) -> Timer:
        """Remove and return the timer whose order `first` returned."""
        if self._ordered and self._ordered[-1] is order:
            self._ordered.pop()
        else:
            heapq.heappop(self._fresh)
        return self._timers.pop(self._slot_of(order))[1]

    def below(self, limit: Order) -> Iterator[Timer]:
        """Remove and yield timers in order while their orders are below a limit, also those that are set meanwhile."""
        if not self.is_ordered:
            self._sort()
        ordered, fresh, timers, slot_of = self._ordered, self._fresh, self._timers, self._slot_of
        while True:
            if ordered and (not fresh or ordered[-1] < fresh[0]):
                if not ordered[-1] < limit:
                    return
                order = ordered.pop()
            elif fresh and fresh[0] < limit:
                order = heapq.heappop(fresh)
            else:
                return
            slot = slot_of(order)
            known = timers.get(slot)
            if known is not None and known[0] is order:
                del timers[slot]
                yield known[1]

    def take_all(self) -> list[Timer]:
        """Remove and return all timers, in no order."""
        timers = list(self)
        self.clear()
        return timers

    def clear(self) -> None:
        """Remove all timers. An iteration of `below` ends."""
        self._timers.clear()
        if self.is_ordered:
            self._ordered.clear()
            self._fresh.clear()
            self.is_ordered = False

    def _sort(self) -> None:
        self._ordered.extend([order for order, _ in self._timers.values()])
        if len(self._ordered) > 1:
            self._ordered.sort(reverse=True)
        self.is_ordered = True

    def _is_stale(self, order: Order) -> bool:
        known = self._timers.get(self._slot_of(order))
        # A timer may have been set again for the same time: the older of equal orders is stale.
        return known is None or known[0] is not order
