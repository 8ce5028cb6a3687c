"""The clock of a task: the host's time, which user code sees, and the job's time.

Owns the difference between them. The engine decides what is due when.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from apache_beam.utils.timestamp import Timestamp as SdkTimestamp

from arcbeam.model.timestamps import Timestamp


def sdk_time() -> Timestamp:
    """Return the time by which the SDK counts delays."""
    return Timestamp(SdkTimestamp.now().micros)


class TaskClock:
    """Converts times that user code sets by its host's clock to the job's time.

    The job's time never goes back, but a host's clock may: it is set back, or was always wrong. Nevertheless a timer
    that is set for ten seconds from now fires in ten seconds. A host's clock that is ahead is trusted, because it is
    unknown how long a task has waited for the host.

    Args:
        job_time: the job's time when the task's micro-batch was planned; None: the host's clock is correct.
        here: returns the host's time.
        running: returns nanoseconds of a monotonic clock.
    """

    def __init__(
        self,
        job_time: Timestamp | None = None,
        here: Callable[[], Timestamp] = sdk_time,
        running: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._job_time, self._here, self._running = job_time, here, running
        self._began = running()

    def now(self) -> Timestamp:
        """Return the job's time: the host's time, or later if the host's clock lags."""
        here = self._here()
        return Timestamp(here + self._lag(here))

    def lag(self) -> int:
        """Return by how many microseconds the host's clock lags the job's time; 0 if it is ahead."""
        return self._lag(self._here())

    def _lag(self, here: Timestamp) -> int:
        if self._job_time is None:
            return 0
        return max(0, self._job_time + (self._running() - self._began) // 1000 - here)
