"""Where the page's jobs are from.

Owns the protocol of a source, and the source of folders. What a job's service says is parsed in
`arcbeam.page.services`.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Protocol

from typing_extensions import override

from arcbeam.console.progressline import BatchProgress
from arcbeam.errors import ArcbeamError, RequestRefusedError
from arcbeam.options import with_defaults
from arcbeam.page.memory import Memory, RecentReads
from arcbeam.secrets import MASK
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.log.historyfile import history_in
from arcbeam.store.log.inspection import savepoints
from arcbeam.store.log.planfile import details_in, plan_in, tasks_in
from arcbeam.store.log.requests import RequestKind, carried_out, change_name
from arcbeam.store.log.savepoints import named_now, path_of
from arcbeam.streaming.status.folder import status_in
from arcbeam.streaming.status.history import job_record
from arcbeam.streaming.status.plain import plain
from arcbeam.streaming.status.records import Record
from arcbeam.streaming.status.samples import sampled
from arcbeam.streaming.status.status import Status, as_record

HISTORY_SECONDS: Final = 15.0
"""A driver writes figures over time once a minute."""
PLAN_SECONDS: Final = 2.0
HISTORIES: Final = 20
"""The number of jobs of which this is kept."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A job in the list of jobs.

    Attributes:
        id: in the page's addresses; the same after a restart of the page.
        label: its folder, or its id at its job server, for people.
        status: of a streaming job; None if there is none, or it cannot be read.
        error: why it cannot be read; "" if it can, or if the job has none.
        name: of the job; "": as in its status.
        state: in Beam's terms, as its service says; "": as in its status.
        since: when it got this state, in microseconds since 1970; 0: unknown.
        started: since when it ran first, in microseconds since 1970; 0: unknown, or not asked for.
        why: the error with which it ended; "" if there is none.
        progress: of a bounded job; None for other jobs.
        silent: all of this is from this many seconds ago, and since then there is no contact with its service; None: it
            is of now.
        where: what its metrics show as its place; None: its folder, or its id at its job server.
    """

    id: str
    label: str
    status: Status | None
    error: str = ""
    name: str = ""
    state: str = ""
    since: int = 0
    started: int = 0
    why: str = ""
    progress: BatchProgress | None = None
    silent: float | None = None
    where: str | None = None

    def as_record(self) -> dict[str, Any]:
        """Return the job as JSON values. Its status has the name `record`."""
        found = {each.name: plain(getattr(self, each.name)) for each in fields(self) if each.name != "status"}
        return {**found, "record": None if self.status is None else as_record(self.status)}


class Control(Protocol):
    """The way to control a job."""

    def request(self, what: RequestKind, name: str, seconds: float, /) -> str:
        """Send a request, and wait until it is carried out; a drain, until the job drains.

        Args:
            what: a savepoint, suspension, drain or cancellation.
            name: of the savepoint; "": a name with the time.
            seconds: to wait at most.

        Returns:
            The savepoint's path; the job's folder if there is no savepoint, or "".

        Raises:
            ArcbeamError: it is refused, or there is no answer in time.
        """
        ...


class Savepoints(Protocol):
    """The way to change the savepoints of a job."""

    def change(self, name: str, new: str, seconds: float, /) -> None:
        """Rename a savepoint, or delete it if there is no new name; see `arcbeam.store.log.requests.change_name`."""
        ...


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

    def tasks(self, id: str) -> Record | None:
        """Return figures of a job's tasks, as `arcbeam.streaming.status.taskfigures.task_record`; None if unknown."""
        return None

    def details(self, id: str) -> Record | None:
        """Return what is shown of a job on request only; None if there is no such job, or nothing.

        Returns:
            `options`, by plain names and without secrets, `defaults` (the names of those with their default),
            `messages`, `log` (see `arcbeam.runner.stagelog`), `spark` (the address of Spark's page), `metrics` (see
            `arcbeam.jobs.overview`), and `savepoints`: each as `arcbeam.store.log.inspection.SavepointReport`, with its
            `path`. Each may be missing.
        """
        return None

    def control(self, id: str) -> Control | None:
        """Return the way to control a job; None if there is no such job, or it cannot be controlled."""
        return None

    def sample(self, id: str, stage: str, seconds: float) -> Sequence[Record]:
        """Return samples of the outputs of a stage; see `arcbeam.streaming.status.samples.sampled`. Waits for them.

        Raises:
            ArcbeamError: there are none, or the job's folder cannot be reached.
        """
        raise RequestRefusedError(
            "cannot take samples: the job has no folder that can be reached from here",
            "start it with --checkpoint_dir, and show the page on a machine that reaches the folder",
        )

    def savepoints(self, id: str) -> Savepoints | None:
        """Return the way to change the savepoints of a job; None if its folder cannot be reached from here."""
        return None

    def grows(self) -> bool:
        """Return whether it may get more jobs."""
        return False

    def unread(self) -> int:
        """Return how many jobs are missing in `jobs`, because they have not been read yet."""
        return 0

    def notices(self) -> Sequence[str]:
        """Return what is wrong with the source as a whole: that there is no contact with its service."""
        return ()

    def starting(self) -> str:
        """Return what has to start before its jobs are known; "": nothing."""
        return ""


class FolderSource(Source):
    """The jobs in some folders, also when no driver runs them.

    Args:
        folders: of the jobs.
    """

    def __init__(self, folders: Sequence[DurableBlobs]) -> None:
        # The folder's name may have characters that an address must not have.
        self._folders = {hashlib.sha256(str(blobs).encode()).hexdigest()[:12]: blobs for blobs in folders}
        self._memory = Memory(list(self._folders), self._read, _is_over)
        self._histories = RecentReads(lambda id: readable(shown_history, self._folders[id]), HISTORY_SECONDS, HISTORIES)
        self._plans = RecentReads(lambda id: readable(plan_in, self._folders[id]), PLAN_SECONDS, HISTORIES)
        self._tasks = RecentReads(lambda id: readable(tasks_in, self._folders[id]), PLAN_SECONDS, HISTORIES)

    @override
    def jobs(self) -> Iterator[Listed]:
        yield from self._memory.all()

    @override
    def job(self, id: str) -> Listed | None:
        return self._memory.one(id)

    @override
    def grows(self) -> bool:
        return self.unread() > 0

    @override
    def unread(self) -> int:
        return self._memory.unread()

    def _read(self, id: str) -> Listed:
        blobs = self._folders[id]
        try:
            return Listed(id, str(blobs), status_in(blobs))
        except ArcbeamError as e:
            return Listed(id, str(blobs), None, str(e))

    @override
    def details(self, id: str) -> Record | None:
        return None if (blobs := self._folders.get(id)) is None else details_in_folder(blobs)

    @override
    def control(self, id: str) -> Control | None:
        return None if (blobs := self._folders.get(id)) is None else FolderControl(blobs)

    @override
    def savepoints(self, id: str) -> Savepoints | None:
        return None if (blobs := self._folders.get(id)) is None else FolderSavepoints(blobs)

    @override
    def sample(self, id: str, stage: str, seconds: float) -> Sequence[Record]:
        blobs = self._folders.get(id)
        return super().sample(id, stage, seconds) if blobs is None else sampled(blobs, stage, seconds)

    @override
    def history(self, id: str) -> Record | None:
        return self._histories.get(id) if id in self._folders else None

    @override
    def plan(self, id: str) -> Record | None:
        return self._plans.get(id) if id in self._folders else None

    @override
    def tasks(self, id: str) -> Record | None:
        return self._tasks.get(id) if id in self._folders else None


def _is_over(job: Listed) -> bool:
    return job.status is not None and job.status.is_over


class FolderControl(Control):
    """Controls a job by requests in its folder, as the command line does.

    Args:
        blobs: the folder.
    """

    def __init__(self, blobs: DurableBlobs) -> None:
        self._blobs = blobs

    @override
    def request(self, what: RequestKind, name: str, seconds: float, /) -> str:
        name = "" if what is RequestKind.CANCEL else name or named_now(what)
        carried_out(self._blobs, what, name, seconds)
        return path_of(str(self._blobs), name) if name else str(self._blobs)


class FolderSavepoints(Savepoints):
    """Changes the savepoints in a job's folder, as the command line does.

    Args:
        blobs: the folder.
    """

    def __init__(self, blobs: DurableBlobs) -> None:
        self._blobs = blobs

    @override
    def change(self, name: str, new: str, seconds: float, /) -> None:
        change_name(self._blobs, name, new, seconds, driver=f"{socket.gethostname()}: arcbeam page")


def readable(read: Callable[[DurableBlobs], Record | None], blobs: DurableBlobs) -> Record | None:
    """Return what is read in a job's folder; None if it cannot be read: the status says why."""
    try:
        return read(blobs)
    except ArcbeamError:
        return None


def shown_history(blobs: DurableBlobs) -> Record:
    """Return the record of the figures over time in a job's folder; see `Source.history`."""
    return job_record(history_in(blobs))


def details_in_folder(blobs: DurableBlobs) -> dict[str, Any]:
    """Return the options, metrics, messages and savepoints of the job in a folder, as far as they can be read."""
    found: dict[str, Any] = {}
    with contextlib.suppress(ArcbeamError):
        newest = read_newest(blobs)
        job_graph = None if newest is None else jobgraphs.readable(blobs, known(newest).job_graph)
        if job_graph is not None:
            found["options"] = {**job_graph.options, **dict.fromkeys(job_graph.secrets, MASK)}
            found["defaults"] = with_defaults(job_graph.options)
        found |= details_in(blobs) or {}
        saved = savepoints(blobs)
        found["savepoints"] = [{**asdict(each), "path": path_of(str(blobs), each.name)} for each in saved]
    return found


class Several(Source):
    """The jobs of several sources.

    Args:
        sources: whose ids differ.
    """

    def __init__(self, *sources: Source) -> None:
        self._sources: Sequence[Source] = sources

    @override
    def jobs(self) -> Iterator[Listed]:
        for source in self._sources:
            yield from source.jobs()

    @override
    def job(self, id: str) -> Listed | None:
        return next((found for source in self._sources if (found := source.job(id)) is not None), None)

    @override
    def history(self, id: str) -> Record | None:
        return next((found for source in self._sources if (found := source.history(id)) is not None), None)

    @override
    def plan(self, id: str) -> Record | None:
        return next((found for source in self._sources if (found := source.plan(id)) is not None), None)

    @override
    def tasks(self, id: str) -> Record | None:
        return next((found for source in self._sources if (found := source.tasks(id)) is not None), None)

    @override
    def details(self, id: str) -> Record | None:
        return next((found for source in self._sources if (found := source.details(id)) is not None), None)

    @override
    def control(self, id: str) -> Control | None:
        return next((found for source in self._sources if (found := source.control(id)) is not None), None)

    @override
    def savepoints(self, id: str) -> Savepoints | None:
        return next((found for source in self._sources if (found := source.savepoints(id)) is not None), None)

    @override
    def sample(self, id: str, stage: str, seconds: float) -> Sequence[Record]:
        found = next((source for source in self._sources if source.job(id) is not None), None)
        return super().sample(id, stage, seconds) if found is None else found.sample(id, stage, seconds)

    @override
    def grows(self) -> bool:
        return any(source.grows() for source in self._sources)

    @override
    def unread(self) -> int:
        return sum(source.unread() for source in self._sources)

    @override
    def notices(self) -> Sequence[str]:
        return [notice for source in self._sources for notice in source.notices()]

    @override
    def starting(self) -> str:
        return " ".join(filter(None, (source.starting() for source in self._sources)))


class Later(Several):
    """The jobs of a source that is opened later, so that its page is served meanwhile.

    Args:
        starting: what has to start before, for people.
    """

    def __init__(self, starting: str) -> None:
        super().__init__()
        self._starting = starting

    def open(self, source: Source) -> None:
        """Show the jobs of a source."""
        self._sources = (source,)

    @override
    def starting(self) -> str:
        return super().starting() if self._sources else self._starting

    @override
    def grows(self) -> bool:
        return not self._sources or super().grows()
