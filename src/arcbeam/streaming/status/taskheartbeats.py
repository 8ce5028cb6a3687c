"""Heartbeats of the tasks of a micro-batch: small files, so that the driver knows that tasks run.

Owns both sides. Spark reports nothing to its driver, with Connect or without, while a job waits for an executor. A
process that runs tasks of a micro-batch only for seconds writes no file, so usual micro-batches cost none. Must not
know why no task runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from arcbeam.errors import ArcbeamError
from arcbeam.sizes import cache_size
from arcbeam.store.jobtemp.location import JobLocation

_SECONDS: Final = 5.0
"""Interval between two heartbeats of a process, and before its first in a run of a micro-batch."""
_BEAT: Final = struct.Struct("<qqq")
"""Micro-batch, its run, and a number that no other heartbeat of the process has."""
_BEATS: Final = "beats/"


_RUNS: Final = cache_size(8)


class RunningTasks:
    """The tasks that run in a process.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._tasks: dict[int, tuple[JobLocation, str, int, int, float]] = {}
        self._ids = itertools.count()
        # By job: the run of a micro-batch whose tasks this process runs, and since when.
        self._runs: OrderedDict[str, tuple[int, int, float]] = OrderedDict()

    def add(self, location: JobLocation, name: str, micro_batch: int, attempt: int) -> int:
        """Add a task; return its id."""
        with self._lock:
            run = self._runs.get(location.url)
            if run is None or run[:2] != (micro_batch, attempt):
                run = micro_batch, attempt, self._clock()
            self._runs[location.url] = run
            self._runs.move_to_end(location.url)
            if len(self._runs) > _RUNS:
                self._runs.popitem(last=False)
            id = next(self._ids)
            self._tasks[id] = location, name, *run
        return id

    def remove(self, id: int) -> None:
        """Remove a task that has ended."""
        with self._lock:
            self._tasks.pop(id, None)

    def due(self) -> list[tuple[JobLocation, str, int, int]]:
        """Return location, name, micro-batch and run of each task that sends a heartbeat now.

        It may be short itself: then its process has run others of the same run for long enough.
        """
        with self._lock:
            return [task[:4] for task in self._tasks.values() if self._clock() - task[4] >= _SECONDS]


class _Beating:
    """The thread that writes for the tasks of this process."""

    def __init__(self) -> None:
        self._start()
        os.register_at_fork(after_in_child=self._start)

    def _start(self) -> None:
        self.tasks, self._lock = RunningTasks(), threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="beats", daemon=True)
                self._thread.start()

    def _beat(self) -> None:
        for number in itertools.count():
            time.sleep(_SECONDS)
            for location, name, micro_batch, attempt in self.tasks.due():
                with contextlib.suppress(ArcbeamError, OSError):
                    location.put_bytes(_BEATS + name, _BEAT.pack(micro_batch, attempt, number))


_beating = _Beating()


@contextlib.contextmanager
def beating(location: JobLocation, level: int, task: int, micro_batch: int, attempt: int) -> Iterator[None]:
    """Write a task's heartbeats every few seconds while the block runs."""
    # SUBTLE: not named by attempt, so that a retry replaces the file of the failed attempt.
    tasks = _beating.tasks
    id = tasks.add(location, f"{level}-{task}", micro_batch, attempt)
    _beating.begin()
    try:
        yield
    finally:
        tasks.remove(id)


class HeardTasks:
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
