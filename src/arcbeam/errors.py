"""The exception tree: what can go wrong, by type, and what to do about it.

Owns every exception that crosses a package boundary. Decisions (retry, refuse, report) are made by type, never by
message. Every exception pickles, because most of them travel from a Spark worker to the driver.
Knows nothing of Beam or Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class ArcbeamError(Exception):
    """Root of everything this project raises on purpose.

    Args:
        message: what is at fault, by name.
        remedy: what the reader can do about it; empty if the message says it.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  what to do: {self.remedy}" if self.remedy else self.message


class SubmissionError(ArcbeamError):
    """The pipeline was refused before anything ran; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One thing in a pipeline that cannot run here.

    Attributes:
        transform: full name of the transform that needs it, or "pipeline".
        what: what it needs.
        remedy: what the user can do instead; may be empty.
    """

    transform: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.transform}: {self.what}" + (f" ({self.remedy})" if self.remedy else "")


class UnsupportedPipelineError(SubmissionError):
    """The pipeline needs things that are not supported; *all* of them are listed in `items`."""

    def __init__(self, items: tuple[Unsupported, ...]) -> None:
        lines = "\n".join(f"  - {item}" for item in items)
        super().__init__(f"this pipeline cannot run on arcbeam; {len(items)} unsupported item(s):\n{lines}")
        self.items = items

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.items,))


class InvalidPipelineError(SubmissionError):
    """The pipeline, its proto or its options are malformed or contradict themselves."""


class EnvironmentMismatchError(ArcbeamError):
    """Driver and worker run different versions of Python, Beam or arcbeam, or something is missing on one side."""


class JobFailedError(ArcbeamError):
    """A job ended FAILED. Subclasses say whose fault it was."""


class UserCodeError(JobFailedError):
    """User code raised. Never retried.

    Attributes:
        step: full name of the transform that raised ("" if unknown).
        traceback: the user's traceback, as text.
        error: `repr` of the exception.
    """

    _tagged_with_step = True
    """Tells the SDK's step annotation, through which it passes on its way up, that the step is known."""

    def __init__(self, step: str, error: str, traceback: str) -> None:
        super().__init__(f"{error} [while running '{step}']\n{traceback}")
        self.step = step
        self.error = error
        self.traceback = traceback

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.step, self.error, self.traceback))


class CoderError(UserCodeError):
    """A coder failed on one element; `error` names the element's repr (shortened) and the coder, `step` the step."""


class WorkerLostError(JobFailedError):
    """A Python worker or executor died (killed, out of memory, segmentation fault) more often than Spark retries."""


class JobCancelledError(ArcbeamError):
    """The job was cancelled."""


class JobNotFoundError(ArcbeamError):
    """No job has the given id."""


class SetupError(ArcbeamError):
    """Something outside the pipeline is missing or wrong: Java, PySpark, a port in use, a folder not writable."""


class StateFormatError(ArcbeamError):
    """Stored state is damaged, of a newer format, or not of what reads it.

    Args:
        what: the piece of state.
        why: what is wrong with it.
    """

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"{what} {why}",
            "resume with the version of arcbeam and the pipeline that wrote the state, or start without it",
        )
        self.args = (what, why)
