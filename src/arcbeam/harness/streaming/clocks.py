"""The clock of a task: that of its host, as user code sees it, beside that of the job.

Owns how far apart they are. What is due when is the engine's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from apache_beam.utils.timestamp import Timestamp as SdkTimestamp

from arcbeam.model.timestamps import Timestamp


def sdk_time() -> Timestamp:
    """What the clock shows by which the SDK counts delays."""
    return Timestamp(SdkTimestamp.now().micros)


class TaskClock:
    """By which it is decided when something is due that user code sets, by the clock that it sees.

    The job's clock never goes back, and a host's may: it is set back, or was never right. What is due in ten seconds
    is due in ten seconds nevertheless. A host that is ahead is believed: how long a task has waited for it, nobody
    knows.

    Args:
        told: the job's time when the task's micro-batch was planned; None: the host's is right.
        here: the host's time.
        running: nanoseconds, of a clock that nobody sets.
    """

    def __init__(
        self,
        told: Timestamp | None = None,
        here: Callable[[], Timestamp] = sdk_time,
        running: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._told, self._here, self._running = told, here, running
        self._began = running()

    def now(self) -> Timestamp:
        """The job's time: the host's, but not earlier than it must be."""
        here = self._here()
        return Timestamp(here + self._behind(here))

    def behind(self) -> int:
        """How much later, in microseconds, a moment by the host's clock is by that of the job."""
        return self._behind(self._here())

    def _behind(self, here: Timestamp) -> int:
        if self._told is None:
            return 0
        return max(0, self._told + (self._running() - self._began) // 1000 - here)
