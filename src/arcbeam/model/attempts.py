"""The attempt of a task that runs in this process, for unique names of staged files.

A leaf: standard library only. The code that runs a task sets it, in the task's process; user code reads it there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass


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


class Here:
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


here = Here()
"""The state of this process."""
