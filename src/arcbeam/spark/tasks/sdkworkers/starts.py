"""Environments whose SDK workers do not start: what is probably wrong with them lasts, so few retries are useful.

Owns the record of the environments of which a worker has started since the job began to run here, and the time for
retries of the others. Light: tasks import it before the worker's setup.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Final

from arcbeam.errors import SdkWorkerStartError
from arcbeam.fnapi.lost import SdkWorkerNotStartedError
from arcbeam.sizes import memo
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.jobtemp.location import JobLocation

_STARTED: Final = "sdk-workers/"
_SECONDS: Final = 120.0
"""From the first failure to the last retry. A service may be started after the job."""
_REMEDY: Final = "correct the environment's command, image or service, then resume the job or submit it again"
_LOG = logging.getLogger("arcbeam.task")

_known: Final[dict[tuple[str, bytes], bool]] = memo()
"""What this process has recorded, by location and environment."""


# In the worker.


def started(location: JobLocation, environments: Iterable[bytes]) -> None:
    """Record that workers of serialized environments have started."""
    for environment in environments:
        if (location.url, environment) not in _known:
            location.put_bytes(f"{_prefix(environment)}{uuid.uuid4().hex}", b"")
            _known[location.url, environment] = True


def described(location: JobLocation, error: SdkWorkerNotStartedError) -> SdkWorkerStartError | None:
    """Return the error to record, which ends Spark's tries at once; None if a worker has started before."""
    try:
        if location.list(_prefix(error.environment)):
            return None
    except StoreError:
        _LOG.debug("cannot find out whether a worker has started before", exc_info=True)
    return SdkWorkerStartError(str(error), _REMEDY, ended=error.ended)


def _prefix(environment: bytes) -> str:
    return f"{_STARTED}{hashlib.sha256(environment).hexdigest()[:16]}-"


# On the driver.


class StartFailures:
    """For how long micro-batches have failed because no worker starts.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None

    def may_go_better(self, began: float) -> bool:
        """Return whether to retry after this failure.

        Args:
            began: when the run of the micro-batch began, in seconds of the clock.
        """
        if self._since is None:
            self._since = began
        return self._clock() - self._since < _SECONDS

    def ended(self) -> None:
        """A micro-batch has run."""
        self._since = None
