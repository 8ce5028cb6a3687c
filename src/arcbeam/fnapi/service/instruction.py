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
from typing import Any, Final

from arcbeam.sizes import threshold

_MOST_WAITING: Final = threshold(16 << 20)
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
class Asked:
    """The worker asks for state; its bundle waits for the answer.

    Attributes:
        request: `StateRequest`.
    """

    request: Any


Arrival = Output | Responded | Asked


class Instruction:
    """An instruction that was sent to a worker.

    Args:
        id: unique for the worker.
        changed: condition that is notified after each change.
        problem: returns why no answer will come any more; None while one may come. Called with the lock.

    Attributes:
        id: its id.
    """

    def __init__(self, id: str, changed: threading.Condition, problem: Callable[[], Exception | None]) -> None:
        self.id = id
        self._changed, self._problem = changed, problem
        self._arrived: deque[Arrival] = deque()
        self._bytes = 0
        self._open = True

    def add(self, arrival: Arrival) -> bool:
        """Add an arrival, for the task's thread. Waits while too much waits already.

        Returns:
            Whether it was added: not after `close`.
        """
        with self._changed:
            if isinstance(arrival, Output):
                while self._open and self._bytes > _MOST_WAITING:
                    self._changed.wait()
                self._bytes += len(arrival.data)
            if self._open:
                self._arrived.append(arrival)
                self._changed.notify_all()
            return self._open

    def take(self, until: Callable[[], bool], seconds: float | None = None) -> list[Arrival]:
        """Return what has arrived. If that is nothing, wait for something, or until a condition is true.

        Args:
            until: evaluated with the lock, at each change.
            seconds: to wait at most; None: any time.

        Raises:
            SdkWorkerLostError: nothing can arrive any more.
        """
        end = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while not self._arrived and not until():
                problem = self._problem()
                if problem is not None:
                    raise problem
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            arrived, self._bytes = list(self._arrived), 0
            self._arrived.clear()
            self._changed.notify_all()
        return arrived

    @property
    def has_arrivals(self) -> bool:
        """Whether something has arrived that was not taken."""
        return bool(self._arrived)

    def drop_more(self) -> None:
        """Drop what arrives later; the caller has the lock. What has arrived can still be taken."""
        self._open = False

    def close(self) -> list[Arrival]:
        """End the task's interest: what still arrives is dropped. Return what was not taken."""
        with self._changed:
            self._open = False
            left = list(self._arrived)
            self._arrived.clear()
            self._changed.notify_all()
        return left
