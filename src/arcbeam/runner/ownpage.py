"""The page of a job in this process (`--page_address`): the job as a service with one job.

Part of the composition root. Owns when the page is served: while the job runs. Afterwards, `arcbeam page` shows the
job's folder.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from arcbeam import secrets
from arcbeam.console.progressline import announce
from arcbeam.errors import JobNotFoundError
from arcbeam.jobs.metrics import JobMetrics, metrics_record
from arcbeam.jobs.option_forms import shown_options
from arcbeam.runner.asking import Asking
from arcbeam.store.log.requests import Asked

_CANCEL_SECONDS = 60.0
_MESSAGES, _KEPT = 200, 50
"""Messages that are shown, and of these those that the job's folder keeps."""
_TEXT = 1000
"""Characters of each of these."""


class Shown(Protocol):
    """A job: `arcbeam.runner.job.Job`."""

    id: str
    name: str

    @property
    def state(self) -> str:
        """Beam's name of its state."""

    def snapshot(self, whole: bool = True) -> dict[str, Any]:
        """What it does now."""

    def messages(self) -> Sequence[Any]:
        """Its last messages."""

    def metrics(self) -> list[bytes]:
        """What counts so far."""

    def attempted(self) -> list[bytes]:
        """What was reported so far."""

    def ask(self, what: Asked, savepoint: str = "") -> Asking:
        """Send a request."""

    def cancel(self, timeout: float | None = None) -> None:
        """End it."""


def details_of(job: Shown, *, of_folder: bool = False) -> dict[str, Any]:
    """Return the newest messages of a job, and its user metrics: `messages` and `metrics`, as JSON's values.

    Args:
        job: the job.
        of_folder: for a file, which is written often: fewer messages, and shorter ones.
    """
    number, most = (_KEPT, _TEXT) if of_folder else (_MESSAGES, None)
    return {
        "messages": [
            {
                "time": round(each.time * 1e6),
                "level": "WARNING" if each.level >= logging.WARNING else "BASIC",
                "text": secrets.redacted(each.text)[:most],
            }
            for each in job.messages()[-number:]
        ],
        "metrics": metrics_record(JobMetrics(job.metrics(), True, job.attempted())),
    }


class OwnService:
    """The job as a service; see `arcbeam.page.services.Service`.

    Args:
        job: the job.
        options: by plain names.
    """

    def __init__(self, job: Shown, options: dict[str, Any]) -> None:
        self._job, self._options, self._began = job, options, time.time_ns() // 1000

    def overview(self) -> list[dict[str, Any]]:
        """Return the job."""
        return [self._entry(whole=False)]

    def details(self, id: str, more: bool = True, /) -> dict[str, Any]:
        """Return the job; see `arcbeam.jobs.overview.Overview.details`.

        Raises:
            JobNotFoundError: it is another one.
        """
        self._check(id)
        if not more:
            return self._entry(whole=True)
        return {
            **self._entry(whole=True),
            "options": shown_options(self._options),
            **details_of(self._job),
        }

    def _entry(self, *, whole: bool) -> dict[str, Any]:
        job = self._job
        entry = {"id": job.id, "name": job.name, "state": job.state, "changed": self._began, "error": ""}
        return {**entry, "started": self._began, **job.snapshot(whole)}

    def ask(self, what: Asked, id: str, savepoint: str, seconds: float, /) -> str:
        """Request a savepoint or a suspension, and wait for it."""
        self._check(id)
        asking = self._job.ask(what, savepoint)
        asking.wait()
        return asking.path

    def drain(self, id: str, seconds: float, /) -> str:
        """Drain the job, and wait until it has begun to drain."""
        self._check(id)
        self._job.ask(Asked.DRAIN).wait()
        return self._job.state

    def cancel(self, id: str, /) -> str:
        """Cancel the job. Wait for its end for some time; the page ends with it."""
        self._check(id)
        self._job.cancel(_CANCEL_SECONDS)
        return "CANCELLING"

    def _check(self, id: str) -> None:
        if id != self._job.id:
            raise JobNotFoundError(f"there is no job '{id}' in this process")


@contextlib.contextmanager
def own_page(job: Shown, port: int | None, options: Callable[[], dict[str, Any]]) -> Iterator[str]:
    """Serve the page of a job while the block runs. Yield its address; "" without a port.

    Raises:
        SetupError: the port is taken.
    """
    if port is None:
        yield ""
        return
    from arcbeam.page.services import ServiceSource
    from arcbeam.page.serving import PageServer, PageSettings

    source = ServiceSource(OwnService(job, options()), "this process")
    with PageServer(source, PageSettings(port), "give another --page_address; 0: a free port") as page:
        announce(f"{job.name}: the page is at {page.address}")
        yield page.address
