"""The page of a job in this process (`--page_address`): the job as a service with one job.

Part of the composition root. Owns when the page is served: while the job runs. Afterwards, `arcbeam page` shows the
job's folder.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from arcbeam import secrets
from arcbeam.console.progressline import announce
from arcbeam.errors import JobNotFoundError
from arcbeam.jobs.metrics import JobMetrics, metrics_record
from arcbeam.jobs.option_forms import shown_options
from arcbeam.runner.requestfuture import RequestFuture
from arcbeam.runner.stagelog import StageLog
from arcbeam.spark.sparkpage import SparkPage
from arcbeam.store.log.requests import RequestKind

_ANSWER_SECONDS = 10.0
"""So long the page of a job that has ended waits at most for the answer to a request that ended it."""
_SHOWN_SECONDS = 2.0
"""So long it then shows that answer: browsers ask for it again each second."""
_MESSAGES, _KEPT = 200, 50
"""Messages that are shown, and of these those that the job's folder keeps."""
_TEXT = 1000
"""Characters of each of these."""


class OwnJob(Protocol):
    """A job: `arcbeam.runner.job.Job`."""

    id: str
    name: str
    lines: StageLog
    spark_page: SparkPage

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

    def ask(self, what: RequestKind, savepoint: str = "") -> RequestFuture:
        """Send a request."""

    def cancel(self, timeout: float | None = None) -> None:
        """End it."""


def details_of(job: OwnJob, *, of_folder: bool = False) -> dict[str, Any]:
    """Return what is shown of a job on request: its newest `messages`, the `log` of its tasks, its user `metrics`, and
    the address of Spark's page (`spark`), as JSON's values.

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
        "log": job.lines.newest(),
        "spark": job.spark_page.address,
        "metrics": metrics_record(JobMetrics(job.metrics(), True, job.attempted())),
    }


class OwnService:
    """The job as a service; see `arcbeam.page.services.Service`.

    Args:
        job: the job.
        options: by plain names.
    """

    def __init__(self, job: OwnJob, options: dict[str, Any]) -> None:
        self._job, self._options, self._began = job, options, time.time_ns() // 1000
        self._changed = threading.Condition()
        self._requests, self._answered = 0, float("-inf")

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
        found = job.snapshot(whole)
        # As at --metrics_address: the id is another one after each start of a driver.
        return {**entry, "started": self._began, **found, "where": found.get("folder", "")}

    def ask(self, what: RequestKind, id: str, savepoint: str, seconds: float, /) -> str:
        """Request a savepoint or a suspension, and wait for it."""
        with self._answering(id):
            asking = self._job.ask(what, savepoint)
            asking.wait()
            return asking.path

    def drain(self, id: str, seconds: float, /) -> str:
        """Drain the job, and wait until it has begun to drain."""
        with self._answering(id):
            self._job.ask(RequestKind.DRAIN).wait()
            return self._job.state

    def cancel(self, id: str, /) -> str:
        """Begin to cancel the job. The page ends with it, so the answer cannot wait for that end."""
        with self._answering(id):
            threading.Thread(target=self._job.cancel, name="cancel", daemon=True).start()
            return "CANCELLING"

    @contextlib.contextmanager
    def _answering(self, id: str) -> Iterator[None]:
        self._check(id)
        with self._changed:
            self._requests += 1
        try:
            yield
        finally:
            with self._changed:
                self._requests, self._answered = self._requests - 1, time.monotonic()
                self._changed.notify_all()

    def await_shown(self) -> None:
        """Wait until the answers to the last requests, which may have ended the job, have been shown."""
        with self._changed:
            self._changed.wait_for(lambda: not self._requests, _ANSWER_SECONDS)
            left = self._answered + _SHOWN_SECONDS - time.monotonic()
        if left > 0:
            time.sleep(left)

    def _check(self, id: str) -> None:
        if id != self._job.id:
            raise JobNotFoundError(f"there is no job '{id}' in this process")


@contextlib.contextmanager
def own_page(job: OwnJob, port: int | None, options: Callable[[], dict[str, Any]]) -> Iterator[str]:
    """Serve the page of a job while the block runs. Yield its address; "" without a port.

    Raises:
        SetupError: the port is taken.
    """
    if port is None:
        yield ""
        return
    from arcbeam.page.services import ServiceSource
    from arcbeam.page.serving import PageServer, PageSettings

    service = OwnService(job, options())
    source = ServiceSource(service, "this process")
    with PageServer(source, PageSettings(port), "give another --page_address; 0: a free port") as page:
        announce(f"{job.name}: the page is at {page.login}")
        try:
            yield page.login
        finally:
            service.await_shown()
