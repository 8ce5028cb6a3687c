"""The source of jobs with a service: a job server, or this process.

Owns the protocol of a service, and what is shown without contact.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from typing_extensions import override

from arcbeam.console.progressline import BatchProgress
from arcbeam.errors import ArcbeamError, JobNotFoundError
from arcbeam.model.timestamps import long_shown
from arcbeam.page.memory import RecentReads
from arcbeam.page.sources import (
    HISTORIES,
    HISTORY_SECONDS,
    PLAN_SECONDS,
    Control,
    FolderSavepoints,
    Listed,
    Savepoints,
    Source,
    details_in_folder,
    readable,
    shown_history,
)
from arcbeam.store.blobs.backends import open_blobs
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.log.endnote import EndNote
from arcbeam.store.log.planfile import plan_in, tasks_in
from arcbeam.store.log.requests import RequestKind
from arcbeam.streaming.status.folder import status_in
from arcbeam.streaming.status.records import Record, parsed
from arcbeam.streaming.status.samples import sampled
from arcbeam.streaming.status.status import Status

_FRESH_SECONDS: Final = 0.5
"""So long, all viewers get the same answer of a service."""
_AGAIN_SECONDS: Final = 1.0
"""So long after a call that failed, no viewer waits for another one."""
_REMEMBERED: Final = 100
"""The number of jobs whose details are kept, to be shown without contact."""


class Service(Protocol):
    """Jobs that a process answers for: those of a job server, or of this process."""

    def overview(self) -> Sequence[Record]:
        """Return all jobs, newest first; see `arcbeam.jobs.overview.Overview.overview`.

        Raises:
            ArcbeamError: there is no contact.
        """
        ...

    def details(self, id: str, more: bool, /) -> Record:
        """Return a job; see `arcbeam.jobs.overview.Overview.details`.

        Raises:
            JobNotFoundError: there is no such job.
            ArcbeamError: there is no contact.
        """
        ...

    def ask(self, what: RequestKind, id: str, savepoint: str, seconds: float, /) -> str:
        """Request a savepoint or a suspension, and wait until it is done; see `arcbeam.jobs.client.JobClient.ask`."""
        ...

    def drain(self, id: str, seconds: float, /) -> str:
        """Drain a job, and wait until it has begun to drain. Return its state."""
        ...

    def cancel(self, id: str, /) -> str:
        """Cancel a job. Return its state, perhaps CANCELLING."""
        ...


class ServiceControl(Control):
    """Controls a job through its service.

    Args:
        service: of the job.
        id: of the job.
    """

    def __init__(self, service: Service, id: str) -> None:
        self._service, self._id = service, id

    @override
    def request(self, what: RequestKind, name: str, seconds: float, /) -> str:
        match what:
            case RequestKind.DRAIN:
                self._service.drain(self._id, seconds)
                return ""
            case RequestKind.CANCEL:
                self._service.cancel(self._id)
                return ""
        return self._service.ask(what, self._id, name, seconds)


T = TypeVar("T")


@dataclass(slots=True)
class _Answer(Generic[T]):
    """An answer of a service, and when it came."""

    answer: T
    at: float


class ServiceSource(Source):
    """The jobs of a service. If it does not answer, its last answers are shown as such.

    Args:
        service: of the jobs.
        name: of the service, for people.
        clock: monotonic seconds.
    """

    def __init__(self, service: Service, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._service, self._name, self._clock = service, name, clock
        self._lock = threading.Lock()
        self._listed: _Answer[Sequence[Record]] | None = None
        self._details: OrderedDict[str, _Answer[Record]] = OrderedDict()
        self._plans = RecentReads(lambda id: self._in_folder(id, plan_in), PLAN_SECONDS, HISTORIES)
        self._tasks = RecentReads(lambda id: self._in_folder(id, tasks_in), PLAN_SECONDS, HISTORIES)
        self._histories = RecentReads(lambda id: self._in_folder(id, shown_history), HISTORY_SECONDS, HISTORIES)
        # The last contact, and why the newest call failed; "": it did not.
        self._heard, self._failure, self._tried = clock(), "", float("-inf")

    @override
    def grows(self) -> bool:
        return True

    @override
    def notices(self) -> Sequence[str]:
        if not self._failure:
            return ()
        silent = long_shown(self._clock() - self._heard)
        return (f"no contact with {self._name} for {silent}: {self._failure}",)

    @override
    def jobs(self) -> Iterator[Listed]:
        with self._lock:
            if self._listed is None or self._clock() - self._listed.at >= _FRESH_SECONDS:
                answer = self._call(lambda: [*map(_parsed, self._service.overview())])
                if answer is not None:
                    self._listed = _Answer(answer, self._clock())
            kept = self._listed
        for entry in kept.answer if kept is not None else ():
            yield self._job_of(entry)

    @override
    def job(self, id: str) -> Listed | None:
        entry = self._entry(id)
        if entry is None:
            return None
        found = self._job_of(entry)
        if found.status is None and found.progress is None and (blobs := self._folder(entry)) is not None:
            with contextlib.suppress(ArcbeamError):
                return replace(found, status=_ended(status_in(blobs), found))
        return found

    @override
    def details(self, id: str) -> Record | None:
        entry = self._entry(id)
        if entry is None:
            return None
        blobs = self._folder(entry)
        found = {} if blobs is None else details_in_folder(blobs)
        with contextlib.suppress(JobNotFoundError):
            found = {**found, **(self._call(lambda: self._service.details(id, True)) or {})}
        return found

    def _entry(self, id: str) -> Record | None:
        """Return what the service says about a job, or said last; None if there is no such job."""
        with self._lock:
            kept = self._details.get(id)
            if kept is None or self._clock() - kept.at >= _FRESH_SECONDS:
                try:
                    answer = self._call(lambda: _parsed(self._service.details(id, False)))
                except JobNotFoundError:
                    self._details.pop(id, None)
                    return None
                if answer is not None:
                    kept = self._details[id] = _Answer(answer, self._clock())
                    self._details.move_to_end(id)
                    while len(self._details) > _REMEMBERED:
                        self._details.popitem(last=False)
            if kept is not None:
                return kept.answer
            # Without contact, the list may still know it.
            return next((entry for entry in (self._listed.answer if self._listed else ()) if entry["id"] == id), None)

    @override
    def control(self, id: str) -> Control | None:
        return None if self._entry(id) is None else ServiceControl(self._service, id)

    @override
    def sample(self, id: str, stage: str, seconds: float) -> Sequence[Record]:
        entry = self._entry(id)
        blobs = None if entry is None else self._folder(entry)
        return super().sample(id, stage, seconds) if blobs is None else sampled(blobs, stage, seconds)

    @override
    def savepoints(self, id: str) -> Savepoints | None:
        entry = self._entry(id)
        blobs = None if entry is None else self._folder(entry)
        return None if blobs is None else FolderSavepoints(blobs)

    @override
    def plan(self, id: str) -> Record | None:
        return self._plans.get(id)

    @override
    def tasks(self, id: str) -> Record | None:
        return self._tasks.get(id)

    @override
    def history(self, id: str) -> Record | None:
        return self._histories.get(id)

    def _in_folder(self, id: str, read: Callable[[DurableBlobs], Record | None]) -> Record | None:
        entry = self._entry(id)
        blobs = None if entry is None else self._folder(entry)
        return None if blobs is None else readable(read, blobs)

    def _call(self, call: Callable[[], T]) -> T | None:
        """Call the service. Return None without contact."""
        if self._failure and self._clock() - self._tried < _AGAIN_SECONDS:
            return None
        try:
            answer = call()
        except JobNotFoundError:
            self._heard, self._failure = self._clock(), ""
            raise
        except ArcbeamError as e:
            self._failure, self._tried = e.message, self._clock()
            return None
        self._heard, self._failure = self._clock(), ""
        return answer

    def _job_of(self, entry: Record) -> Listed:
        label, folder = f"{entry['id']} at {self._name}", entry.get("folder", "")
        return Listed(
            entry["id"],
            f"{label}, in {folder}" if folder else label,
            entry["status"],
            name=entry["name"],
            state=entry["state"],
            since=entry["changed"],
            started=entry.get("started", 0),
            why=entry["error"],
            progress=entry["progress"],
            silent=self._clock() - self._heard if self._failure else None,
            where=entry.get("where"),
        )

    def _folder(self, entry: Record) -> DurableBlobs | None:
        """Return the folder of a job, if it can be opened here."""
        folder = entry.get("folder")
        if not folder or ("://" not in folder and not Path(folder).is_dir()):
            return None
        try:
            return open_blobs(folder)
        except ArcbeamError:
            return None


def _parsed(entry: Record) -> Record:
    """Return what a service says about a job, with its status and progress as values; see `parsed`."""
    status, progress = entry.get("status"), entry.get("progress")
    return {
        **entry,
        "status": parsed(Status, {**status, "folder": entry.get("folder", "")}) if status else None,
        "progress": parsed(BatchProgress, progress) if progress else None,
    }


def _ended(status: Status, job: Listed) -> Status:
    """Return the status in the folder of a job, with the end that only its service knows."""
    if job.state not in ("FAILED", "CANCELLED") or status.is_over or status.driver:
        return status
    return replace(status, ended=EndNote(0, job.state, job.why))
