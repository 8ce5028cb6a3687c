"""Where the page's jobs are from.

Owns the protocol of a source, and the sources of folders and of services: a job server, or jobs in this process. The
page knows records only; see `arcbeam.streaming.status.status.as_record` and `arcbeam.jobs.lifecycle.Jobs.details`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from typing_extensions import override

from arcbeam.errors import ArcbeamError
from arcbeam.page.memory import Kept, Memory
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.log.historyfile import history_in
from arcbeam.store.log.planfile import plan_in
from arcbeam.streaming.status.folder import record_of
from arcbeam.streaming.status.history import job_record
from arcbeam.streaming.status.words import is_over

Record = Mapping[str, Any]

_HISTORY_SECONDS: Final = 15.0
"""A driver writes figures over time once a minute."""
_PLAN_SECONDS: Final = 2.0
_HISTORIES: Final = 20
"""The number of jobs of which this is kept."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A job in the list of jobs.

    Attributes:
        id: in the page's addresses; the same after a restart of the page.
        label: its folder, or its id at its job server, for people.
        record: the status of a streaming job; None if there is none, or it cannot be read.
        error: why it cannot be read; "" if it can, or if the job has none.
        name: of the job; "": as in its status.
        state: in Beam's terms, as its service says; "": as in its status.
        since: when it got this state, in microseconds since 1970; 0: unknown.
        why: the error with which it ended; "" if there is none.
        progress: of a bounded job: `stages`, each as `arcbeam.console.progressline.StageProgress`; None for other jobs.
        silent: all of this is from this many seconds ago, and since then there is no contact with its service; None: it
            is of now.
    """

    id: str
    label: str
    record: Record | None
    error: str = ""
    name: str = ""
    state: str = ""
    since: int = 0
    why: str = ""
    progress: Record | None = None
    silent: float | None = None


class Source(Protocol):
    """Some jobs. Its methods may block, and several threads call them."""

    def jobs(self) -> Iterator[Listed]:
        """Yield all jobs. A job that cannot be read has an error; it hides no other job."""
        ...

    def job(self, id: str) -> Listed | None:
        """Return a job; None if there is no such job."""
        ...

    def history(self, id: str) -> Record | None:
        """Return the record of a job's figures over time, None if there is none.

        It is as from `arcbeam.streaming.status.history.job_record`.
        """
        ...

    def plan(self, id: str) -> Record | None:
        """Return the record of a job's plan, as `arcbeam.explain.plan_record`; None if there is none."""
        return None

    def grows(self) -> bool:
        """Return whether it may get more jobs."""
        return False

    def notices(self) -> Sequence[str]:
        """Return what is wrong with the source as a whole: that there is no contact with its service."""
        return ()


class FolderSource(Source):
    """The jobs in some folders, also when no driver runs them.

    Args:
        folders: of the jobs.
    """

    def __init__(self, folders: Sequence[DurableBlobs]) -> None:
        # The folder's name may have characters that an address must not have.
        self._folders = {hashlib.sha256(str(blobs).encode()).hexdigest()[:12]: blobs for blobs in folders}
        self._memory = Memory(list(self._folders), self._read, _is_over)
        self._histories = Kept(lambda id: _history_in(self._folders[id]), _HISTORY_SECONDS, _HISTORIES)
        self._plans = Kept(lambda id: _plan_in(self._folders[id]), _PLAN_SECONDS, _HISTORIES)

    @override
    def jobs(self) -> Iterator[Listed]:
        yield from self._memory.all()

    @override
    def job(self, id: str) -> Listed | None:
        return self._memory.one(id)

    @override
    def grows(self) -> bool:
        return self._memory.unread() > 0

    def _read(self, id: str) -> Listed:
        blobs = self._folders[id]
        try:
            return Listed(id, str(blobs), record_of(blobs))
        except ArcbeamError as e:
            return Listed(id, str(blobs), None, str(e))

    @override
    def history(self, id: str) -> Record | None:
        return self._histories.get(id) if id in self._folders else None

    @override
    def plan(self, id: str) -> Record | None:
        return self._plans.get(id) if id in self._folders else None


def _is_over(job: Listed) -> bool:
    return job.record is not None and is_over(job.record)


def _history_in(blobs: DurableBlobs) -> Record | None:
    try:
        return job_record(history_in(blobs))
    except ArcbeamError:
        # The status says why the folder cannot be read.
        return None


def _plan_in(blobs: DurableBlobs) -> Record | None:
    try:
        return plan_in(blobs)
    except ArcbeamError:
        return None
