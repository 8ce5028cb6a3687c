"""The seam between the job service and whatever runs pipelines: what is handed over, and what is reported back.

Owns the states and messages of a job and the protocols `PipelineExecutor` and `JobEvents`. Knows neither gRPC, nor
Beam, nor how a pipeline is run; `executor` implements the executor, this package implements the events.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any, Protocol

from arcbeam.errors import ArcbeamError
from arcbeam.model import texts
from arcbeam.store.log.requests import Asked


class JobState(StrEnum):
    """Where a job stands, by Beam's names. STOPPED: prepared and not started, or suspended; it can be started."""

    STOPPED = "STOPPED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"
    CANCELLING = "CANCELLING"
    DONE = "DONE"
    DRAINED = "DRAINED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def terminal(self) -> bool:
        """Whether nothing can follow."""
        return self in TERMINAL

    @property
    def request_remedy(self) -> str:
        """What to do about a request to a job in this state, which no driver runs."""
        if self is JobState.STOPPED:
            return "resume it first: start it again, or use `arcbeam resume` with its folder"
        if self.terminal:
            return "it has ended: nothing is left to do, or submit it again"
        return "try again when it is RUNNING: arcbeam jobs"


TERMINAL = frozenset({JobState.DONE, JobState.DRAINED, JobState.FAILED, JobState.CANCELLED})

UNDER_WAY = frozenset({JobState.STARTING, JobState.RUNNING, JobState.DRAINING, JobState.CANCELLING})

MAY_BECOME: Mapping[JobState, frozenset[JobState]] = {
    # Also of a job that ran when the last server ended, and goes on.
    JobState.STARTING: frozenset({JobState.STOPPED, JobState.STARTING, JobState.RUNNING, JobState.DRAINING}),
    JobState.RUNNING: frozenset({JobState.STARTING}),
    JobState.DRAINING: frozenset({JobState.STARTING, JobState.RUNNING}),
    JobState.CANCELLING: UNDER_WAY - {JobState.CANCELLING},
    JobState.DONE: UNDER_WAY,
    JobState.DRAINED: UNDER_WAY,
    JobState.FAILED: UNDER_WAY,
    JobState.CANCELLED: UNDER_WAY | {JobState.STOPPED},
    # Suspended. One that was cancelled meanwhile is cancelled.
    JobState.STOPPED: UNDER_WAY - {JobState.CANCELLING},
}
"""For each state, those that it may follow."""


class Level(IntEnum):
    """How important a message is; Beam's numbers."""

    DEBUG = 1
    DETAILED = 2
    BASIC = 3
    WARNING = 4
    ERROR = 5


class FileKind(Enum):
    """What a staged file is for, as the Python SDK's own worker start-up understands it.

    PACKAGES_LIST is `extra_packages.txt`: the names of staged packages to install, one a line. FILE is everything
    else: such packages, cached requirements, files that the user staged.
    """

    MAIN_SESSION = "pickled_main_session"
    REQUIREMENTS = "requirements.txt"
    SETUP_PACKAGE = "workflow.tar.gz"
    PACKAGES_LIST = "extra_packages.txt"
    SUBMISSION_ENVIRONMENT = "submission_environment_dependencies.txt"
    PYPI_REQUIREMENTS = ""
    FILE = "*"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One artifact of a job, on disk and checked.

    Attributes:
        name: the name it is staged to: a relative path, without `..`.
        path: where it is, inside the job's folder. `folder / name`, unless another environment staged other content
            under the same name.
        kind: what it is for.
        role: the role's URN as submitted.
        sha256: of the content, hexadecimal.
        environments: ids of the environments that need it.
    """

    name: str
    path: Path
    kind: FileKind
    role: str
    sha256: str
    environments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Artifacts:
    """The staged files of a job. The folder and all in it are deleted when the job has ended.

    Attributes:
        folder: the job's own folder.
        files: all files, in the order in which they were staged.
    """

    folder: Path
    files: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True)
class Submission:
    """All there is to know about a job before it runs.

    Attributes:
        job_id: unique, and fit for a file name.
        name: what the user calls the job.
        pipeline: a serialized Beam `Pipeline` proto, as submitted (environments not rewritten).
        options: the pipeline options by their plain names (`save_main_session`), values as the SDK sent them: integers
            may come as strings; `PipelineOptions.from_dictionary` gives them their types.
        artifacts: the staged files; None while nothing was staged (always so in `check`).
        home: a folder of the job's own on the server, for what it keeps from run to run; None: there is none.
        again: it ran before, and goes on where it is.
        defaults: names of the options that the server has set, because the submission says nothing of them.
    """

    job_id: str
    name: str
    pipeline: bytes
    options: Mapping[str, Any]
    artifacts: Artifacts | None = None
    home: Path | None = None
    again: bool = False
    defaults: frozenset[str] = frozenset()


class JobEvents(Protocol):
    """Where an executor reports. Every method may be called from any thread and never raises; what comes after the
    job's end is dropped.
    """

    def running(self) -> None:
        """The job has what it needs and its first work begins: STARTING becomes RUNNING."""
        ...

    def turned(self, state: JobState) -> None:
        """The job is heading for something else: DRAINING."""
        ...

    def message(self, level: Level, text: str) -> None:
        """Says something to the user.

        Args:
            level: how important.
            text: any length; not for secrets.
        """
        ...

    def metrics(self, attempted: Sequence[bytes], committed: Sequence[bytes]) -> None:
        """Replaces the job's metrics: those that are kept behind its end.

        Args:
            attempted: serialized MonitoringInfos of all attempts, consolidated.
            committed: those of what counts.
        """
        ...


@dataclass(frozen=True, slots=True)
class MetricsNow:
    """The metrics of a job that runs; see `JobEvents.metrics`."""

    attempted: Sequence[bytes]
    committed: Sequence[bytes]


class PipelineExecutor(Protocol):
    """Runs one pipeline. A new one is made for every `check` and for every `run`."""

    def check(self, submission: Submission) -> None:
        """Refuses what cannot run, before files are staged: so nothing may be unpickled that needs them.

        Raises:
            SubmissionError: with every unsupported item.
        """
        ...

    def standing(self, submission: Submission) -> JobState | None:
        """How a job stands that a server has left, or is about to leave.

        Returns:
            RUNNING: another `run` of the same goes on where this one was, whatever had ended it. STOPPED: that, too,
            but somebody had it suspended, and means it to stay so. None: nothing is left of it.
        """
        ...

    def run(self, submission: Submission, events: JobEvents) -> JobState | None:
        """Runs the pipeline and returns when it is done. Called once, on a thread of the job.

        Of what it keeps in `Submission.home` it removes what nobody can need behind its end; nobody else does, as long
        as the job is known.

        Returns:
            How it ended: DONE, DRAINED, or STOPPED if it was suspended. None: DONE.

        Raises:
            ArcbeamError: why the job failed; `JobCancelledError` (or anything else) after `cancel`.
        """
        ...

    def ask(self, what: Asked, savepoint: str = "") -> str:
        """Asks something of the run. Waits until it is settled; a drain, until it is taken in. From any thread.

        Args:
            what: is asked.
            savepoint: name of the micro-batch with which it is done; "": one that says when this was.

        Returns:
            The savepoint's path; "" if there is none.

        Raises:
            RequestRefusedError: nothing comes of it.
        """
        ...

    def status(self) -> Mapping[str, Any]:
        """Where a streaming run stands, as JSON's values. From any thread.

        Raises:
            RequestRefusedError: it is not in a streaming job, or has not begun.
        """
        ...

    def metrics(self) -> MetricsNow | None:
        """The metrics of the run as they are now; None if there are none yet. From any thread."""
        ...

    def end(self, again: threading.Event) -> None:
        """The process is told to end: has a streaming run end as its options say (`--on_sigterm`), in the time that
        they allow, and cancels it if it has not. Waits for that. From any thread.

        Args:
            again: is set when nobody waits any longer: it is cancelled then.
        """
        ...

    def cancel(self) -> None:
        """Asks the run to end soon. Returns at once or when the run has ended. May be called from any thread, more
        than once, before `run` (which must then raise `JobCancelledError`) and after it.
        """
        ...


class ExecutorFactory(Protocol):
    """Makes executors."""

    def __call__(self) -> PipelineExecutor:
        """A fresh executor; cheap."""
        ...


def error_text(error: BaseException) -> str:
    """What the user is told: our own errors as they are (with micro-batch and user traceback), others with our
    traceback.
    """
    if isinstance(error, ArcbeamError):
        return texts.said(str, error, 2 * texts.LONGEST)
    return texts.said(lambda e: "".join(traceback.format_exception(e)).rstrip(), error)
