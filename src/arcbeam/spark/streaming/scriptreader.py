"""The script of a job, read for its driver.

Owns the thread that waits for a service to say what is next. Must not know when anybody asks for it.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

from arcbeam.engine.coordinator import DriverFailed, ScriptRead
from arcbeam.errors import ArcbeamError
from arcbeam.model.script import Script
from arcbeam.streaming.interfaces import Clock, Inbox
from arcbeam.translate.teststream import Events, events_of

_LOG = logging.getLogger("arcbeam.streaming")


class ScriptReader:
    """See `arcbeam.streaming.interfaces.Scripted`.

    Args:
        script: what to read.
        inbox: for answers.
        clock: the time.
    """

    def __init__(self, script: Script, inbox: Inbox, clock: Clock) -> None:
        self._script, self._inbox, self._clock = script, inbox, clock
        self._worker = ThreadPoolExecutor(1, "script")
        self._events: Events | None = None
        self._lock = threading.Lock()
        self._closed = False

    def read(self, number: int) -> None:
        """See `Scripted`: each event is asked for once, so only the first number must be looked for."""
        self._worker.submit(self._read, number)

    def _read(self, number: int) -> None:
        try:
            if self._events is None:
                events = events_of(self._script, number)
                with self._lock:
                    self._events = events
                    if self._closed:
                        events.close()
                        return
            event = next(self._events)
        except ArcbeamError as e:
            self._inbox.put(DriverFailed(self._clock.now(), str(e)))
        except BaseException as e:
            _LOG.debug("the script of '%s' could not be read", self._script.name, exc_info=True)
            why = f"the script of '{self._script.name}' could not be read: {type(e).__name__}: {e}"
            self._inbox.put(DriverFailed(self._clock.now(), why))
        else:
            self._inbox.put(ScriptRead(self._clock.now(), number, event))

    def close(self) -> None:
        """Nothing more will be read."""
        with self._lock:
            self._closed = True
            if self._events is not None:
                self._events.close()
        self._worker.shutdown(wait=False, cancel_futures=True)
