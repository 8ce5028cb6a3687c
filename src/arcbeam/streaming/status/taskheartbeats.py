"""Heartbeats of the tasks of a micro-batch: small files that long tasks write, so that the driver knows that they run.

Owns both sides. Spark reports nothing to its driver, with Connect or without, while a job waits for an executor. A task
that ends within seconds writes no file, so usual micro-batches cost none. Must not know why no task runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from arcbeam.errors import ArcbeamError
from arcbeam.store.jobtemp.location import JobLocation

_SECONDS: Final = 5.0
"""Interval between two heartbeats of a task, and before its first."""
_BEAT: Final = struct.Struct("<qqq")
"""Micro-batch, its run, and a number that no other heartbeat of the process has."""
_BEATS: Final = "beats/"


class _Beating:
    """The tasks that run in this process, and the thread that writes for them."""

    def __init__(self) -> None:
        self._start()
        os.register_at_fork(after_in_child=self._start)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[int, tuple[JobLocation, str, int, int, float]] = {}
        self._ids = itertools.count()
        self._thread: threading.Thread | None = None

    def add(self, location: JobLocation, name: str, micro_batch: int, attempt: int) -> int:
        id = next(self._ids)
        with self._lock:
            self._tasks[id] = location, name, micro_batch, attempt, time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="beats", daemon=True)
                self._thread.start()
        return id

    def remove(self, id: int) -> None:
        with self._lock:
            self._tasks.pop(id, None)

    def _beat(self) -> None:
        for number in itertools.count():
            time.sleep(_SECONDS)
            with self._lock:
                tasks = list(self._tasks.values())
            for location, name, micro_batch, attempt, began in tasks:
                if time.monotonic() - began >= _SECONDS:
                    with contextlib.suppress(ArcbeamError, OSError):
                        location.put_bytes(_BEATS + name, _BEAT.pack(micro_batch, attempt, number))


_beating = _Beating()


@contextlib.contextmanager
def beating(location: JobLocation, level: int, task: int, micro_batch: int, attempt: int) -> Iterator[None]:
    """Write a task's heartbeats every few seconds while the block runs."""
    # SUBTLE: not named by attempt, so that a retry replaces the file of the failed attempt.
    id = _beating.add(location, f"{level}-{task}", micro_batch, attempt)
    try:
        yield
    finally:
        _beating.remove(id)


class Heard:
    """The driver's view of running tasks.

    Args:
        location: the job's temporary location.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, location: JobLocation, clock: Callable[[], float] = time.monotonic) -> None:
        self._location, self._clock = location, clock
        self._run: tuple[int, int] | None = None
        self._beats: dict[str, bytes] = {}
        self._last = 0.0

    def silent(self, run: tuple[int, int] | None) -> float:
        """Return for how many seconds no task of a micro-batch has sent a heartbeat; 0 if no micro-batch runs.

        Call this every few seconds. It reads files only if the run takes longer than the heartbeat interval.

        Args:
            run: the micro-batch and the run that Spark runs; None if none runs.
        """
        now = self._clock()
        if run is None or run != self._run:
            self._run, self._last = run, now
            return 0.0
        if now - self._last > _SECONDS:
            beats = self._found(run)
            if any(self._beats.get(name) != beat for name, beat in beats.items()):
                self._last = now
            self._beats = beats
        return now - self._last

    def _found(self, run: tuple[int, int]) -> dict[str, bytes]:
        found = {}
        with contextlib.suppress(ArcbeamError, OSError, struct.error):
            for name in self._location.list(_BEATS):
                beat = self._location.get_bytes(name)
                if _BEAT.unpack(beat)[:2] == run:
                    found[name] = beat
        return found
