"""Timers that need no rows: they fire before a micro-batch ends, or a bounded job keeps a key's timers in memory.

Owns their order. Must not know their meaning, nor a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from arcbeam.sizes import threshold

Order = TypeVar("Order")
Slot = TypeVar("Slot")
Timer = TypeVar("Timer")

_REPLACED_MAX = threshold(64)
"""Number of replaced timers that the heap may contain, besides as many as there are timers."""
_order_of: Final = itemgetter(0)


class InMemoryTimers(Generic[Order, Slot, Timer]):
    """Timers in memory, each with an *order*, which compares with others, and a *slot*: one timer at most has it.

    No two slots may have equal orders.

    Invariant: from the first call of `first` on, the order of each timer is in `_ordered` or `_fresh`, together with
    orders of timers that were set again or removed since. `_ordered` descends; `_fresh`, a heap, has later ones.

    Args:
        slot_of: returns the slot of an order.

    Attributes:
        pending: each timer with its order, by its slot. While `is_ordered` is false, timers may be added to it
            directly: a call of `put` for each timer costs more.
        is_ordered: whether a timer was looked for since there was none.
    """

    __slots__ = ("_fresh", "_ordered", "_slot_of", "is_ordered", "pending")

    def __init__(self, slot_of: Callable[[Order], Slot]) -> None:
        self._slot_of = slot_of
        self.pending: dict[Slot, tuple[Order, Timer]] = {}
        self._ordered: list[Any] = []
        self._fresh: list[Any] = []
        self.is_ordered = False

    def __bool__(self) -> bool:
        return bool(self.pending)

    def __iter__(self) -> Iterator[Timer]:
        return (timer for _, timer in self.pending.values())

    def put(self, slot: Slot, order: Order, timer: Timer) -> None:
        """Add a timer, in place of the one in its slot."""
        self.pending[slot] = order, timer
        if self.is_ordered:
            fresh = self._fresh
            heapq.heappush(fresh, order)
            if len(fresh) > 2 * len(self.pending) + _REPLACED_MAX:
                # In place: an iteration uses the same list.
                fresh[:] = [each for each in fresh if not self._is_stale(each)]
                heapq.heapify(fresh)

    def get(self, slot: Slot) -> Timer | None:
        """Return the timer of a slot."""
        known = self.pending.get(slot)
        return None if known is None else known[1]

    def remove(self, slot: Slot) -> None:
        """Remove the timer of a slot, if there is one."""
        self.pending.pop(slot, None)

    def first(self) -> Order | None:
        """Return the order of the first timer; None if there is none."""
        if not self.is_ordered:
            if not self.pending:
                return None
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
        return self.pending.pop(self._slot_of(order))[1]

    def below(self, limit: Order) -> Iterator[Timer]:
        """Remove and yield timers in order while their orders are below a limit, also those that are set meanwhile."""
        if not self.is_ordered:
            if not self.pending:
                return
            self._sort()
        ordered, fresh, slot_of, remove = self._ordered, self._fresh, self._slot_of, self.pending.pop
        while True:
            if ordered and (not fresh or ordered[-1] < fresh[0]):
                order = ordered.pop()
                if not order < limit:
                    ordered.append(order)
                    return
            elif fresh and fresh[0] < limit:
                order = heapq.heappop(fresh)
            else:
                return
            slot = slot_of(order)
            known = remove(slot, None)
            if known is not None:
                if known[0] is order:
                    yield known[1]
                else:
                    self.pending[slot] = known

    def take_all(self) -> list[Timer]:
        """Remove and return all timers, in no order."""
        timers = list(self)
        self.clear()
        return timers

    def clear(self) -> None:
        """Remove all timers. An iteration of `below` ends."""
        self.pending.clear()
        if self.is_ordered:
            self._ordered.clear()
            self._fresh.clear()
            self.is_ordered = False

    def _sort(self) -> None:
        self.is_ordered = True
        ordered = self._ordered
        ordered += map(_order_of, self.pending.values())
        ordered.sort(reverse=True)

    def _is_stale(self, order: Order) -> bool:
        known = self.pending.get(self._slot_of(order))
        # A timer may have been set again for the same time: the older of equal orders is stale.
        return known is None or known[0] is not order
