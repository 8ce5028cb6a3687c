"""A bundle in an SDK worker, as the task's thread sees it.

Owns what has come for the bundle and was not taken yet. One thread of the task sends and takes; threads of the server
add. Must not know what elements are.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from arcbeam.sizes import threshold

_HELD_BYTES_MAX: Final = threshold(16 << 20)
"""Bytes of outputs that may wait for the task's thread. Then the worker's stream is not read, so the worker waits."""


@dataclass(frozen=True, slots=True)
class Output:
    """Encoded elements of one of the bundle's outputs.

    Attributes:
        transform: id of the sink in the descriptor; of the transform that sets timers.
        data: the elements. One may begin in a message and end in a later one.
        last: no more follow for this sink.
        family: the family of timers; None for elements.
    """

    transform: str
    data: bytes
    last: bool
    family: str | None = None


@dataclass(frozen=True, slots=True)
class Responded:
    """The worker has ended its work on the instruction.

    Attributes:
        response: `InstructionResponse`.
    """

    response: Any


@dataclass(frozen=True, slots=True)
class StateRequested:
    """The worker asks for state; its bundle waits for the answer.

    Attributes:
        request: `StateRequest`.
    """

    request: Any


Incoming = Output | Responded | StateRequested


class Watching(Protocol):
    """What watches an instruction while the task's thread waits for it."""

    @property
    def pause(self) -> float:
        """Seconds until the next call of `look`."""

    def look(self) -> None:
        """Nothing has arrived."""

    def moved(self) -> None:
        """Something has arrived."""

    def may_run(self) -> tuple[str, ...]:
        """Return the names of the transforms of which one runs."""


class Instruction:
    """An instruction that was sent to a worker.

    Args:
        id: unique for the worker.
        kind: the field of its `InstructionRequest`, and of the response to it.
        changed: condition that is notified after each change.
        problem: returns why no answer will come any more; None while one may come. Called with the lock.

    Attributes:
        id: its id.
        kind: its kind.
        has_response: whether the worker has responded.
        has_output: whether outputs have arrived, taken or not.
        is_embedded: whether they were in the response.
    """

    def __init__(
        self, id: str, kind: str, changed: threading.Condition, problem: Callable[[], Exception | None]
    ) -> None:
        self.id, self.kind = id, kind
        self.has_response = self.has_output = self.is_embedded = False
        self._changed, self._problem = changed, problem
        self._arrived: deque[Incoming] = deque()
        self._bytes = 0
        self._open = True
        self._watch: Watching | None = None

    def add(self, arrival: Incoming) -> bool:
        """Add an arrival, for the task's thread. Waits while too much waits already.

        Returns:
            Whether it was added: not after `close`.
        """
        with self._changed:
            self.has_response = self.has_response or isinstance(arrival, Responded)
            if isinstance(arrival, Output):
                self.has_output = True
                while self._open and self._bytes > _HELD_BYTES_MAX:
                    self._changed.wait()
                self._bytes += len(arrival.data)
            if self._open:
                self._arrived.append(arrival)
                self._changed.notify_all()
            return self._open

    def watched_by(self, watch: Watching) -> None:
        """Set what is called while `take` waits."""
        self._watch = watch

    def running(self) -> tuple[str, ...]:
        """Return the names of the transforms of which one runs, if that is known."""
        return () if self._watch is None else self._watch.may_run()

    def take(self, until: Callable[[], bool], seconds: float | None = None) -> list[Incoming]:
        """Return what has arrived. If that is nothing, wait for something, or until a condition is true.

        Args:
            until: evaluated with the lock, at each change.
            seconds: to wait at most; None: any time.

        Raises:
            SdkWorkerLostError: nothing can arrive any more.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while not self._waited(until, end):
            assert self._watch is not None
            self._watch.look()
        with self._changed:
            arrived, self._bytes = list(self._arrived), 0
            self._arrived.clear()
            self._changed.notify_all()
        if arrived and self._watch is not None:
            self._watch.moved()
        return arrived

    def _waited(self, until: Callable[[], bool], end: float | None) -> bool:
        """Wait; return False if it is time to look at the watch instead."""
        look = None
        with self._changed:
            while not self._arrived and not until():
                problem = self._problem()
                if problem is not None:
                    raise problem
                now = time.monotonic()
                if end is not None and now >= end:
                    break
                if self._watch is not None:
                    look = look or now + self._watch.pause
                    if now >= look:
                        return False
                self._changed.wait(min((each - now for each in (end, look) if each is not None), default=None))
            return True

    @property
    def has_arrivals(self) -> bool:
        """Whether something has arrived that was not taken."""
        return bool(self._arrived)

    def drop_more(self) -> None:
        """Drop what arrives later; the caller has the lock. What has arrived can still be taken."""
        self._open = False

    def close(self) -> list[Incoming]:
        """End the task's interest: what still arrives is dropped. Return what was not taken."""
        with self._changed:
            self._open = False
            left = list(self._arrived)
            self._arrived.clear()
            self._changed.notify_all()
        return left
