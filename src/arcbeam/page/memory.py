"""What the page has read of folders, so that many viewers and many ended jobs cost few reads.

Owns how old each may be. Must not know what is in a folder.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_RUNNING_SECONDS: Final = 0.9
"""A status of a running job is read at most once in this time, for all viewers together."""
_ENDED_SECONDS: Final = 10.0
"""The same for one that has ended, while somebody looks at it: it may be resumed."""
_AGAIN_SECONDS: Final = 60.0
_AGAIN: Final = 5
"""In a second, at most this many of the ended jobs of a list are read again, a minute after the last time."""
_SHARE: Final = 0.2
"""The most of a core that reading the running jobs of a list takes: many large ones are read less often."""
_PAUSE_FACTOR: Final = 10
"""While there are jobs that were never read, the others are read again after this many times as long."""
_FIRST: Final = 3
_WAIT_SECONDS: Final = 0.1
"""A list waits until this many jobs have been read, and then at most this long. A thread reads the rest."""
_LOOK_SECONDS: Final = 5.0
"""The thread ends if no list was requested for this long."""


class Memory(Generic[T]):
    """The statuses of some jobs. Callable from several threads.

    Args:
        ids: of the jobs.
        read: reads a job.
        is_over: whether a job has ended.
        seconds: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        ids: Sequence[str],
        read: Callable[[str], T],
        is_over: Callable[[T], bool],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ids, self._read, self._is_over, self._seconds = ids, read, is_over, seconds
        self._kept: dict[str, tuple[float, T]] = {}
        self._locks = {id: threading.Lock() for id in ids}
        # Of what has been read: when, by id, the longest ago first; and the cost of each running job, in seconds.
        self._running: OrderedDict[str, float] = OrderedDict()
        self._over: OrderedDict[str, float] = OrderedDict()
        self._costs: dict[str, float] = {}
        self._unread = iter(ids)
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._reader: threading.Thread | None = None

    def one(self, id: str) -> T | None:
        """Return a job as it is now; None if there is no such job."""
        return self._fresh(id, _RUNNING_SECONDS, _ENDED_SECONDS) if id in self._locks else None

    def all(self) -> Iterator[T]:
        """Yield the jobs that have been read, in their order; see `unread`."""
        self._looked = self._seconds()
        while self._step():
            if self._seconds() - self._looked > _WAIT_SECONDS and len(self._kept) >= min(_FIRST, len(self._ids)):
                self._read_on()
                break
        for id in self._ids:
            if (kept := self._kept.get(id)) is not None:
                yield kept[1]

    def unread(self) -> int:
        """Return how many jobs were never read."""
        return len(self._ids) - len(self._kept)

    def _step(self) -> bool:
        """Read the job that needs it most. Return False if none does."""
        with self._lock:
            id = self._next()
        if id is None:
            return False
        self._fresh(id, 0.0, 0.0)
        return True

    def _next(self) -> str | None:
        now = self._seconds()
        pause = max(_RUNNING_SECONDS, sum(self._costs.values()) / _SHARE)
        # First all jobs have to be known.
        pause *= _PAUSE_FACTOR if self.unread() else 1
        for known, age in ((self._running, pause), (self._over, _AGAIN_SECONDS)):
            for id, at in known.items():
                if now - at < age or (known is self._over and not self._may_repeat(now)):
                    break
                known[id] = now
                known.move_to_end(id)
                return id
        # Those that are opened meanwhile have been read.
        return next((id for id in self._unread if id not in self._kept), None)

    def _may_repeat(self, now: float) -> bool:
        recent = sum(1 for _ in itertools.takewhile(lambda at: now - at < 1.0, reversed(self._over.values())))
        return recent < _AGAIN

    def _fresh(self, id: str, running_age: float, ended_age: float) -> T:
        """Return a job, read if it is older than that."""
        with self._locks[id]:
            if (kept := self._kept.get(id)) is not None:
                at, job = kept
                if self._seconds() - at < (ended_age if self._is_over(job) else running_age):
                    return job
            began = time.thread_time()
            job = self._read(id)
            cost, now = time.thread_time() - began, self._seconds()
            with self._lock:
                self._kept[id] = now, job
                here, other = (self._over, self._running) if self._is_over(job) else (self._running, self._over)
                other.pop(id, None)
                here[id] = now
                here.move_to_end(id)
                self._costs.pop(id, None)
                if here is self._running:
                    self._costs[id] = cost
            return job

    def _read_on(self) -> None:
        with self._lock:
            if self._reader is None:
                self._reader = threading.Thread(target=self._read_while_looked, name="page-jobs", daemon=True)
                self._reader.start()

    def _read_while_looked(self) -> None:
        while self._seconds() - self._looked < _LOOK_SECONDS:
            # Pauses, so that requests are answered meanwhile.
            time.sleep(0.001 if self._step() else _WAIT_SECONDS)
        with self._lock:
            self._reader = None


class RecentReads(Generic[T]):
    """What was read of some jobs most recently. Callable from several threads.

    Args:
        read: reads it for a job.
        age: seconds after which it is read again.
        most: the number of jobs for which it is kept.
        seconds: a monotonic clock, in seconds.
    """

    def __init__(
        self, read: Callable[[str], T], age: float, most: int, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._age, self._most, self._seconds = read, age, most, seconds
        self._found: OrderedDict[str, tuple[float, T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, id: str, *, fresh: bool = False) -> T:
        """Return it for a job.

        Args:
            id: of the job.
            fresh: read it now.
        """
        # One lock for all: what is read here is large, and is read once.
        with self._lock:
            at, found = self._found.get(id, (float("-inf"), None))
            if fresh or found is None or self._seconds() - at >= self._age:
                found = self._read(id)
                self._found[id] = self._seconds(), found
                self._found.move_to_end(id)
                while len(self._found) > self._most:
                    self._found.popitem(last=False)
            return found
