"""What reaches a driver from outside: the time, events that wait for it, and requests in the job's folder.

Owns waiting, and the thread that looks into the folder. Must not know what any of it means.
"""

from __future__ import annotations

import logging
import queue
import threading
import time

from arcbeam.engine.coordinator import Event
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.store.blobs.errors import StoreError
from arcbeam.streaming.driver.requests import RequestDesk

_LOG = logging.getLogger("arcbeam.streaming")

_LONGEST_WAIT = 60.0
"""Seconds. Whoever waits longer looks at the clock again: it may have been set, or the machine slept."""

_LOOKS_SECONDS = 1.0
"""How often requests are looked for. In an object store each look is a request, too: some 90,000 a day."""


_FORGETS_EVERY = 3600
"""Looks between two removals of old answers: about an hour."""


class WallClock:
    """See `arcbeam.streaming.interfaces.Clock`: the system's time, but it never goes back.

    When the system's clock is set back, this one goes on as fast as time does, until the other has come to where it is:
    what is due in ten seconds is due in ten seconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last, self._looked = MIN_TIMESTAMP, time.monotonic_ns()

    def now(self) -> Timestamp:
        """See `Clock`."""
        with self._lock:
            looked = time.monotonic_ns()
            passed = max(0, looked - self._looked) // 1000
            self._last = Timestamp(max(time.time_ns() // 1000, self._last + passed))
            self._looked = looked
            return self._last

    def start_at(self, moment: Timestamp) -> None:
        """It is not earlier than that now: what was recorded by another, whose clock may have been ahead."""
        with self._lock:
            self._last = max(self._last, moment)


class EventQueue:
    """See `arcbeam.streaming.interfaces.WaitingInbox`."""

    def __init__(self, clock: WallClock) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._clock = clock

    def put(self, event: Event) -> None:
        """See `Inbox`."""
        self._events.put(event)

    def next(self, until: Timestamp | None) -> Event | None:
        """See `WaitingInbox`."""
        seconds = None if until is None else min(max(0.0, (until - self._clock.now()) / 1e6), _LONGEST_WAIT)
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return None


class RequestWatch:
    """Looks for requests while the block runs. What the store does not give it, the next look does.

    Args:
        desk: takes them.
        job: whose, for the thread's name.
    """

    def __init__(self, desk: RequestDesk, job: str) -> None:
        self._desk = desk
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"requests-{job}", daemon=True)

    def __enter__(self) -> RequestWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        # A store that does not answer keeps no job from ending.
        self._thread.join(2 * _LOOKS_SECONDS)

    def _watch(self) -> None:
        told = False
        looks = 0
        while True:
            if looks % _FORGETS_EVERY == 0:
                try:
                    self._desk.forget_old()
                except StoreError as e:
                    _LOG.debug("old answers stay: %s", e)
            looks += 1
            try:
                self._desk.look()
                told = False
            except Exception as e:
                # Whatever it is: the next look may go better, and steering must not end unseen.
                level = logging.DEBUG if told else logging.WARNING
                _LOG.log(level, "requests to the job cannot be looked for: %s: %s", type(e).__name__, e)
                told = True
            if self._ended.wait(_LOOKS_SECONDS):
                return
