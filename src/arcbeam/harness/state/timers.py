"""Timers of a stage's keys: what user code sets and clears, and which fires next.

Owns the last word on each timer of a key, the order of firing, and how timers leave the SDK without being encoded. Must
not know bundles, state, or what time it is.
"""

from __future__ import annotations

import heapq
from typing import Any

from apache_beam.runners.worker.bundle_processor import TimerInfo

Slot = tuple["Family", str, Any]
"""What one timer of a key is known by: its family, its dynamic tag, its window."""


class KeyTimers:
    """The pending timers of one key.

    A timer is pending from its last `set` until it is cleared or taken. Invariant: `_heaps`, once made, hold every
    pending timer, and possibly some that were replaced since.
    """

    __slots__ = ("_heaps", "_order", "_pending")

    def __init__(self) -> None:
        self._pending: dict[Slot, Any] = {}
        self._heaps: tuple[list[Any], list[Any]] | None = None
        self._order = 0

    def write(self, family: Family, timer: Any) -> None:
        """Takes the SDK's word: the timer is set, set anew or cleared."""
        slot = (family, timer.dynamic_timer_tag, timer.windows[0])
        if timer.clear_bit:
            self._pending.pop(slot, None)
            return
        self._pending[slot] = timer
        if self._heaps is not None:
            self._push(slot, timer)

    def take_event(self, limit: int) -> tuple[Family, Any] | None:
        """The event-time timer with the earliest timestamp, no longer pending.

        Args:
            limit: microseconds; None is returned if there is none up to here.
        """
        return self._take(False, limit)

    def take_processing(self, limit: int) -> tuple[Family, Any] | None:
        """The processing-time timer that is due first, no longer pending; None if none is due at `limit`."""
        return self._take(True, limit)

    def due(self) -> int | None:
        """When the first processing-time timer is due, in microseconds since 1970; None if there is none."""
        if not self._pending:
            return None
        first = self._first(True)
        return None if first is None else int(first[0])

    def clear(self) -> None:
        """Forgets all of them; the object may serve another key."""
        self._pending.clear()
        self._heaps = None

    def _take(self, processing: bool, limit: int) -> tuple[Family, Any] | None:
        if not self._pending:
            return None
        first = self._first(processing)
        if first is None or first[0] > limit:
            return None
        _, _, slot, timer = first
        del self._pending[slot]
        return slot[0], timer

    def _first(self, processing: bool) -> Any:
        if self._heaps is None:
            self._heaps = ([], [])
            for slot, timer in self._pending.items():
                self._push(slot, timer)
        heap = self._heaps[processing]
        while heap:
            if self._pending.get(heap[0][2]) is heap[0][3]:
                return heap[0]
            heapq.heappop(heap)
        return None

    def _push(self, slot: Slot, timer: Any) -> None:
        # Timers of equal timestamps fire in the order in which they were set.
        self._order += 1
        assert self._heaps is not None
        heapq.heappush(self._heaps[slot[0].processing], (timer.fire_timestamp.micros, self._order, slot, timer))


class Inbox:
    """Where timers that user code writes go: to the key that is being processed.

    Attributes:
        timers: of that key.
    """

    __slots__ = ("timers",)

    def __init__(self) -> None:
        self.timers = KeyTimers()


class Family:
    """A timer family of the stage's root.

    It takes the place of both things the SDK writes timers through, their coder and their output stream: the SDK's
    `Timer` objects are kept as they are.

    Attributes:
        operation: the SDK's operation that fires it.
        name: as the SDK knows it.
        processing: it follows the processing-time clock, not the watermark.
    """

    __slots__ = ("_inbox", "name", "operation", "processing")

    def __init__(self, operation: Any, name: str, processing: bool, inbox: Inbox) -> None:
        self.operation = operation
        self.name = name
        self.processing = processing
        self._inbox = inbox
        operation.add_timer_info(name, TimerInfo(timer_coder_impl=self, output_stream=self))

    def encode_to_stream(self, timer: Any, stream: Any, nested: bool) -> None:
        """Part of the SDK's coder: user code set or cleared a timer."""
        self._inbox.timers.write(self, timer)

    def maybe_flush(self) -> None:
        """Part of the SDK's stream."""

    def close(self) -> None:
        """Part of the SDK's stream."""
