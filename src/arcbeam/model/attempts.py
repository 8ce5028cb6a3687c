"""What the code that runs a task and the user code in it tell each other: the attempt, and why a restriction waits.

A leaf: standard library only. User code reads the attempt, for unique names of staged files.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

IN_SDK_WORKER: Final = "arcbeam/"
"""What the ids of bundle descriptors for SDK workers begin with: by that, user code there knows who runs it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a task. What it stages counts if it is committed; then no other attempt of its task is.

    Attributes:
        job: the name of the job, the same for all its drivers. In letters, digits and "-".
        micro_batch: of the job; 0 in a bounded pipeline, which runs in phases without micro-batches.
        order: the place of the task among those of its micro-batch, the same in each attempt.
        token: unique among all attempts of the job. In letters, digits, "_", "-" and ".".
    """

    job: str
    micro_batch: int
    order: tuple[int, ...]
    token: str


class ProcessState:
    """The state of this process, which runs one task after the other.

    Attributes:
        attempt: the running attempt; None if it is unknown: on another runner, or between tasks.
    """

    attempt: Attempt | None = None

    @contextlib.contextmanager
    def running(self, attempt: Attempt) -> Iterator[None]:
        """Set the running attempt within the block; afterwards there is none."""
        self.attempt = attempt
        try:
            yield
        finally:
            self.attempt = None


process_state = ProcessState()
"""The state of this process."""


class WaitReason(threading.local):
    """Why the restriction that a thread processes defers its rest, for the status of the job.

    Attributes:
        reason: what it waits for, as part of a sentence; "" if its DoFn has not said it.
    """

    reason: str = ""

    def take(self) -> str:
        """Return the reason, and forget it."""
        reason, self.reason = self.reason, ""
        return reason


wait_reason: Final = WaitReason()
"""The state of this thread."""
