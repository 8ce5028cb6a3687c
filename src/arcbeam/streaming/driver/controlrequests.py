"""What reaches a driver from outside: the time, events, and requests in the job's folder.

Owns waiting, and the thread that reads requests from the folder. Must not know what any of them means.
"""

from __future__ import annotations

import logging
import queue
import threading
import time

from typing_extensions import override

from arcbeam.engine.coordinator import Event
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.store.blobs.errors import StoreError
from arcbeam.streaming.driver.requests import RequestQueue
from arcbeam.streaming.interfaces import Clock, WaitingInbox

_LOG = logging.getLogger("arcbeam.streaming")

_WAIT_SECONDS_MAX = 60.0
"""Seconds. After this time the clock is read again: it may have been set, or the machine may have slept."""

_LOOKS_SECONDS = 1.0
"""Interval between two checks for requests. In an object store each check is a request: about 90,000 a day."""


_FORGETS_EVERY = 300
"""Checks between two removals of old answers and samples: about five minutes."""


class WallClock(Clock):
    """See `arcbeam.streaming.interfaces.Clock`: the system's time, but it never goes back.

    When the system's clock is set back, this clock continues at normal speed until the system's clock has caught up. So
    what is due in ten seconds is due in ten seconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last, self._looked = MIN_TIMESTAMP, time.monotonic_ns()

    @override
    def now(self) -> Timestamp:
        with self._lock:
            looked = time.monotonic_ns()
            passed = max(0, looked - self._looked) // 1000
            self._last = Timestamp(max(time.time_ns() // 1000, self._last + passed))
            self._looked = looked
            return self._last

    def start_at(self, moment: Timestamp) -> None:
        """Make the time now at least `moment`, a time that another driver recorded; its clock may have been ahead."""
        with self._lock:
            self._last = max(self._last, moment)


class EventQueue(WaitingInbox):
    """See `arcbeam.streaming.interfaces.WaitingInbox`."""

    def __init__(self, clock: WallClock) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._clock = clock

    @override
    def put(self, event: Event) -> None:
        self._events.put(event)

    @override
    def next(self, until: Timestamp | None) -> Event | None:
        seconds = None if until is None else min(max(0.0, (until - self._clock.now()) / 1e6), _WAIT_SECONDS_MAX)
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return None


class RequestWatch:
    """Checks for requests while the block runs. If the store fails, the next check tries again.

    Args:
        requests: receives the requests.
        job: the job's id, for the thread's name.
    """

    def __init__(self, requests: RequestQueue, job: str) -> None:
        self._requests = requests
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"requests-{job}", daemon=True)

    def __enter__(self) -> RequestWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        # A store that does not answer must not keep the job from ending.
        self._thread.join(2 * _LOOKS_SECONDS)

    def _watch(self) -> None:
        warned = False
        looks = 0
        while True:
            if looks % _FORGETS_EVERY == 0:
                try:
                    self._requests.forget_old()
                except StoreError as e:
                    _LOG.debug("could not remove old answers and samples: %s", e)
            looks += 1
            try:
                self._requests.look()
                warned = False
            except Exception as e:
                # After any error: the next check may succeed, and control requests must not stop working silently.
                level = logging.DEBUG if warned else logging.WARNING
                _LOG.log(level, "could not check for requests to the job: %s: %s", type(e).__name__, e)
                warned = True
            if self._ended.wait(_LOOKS_SECONDS):
                return
