"""Reads the script of a job for its driver.

Owns the thread that waits for a service to send the next event. Must not know when events are needed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from arcbeam.engine.coordinator import DriverFailed, ScriptRead
from arcbeam.errors import ArcbeamError
from arcbeam.model.script import Script, ScriptEvent
from arcbeam.streaming.interfaces import Clock, Inbox

_LOG = logging.getLogger("arcbeam.streaming")


class Events(Protocol):
    """The events of a script, in order; see `arcbeam.translate.teststream.TestStreamEvents`."""

    def __next__(self) -> ScriptEvent:
        """Return the next event; may wait for it.

        Raises:
            ArcbeamError: the script cannot be read, or is invalid.
        """

    def close(self) -> None:
        """Stop reading; a thread that waits for the next event gets an error. Callable from any thread."""


class ScriptReader:
    """See `arcbeam.streaming.interfaces.Scripted`.

    Args:
        script: the script to read.
        events_of: returns the events of a script after the first `number` of them.
        inbox: receives the events.
        clock: the driver's clock.
    """

    def __init__(self, script: Script, events_of: Callable[[Script, int], Events], inbox: Inbox, clock: Clock) -> None:
        self._script, self._events_of, self._inbox, self._clock = script, events_of, inbox, clock
        self._worker = ThreadPoolExecutor(1, "script")
        self._events: Events | None = None
        self._lock = threading.Lock()
        self._closed = False

    def read(self, number: int) -> None:
        """See `Scripted`. Each event is requested once, so only the first number must be searched for."""
        self._worker.submit(self._read, number)

    def _read(self, number: int) -> None:
        try:
            if self._events is None:
                events = self._events_of(self._script, number)
                with self._lock:
                    self._events = events
                    if self._closed:
                        events.close()
                        return
            event = next(self._events)
        except ArcbeamError as e:
            self._inbox.put(DriverFailed(self._clock.now(), str(e)))
        except BaseException as e:
            _LOG.debug("could not read the script of '%s'", self._script.name, exc_info=True)
            why = f"could not read the script of '{self._script.name}': {type(e).__name__}: {e}"
            self._inbox.put(DriverFailed(self._clock.now(), why))
        else:
            self._inbox.put(ScriptRead(self._clock.now(), number, event))

    def close(self) -> None:
        """Stop reading."""
        with self._lock:
            self._closed = True
            if self._events is not None:
                self._events.close()
        self._worker.shutdown(wait=False, cancel_futures=True)
