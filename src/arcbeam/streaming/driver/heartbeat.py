"""That a driver lives, and what it does: told every few seconds in the job's folder, and warned of if it hears nothing.

Owns how often. An idle driver writes seldom: in an object store each note is a request. Must not know what is shown of
a note.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.log.drivernote import DriverNote, leave_driver_note
from arcbeam.store.manifest.values import Manifest
from arcbeam.streaming.interfaces import Clock
from arcbeam.streaming.status.activity import Activity
from arcbeam.streaming.status.taskheartbeats import Heard

_LOG = logging.getLogger("arcbeam.streaming")

_BUSY_SECONDS: Final = 10.0
_IDLE_SECONDS: Final = 60.0
SILENT_SECONDS: Final = 30.0
"""After that long without a sign of any task people are warned."""
_REMIND: Final = 4
"""Each warning comes after so many times the silence of the one before."""


@dataclass
class Heartbeat:
    """Tells of one driver; see `JobDriver`. Called on the driver's thread, at least every few seconds.

    Attributes:
        blobs: the job's folder; None: no other process can look there.
        head: the driver's opening.
        driver: who it is.
        clock: the driver's.
        activity: what it does.
        heard: what it hears of tasks.
        warn: tells people.
        seconds: of a clock that only goes on.
    """

    blobs: DurableBlobs | None
    head: Manifest
    driver: str
    clock: Clock
    activity: Activity
    heard: Heard
    warn: Callable[[str], None]
    seconds: Callable[[], float] = time.monotonic
    _trouble: str = ""
    _warns_at: float = SILENT_SECONDS
    _looked: float = field(default=float("-inf"))
    _wrote: float = field(default=float("-inf"))
    _was_idle: bool = False
    _told: bool = False
    _failures: int = 0
    _since: Timestamp = field(init=False)

    def __post_init__(self) -> None:
        # Not the opening's time: in a job with a script that is the script's.
        self._since = self.clock.now()

    def beat(self) -> bool:
        """Writes a note, if it is time to: also soon after a failed try, which readers would not expect.

        Returns:
            True.
        """
        now = self.seconds()
        if now - self._looked >= 1.0:
            self._looked = now
            self._listen()
            idle, failed = self.activity.is_idle, self.activity.failures != self._failures
            self._failures = self.activity.failures
            if failed or now - self._wrote >= (_IDLE_SECONDS if idle and self._was_idle else _BUSY_SECONDS):
                self._wrote, self._was_idle = now, idle
                self._write()
        return True

    def note(self) -> DriverNote:
        """What there is to tell now. Callable from any thread."""
        now, every = self.clock.now(), _IDLE_SECONDS if self.activity.is_idle else _BUSY_SECONDS
        frees = "Spark has an executor with a free core for this job" if self._trouble else ""
        doing = self.activity.text(now)
        return DriverNote(
            self.head.epoch, self.driver, os.getpid(), self._since, now, every, doing, self._trouble, frees
        )

    def _listen(self) -> None:
        running = self.activity.running
        silent = self.heard.silent(running[:2] if running else None)
        if running is None or silent < SILENT_SECONDS:
            self._trouble, self._warns_at = "", SILENT_SECONDS
            return
        self._trouble = (
            f"no task of micro-batch {running[0]} has run for {silent:.0f} s: Spark has no executor or no free core "
            f"for it (see Spark's UI), or user code holds Python's interpreter lock"
        )
        if silent >= self._warns_at:
            self._warns_at = _REMIND * silent
            self.warn(self._trouble)

    def _write(self) -> None:
        if self.blobs is None:
            return
        try:
            leave_driver_note(self.blobs, self.note())
            self._told = False
        except StoreError as e:
            _LOG.log(logging.DEBUG if self._told else logging.WARNING, "'driver' in the job's folder is old: %s", e)
            self._told = True
