"""The driver's heartbeat: a note of its activity in the job's folder, and a warning if no task runs.

Owns the intervals. An idle driver writes less often, because each note is a request in an object store. Must not know
how a note is shown.
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
from arcbeam.store.log.drivernote import DriverNote, record_driver
from arcbeam.store.manifest.values import Manifest
from arcbeam.streaming.interfaces import Clock
from arcbeam.streaming.status.activity import Activity
from arcbeam.streaming.status.taskheartbeats import HeardTasks

_LOG = logging.getLogger("arcbeam.streaming")

_BUSY_SECONDS: Final = 10.0
_IDLE_SECONDS: Final = 60.0
SILENT_SECONDS: Final = 30.0
"""The time without a heartbeat of any task after which the driver warns."""
_REMIND: Final = 4
"""The factor between the silence before a warning and the silence before the next one."""


@dataclass
class Heartbeat:
    """Writes the notes of one driver; see `JobDriver`. Called on the driver's thread, at least every few seconds.

    Attributes:
        blobs: the job's folder; None: no other process can read it.
        head: the driver's opening.
        driver: the driver's name.
        clock: the driver's clock.
        activity: the driver's current activity.
        heard: the driver's view of running tasks.
        warn: logs a warning for users.
        seconds: a monotonic clock, in seconds.
        samples: whether the driver takes samples of stages.
    """

    blobs: DurableBlobs | None
    head: Manifest
    driver: str
    clock: Clock
    activity: Activity
    heard: HeardTasks
    warn: Callable[[str], None]
    seconds: Callable[[], float] = time.monotonic
    samples: bool = True
    _trouble: str = ""
    _warns_at: float = SILENT_SECONDS
    _looked: float = field(default=float("-inf"))
    _wrote: float = field(default=float("-inf"))
    _was_idle: bool = False
    _warned: bool = False
    _failures: int = 0
    _since: Timestamp = field(init=False)

    def __post_init__(self) -> None:
        # Not the time of the opening: in a job with a script that is the script's time.
        self._since = self.clock.now()

    def beat(self) -> bool:
        """Write a note if one is due. One is also due soon after a failed attempt, which readers would not expect.

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
        """Return a note of the current activity. Callable from any thread."""
        now, every = self.clock.now(), _IDLE_SECONDS if self.activity.is_idle else _BUSY_SECONDS
        released_when = "Spark has an executor with a free core for this job" if self._trouble else ""
        doing = self.activity.text(now)
        return DriverNote(
            self.head.epoch,
            self.driver,
            os.getpid(),
            self._since,
            now,
            every,
            doing,
            self._trouble,
            released_when,
            self.samples,
            self.activity.failures,
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
            record_driver(self.blobs, self.note())
            self._warned = False
        except StoreError as e:
            _LOG.log(logging.DEBUG if self._warned else logging.WARNING, "'driver' in the job's folder is old: %s", e)
            self._warned = True
