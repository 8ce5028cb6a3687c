"""The interface between the job service and the executor of pipelines: submissions and events.

Owns the states and messages of a job and the protocols `PipelineExecutor` and `JobEvents`. Must not know gRPC, Beam, or
how a pipeline runs. `runner.executor` implements the executor; this package implements the events.
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
from arcbeam.store.log.requests import RequestKind


class JobState(StrEnum):
    """A job's state, by Beam's names. STOPPED: prepared and not started, or suspended; it can be started."""

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
        """Whether it is final."""
        return self in TERMINAL

    @property
    def request_remedy(self) -> str:
        """What to do about a request to a job in this state, which has no driver."""
        if self is JobState.STOPPED:
            return "resume it first: start it again, or resume it from its folder"
        if self.terminal:
            return "nothing is left to do; to run it again, submit the pipeline again"
        return "try again when it is RUNNING: arcbeam jobs"


TERMINAL = frozenset({JobState.DONE, JobState.DRAINED, JobState.FAILED, JobState.CANCELLED})

UNDER_WAY = frozenset({JobState.STARTING, JobState.RUNNING, JobState.DRAINING, JobState.CANCELLING})

MAY_BECOME: Mapping[JobState, frozenset[JobState]] = {
    # Also a job that ran when the last server ended, and is resumed.
    JobState.STARTING: frozenset({JobState.STOPPED, JobState.STARTING, JobState.RUNNING, JobState.DRAINING}),
    JobState.RUNNING: frozenset({JobState.STARTING}),
    JobState.DRAINING: frozenset({JobState.STARTING, JobState.RUNNING}),
    JobState.CANCELLING: UNDER_WAY - {JobState.CANCELLING},
    JobState.DONE: UNDER_WAY,
    JobState.DRAINED: UNDER_WAY,
    JobState.FAILED: UNDER_WAY,
    JobState.CANCELLED: UNDER_WAY | {JobState.STOPPED},
    # Suspended. A job that was cancelled meanwhile is CANCELLED.
    JobState.STOPPED: UNDER_WAY - {JobState.CANCELLING},
}
"""For each state, the states that it may follow."""


class Level(IntEnum):
    """How important a message is; Beam's numbers."""

    DEBUG = 1
    DETAILED = 2
    BASIC = 3
    WARNING = 4
    ERROR = 5


class StagedFileKind(Enum):
    """The use of a staged file, as in the start-up of the Python SDK's worker.

    PACKAGES_LIST is `extra_packages.txt`: the names of staged packages to install, one a line. FILE is any other file:
    such packages, cached requirements, files that the user staged. SCRIPT describes the submitter's script; only
    `runner.submission` sends it.
    """

    MAIN_SESSION = "pickled_main_session"
    REQUIREMENTS = "requirements.txt"
    SETUP_PACKAGE = "workflow.tar.gz"
    PACKAGES_LIST = "extra_packages.txt"
    SUBMISSION_ENVIRONMENT = "submission_environment_dependencies.txt"
    SCRIPT = "arcbeam_script.json"
    PYPI_REQUIREMENTS = ""
    FILE = "*"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One artifact of a job, on disk and checked.

    Attributes:
        name: a relative path, without `..`.
        path: inside the job's folder: `folder / name`, unless another environment staged other content under this
            name.
        kind: its use.
        role: the role's URN as submitted.
        sha256: of the content, hexadecimal.
        environments: ids of the environments that need it.
        role_payload: of the role, as submitted.
    """

    name: str
    path: Path
    kind: StagedFileKind
    role: str
    sha256: str
    environments: tuple[str, ...]
    role_payload: bytes = b""


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
    """A job before it runs.

    Attributes:
        job_id: unique, and valid as a file name.
        name: of the job, for people.
        pipeline: a serialized Beam `Pipeline` proto, as submitted (environments not rewritten).
        options: the pipeline options by plain names (`save_main_session`), with the values from the SDK. Integers may
            be strings; `PipelineOptions.from_dictionary` converts them.
        artifacts: the staged files; None before files are staged (always in `check`).
        home: the job's own folder on the server, kept between runs; None: there is none.
        again: the job has run before, and is resumed.
        defaults: names of the options that the server set, because the submission does not set them.
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
    """Receives an executor's events. Every method may be called from any thread and never raises. Events after the
    job's end are dropped.
    """

    def running(self) -> None:
        """The job has its resources and its first work begins: STARTING changes to RUNNING."""
        ...

    def turned(self, state: JobState) -> None:
        """The job has another state now: DRAINING."""
        ...

    def message(self, level: Level, text: str) -> None:
        """Add a message for the user.

        Args:
            level: its importance.
            text: of any length, without secrets.
        """
        ...

    def metrics(self, attempted: Sequence[bytes], committed: Sequence[bytes]) -> None:
        """Replace the job's metrics. The last ones are kept after its end.

        Args:
            attempted: serialized MonitoringInfos of all attempts, consolidated.
            committed: those of committed work.
        """
        ...

    def progress(self, record: Mapping[str, Any]) -> None:
        """Replace the last progress of a bounded job, which is kept after its end: see `PipelineExecutor.snapshot`."""
        ...


@dataclass(frozen=True, slots=True)
class MetricsNow:
    """The metrics of a running job; see `JobEvents.metrics`."""

    attempted: Sequence[bytes]
    committed: Sequence[bytes]


class PipelineExecutor(Protocol):
    """Runs one pipeline. Each `check` and each `run` has a new executor."""

    def check(self, submission: Submission) -> None:
        """Refuse a pipeline that cannot run. Files are not staged yet, so nothing that needs them may be unpickled.

        Raises:
            SubmissionError: with every unsupported item.
        """
        ...

    def resumable_state(self, submission: Submission) -> JobState | None:
        """Return whether a job can be resumed that a server has left, or is about to leave.

        Returns:
            RUNNING: another `run` resumes the job, whatever ended this one. STOPPED: the same, but the job was
            suspended on request, and must stay suspended. None: the job has no state.
        """
        ...

    def run(self, submission: Submission, events: JobEvents) -> JobState | None:
        """Run the pipeline; return when it has ended. Called once, on a thread of the job.

        At the end it removes from `Submission.home` what the job no longer needs. Nothing else removes files there
        while the job is known.

        Returns:
            The final state: DONE, DRAINED, or STOPPED if it was suspended. None: DONE.

        Raises:
            ArcbeamError: the job failed. `JobCancelledError` (or any other error) after `cancel`.
        """
        ...

    def ask(self, what: RequestKind, savepoint: str = "") -> str:
        """Send a request to the run. Wait until it is carried out; a drain, until it is accepted. From any thread.

        Args:
            what: the request.
            savepoint: name of the savepoint that it creates; "": a name with the time.

        Returns:
            The savepoint's path; "" if there is none.

        Raises:
            RequestRefusedError: the request cannot succeed.
        """
        ...

    def status(self) -> Mapping[str, Any]:
        """Return a streaming run's status, as JSON's values. From any thread.

        Raises:
            RequestRefusedError: it is a batch job, or has not begun.
        """
        ...

    def snapshot(self, whole: bool = True) -> Mapping[str, Any]:
        """Return what the run does now, as JSON's values. From any thread.

        Args:
            whole: with the stages of a streaming job, which may be hundreds, and the plan of a bounded one.

        Returns:
            `status` of a streaming run, or None; `progress` of a bounded run, with `stages` and `plan`, or None;
            `folder`, for people, or "". Empty before the run.
        """
        ...

    def metrics(self) -> MetricsNow | None:
        """Return the run's current metrics; None if there are none yet. From any thread."""
        ...

    def end(self, again: threading.Event) -> None:
        """End a streaming run as its options say (`--on_sigterm`): the process has to end. Wait for it.

        The run has the time that its options allow; then it is cancelled. From any thread.

        Args:
            again: is set by a second signal: then the run is cancelled at once.
        """
        ...

    def cancel(self) -> None:
        """Request the run's end. Return at once, or when the run has ended. May be called from any thread, repeatedly,
        before `run` (which must then raise `JobCancelledError`) and after it.
        """
        ...


class ExecutorFactory(Protocol):
    """Makes executors."""

    def __call__(self) -> PipelineExecutor:
        """Return a new executor; cheap."""
        ...


def error_text(error: BaseException) -> str:
    """Return an error's text for the user: arcbeam's own errors as they are (with step and user traceback), others
    with their traceback.
    """
    if isinstance(error, ArcbeamError):
        return texts.safe_text(str, error, 2 * texts.CHARACTERS_MAX)
    return texts.safe_text(lambda e: "".join(traceback.format_exception(e)).rstrip(), error)
