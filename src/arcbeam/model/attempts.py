"""Which attempt of which task runs in this process: what names of what it stages can be made of.

Leaf: standard library only. Set by whoever runs a task, in the process in which it runs; read by user code beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a task. What it stages counts if it is committed, and no other attempt of its task is.

    Attributes:
        job: name of the job; the same for all drivers that go on with it. In letters, digits and "-".
        micro_batch: of the job; 0 in a bounded pipeline that runs in phases, which has no micro-batches.
        order: place of the task among those of its micro-batch, the same in each attempt.
        token: no other attempt of any task of the job has it. In letters, digits, "_", "-" and ".".
    """

    job: str
    micro_batch: int
    order: tuple[int, ...]
    token: str


class Here:
    """What this process is at; one task runs at a time.

    Attributes:
        attempt: that runs; None where nothing has said so: on another runner, or between tasks.
    """

    attempt: Attempt | None = None

    @contextlib.contextmanager
    def running(self, attempt: Attempt) -> Iterator[None]:
        """That attempt runs in the block, and none behind it."""
        self.attempt = attempt
        try:
            yield
        finally:
            self.attempt = None


here = Here()
"""Of this process."""
