"""The exception tree: what can go wrong, by type, and what to do about it.

Owns every exception that crosses a package boundary. Decisions (retry, refuse, report) are made by type, never by
message. Every exception pickles, because most of them travel from a Spark worker to the driver.
Knows nothing of Beam or Spark.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar


def _unchanged(text: str) -> str:
    return text


redact: Callable[[str], str] = _unchanged
"""Takes secrets out of the texts of errors; `arcbeam.secrets` sets it when it is imported."""


class ArcbeamError(Exception):
    """Root of everything this project raises on purpose.

    Args:
        message: what is at fault, by name.
        remedy: what the reader can do about it; empty if the message says it.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        # SUBTLE: not `super()`: beside an error of ours there may be the user's own class (see `Raised`), whose
        # constructor is none of our business.
        message, remedy = redact(message), redact(remedy)
        Exception.__init__(self, message, remedy)
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


class MissingModuleError(EnvironmentMismatchError, ModuleNotFoundError):
    """User code needs a module that the workers do not have; an `ImportError` too, as with any other runner."""


class JobFailedError(ArcbeamError):
    """A job ended FAILED. Subclasses say whose fault it was."""


@dataclass(frozen=True, slots=True)
class Raised:
    """What user code raised, in parts, each of which travels for itself: an exception often does not pickle as a whole.

    Attributes:
        kinds: module and qualified name of its class and of those that this one inherits from, below `Exception`, in
            the order of their resolution; empty for what a driver must not raise (`SystemExit`, `StopIteration`).
        args: its `args`, pickled; empty if they cannot be.
        attributes: its other attributes by name, pickled, those that can be.
    """

    kinds: tuple[tuple[str, str], ...] = ()
    args: bytes = b""
    attributes: tuple[tuple[str, bytes], ...] = ()


class UserCodeError(JobFailedError):
    """User code raised. Never retried.

    One that has come from a worker is an instance of the user's own class, too, so that `except ValueError` around a
    pipeline means what it says; of the nearest class above it where its own cannot be found by name in this process, or
    does not take part in multiple inheritance. It has the `args` of what was raised, with the step behind a text that
    comes first, as the SDK has it, and its attributes, but for those that have names of ours. The user's constructor is
    not called.

    Attributes:
        step: full name of the transform that raised ("" if unknown).
        traceback: the user's traceback, as text.
        error: what the exception says, as the last line of a traceback does.
        raised: what was raised; None if nothing is known of it.
    """

    _tagged_with_step = True
    """Tells the SDK's step annotation, through which it passes on its way up, that the step is known."""

    _ours: ClassVar[type[UserCodeError] | None] = None
    """The class of ours in one that is the user's, too."""

    def __init__(self, step: str, error: str, traceback: str, raised: Raised | None = None) -> None:
        error, traceback = redact(error), redact(traceback)
        ArcbeamError.__init__(self, f"{error} [while running '{step}']\n{traceback}")
        self.step = step
        self.error = error
        self.traceback = traceback
        self.raised = raised

    def about(self, what: str) -> UserCodeError:
        """The same, of something that was being processed: a step, a key, a restriction."""
        return type(self)(self.step, self.error, f"{self.traceback.rstrip()}\n  {what}\n", self.raised)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_user_code_error, (self._ours or type(self), self.step, self.error, self.traceback, self.raised))


def _user_code_error(
    ours: type[UserCodeError], step: str, error: str, traceback: str, raised: Raised | None
) -> UserCodeError:
    """The error as this process can have it: of the user's class, too, if it has that."""
    for module, name in raised.kinds if raised else ():
        # Whatever a class of the user's has against it: there is the next one, and the plain error.
        with contextlib.suppress(Exception):
            kind = functools.reduce(getattr, name.split("."), sys.modules[module])
            if isinstance(kind, type) and issubclass(kind, Exception) and kind is not Exception:
                return _as_kind(kind, ours(step, error, traceback, raised))
    return ours(step, error, traceback, raised)


_STATIC = 1 << 9
"""Not set in the flags of a class that is written in C: the interpreter's `Py_TPFLAGS_HEAPTYPE`."""

_SAFE = ("__delattr__", "__eq__", "__getattribute__", "__hash__", "__reduce_ex__", "__repr__", "__setattr__")
"""What Python needs to raise, print and pickle an exception: not the user's, who may have frozen it, for example."""


@functools.lru_cache(maxsize=64)
def _mixed(ours: Any, kind: Any) -> Any:
    """A class that is both, and looks like ours."""
    namespace = {name: getattr(ours, name) for name in ("__module__", "__qualname__", "__doc__")}
    namespace |= {name: getattr(Exception, name) for name in _SAFE} | {"_ours": ours}
    return types.new_class(ours.__name__, (ours, kind), exec_body=lambda body: body.update(namespace))


def _as_kind(kind: Any, error: Any) -> UserCodeError:
    """The same error as an instance of `kind`, too; raises whatever keeps it from being one."""
    ours: Any = type(error)
    raised = error.raised
    assert raised is not None
    builtin: Any = next(k for k in kind.__mro__ if not k.__flags__ & _STATIC)
    made: UserCodeError = builtin.__new__(_mixed(ours, kind))
    UserCodeError.__init__(made, error.step, error.error, error.traceback, raised)
    own = set(vars(made))
    for name, value in raised.attributes:
        if name not in own:
            with contextlib.suppress(Exception):
                setattr(made, name, pickle.loads(value))
    made.args = (error.message,)
    with contextlib.suppress(Exception):
        made.args = pickle.loads(raised.args)
        # As the SDK's runners do it: tests and handlers look there for the step.
        step = f" [while running '{error.step}']"
        if made.args and isinstance(made.args[0], str) and not made.args[0].endswith(step):
            made.args = (made.args[0] + step, *made.args[1:])
    return made


class CoderError(UserCodeError):
    """A coder failed on one element; `error` names the element's repr (shortened) and the coder, `step` the step."""


class WorkerLostError(JobFailedError):
    """A Python worker or executor died (killed, out of memory, segmentation fault) more often than Spark retries.

    Attributes:
        died: a Python worker died, perhaps of its user code; False if only its executor or a connection was lost.
        step: full name of the transform that ran last in it ("" if unknown).
        how: its exit code or signal, for people ("" if unknown).
        memory: its resident bytes shortly before (0 if unknown).
        tries: runs of the micro-batch in which a worker died; 0 in a bounded job.
    """

    def __init__(
        self,
        message: str,
        remedy: str = "",
        *,
        died: bool = False,
        step: str = "",
        how: str = "",
        memory: int = 0,
        tries: int = 0,
    ) -> None:
        super().__init__(message, remedy)
        self.died, self.step, self.how, self.memory, self.tries = died, step, how, memory, tries

    def after(self, tries: int) -> WorkerLostError:
        """Return the same error of a job that gives up after so many tries of a micro-batch."""
        message = f"{self.message}\nThis happened in {tries} of {tries} tries of the micro-batch."
        return WorkerLostError(
            message, self.remedy, died=self.died, step=self.step, how=self.how, memory=self.memory, tries=tries
        )


class DriverLostError(JobFailedError):
    """Spark's driver, the Java process of the session, died: of memory, killed, or crashed."""


class ServerLostError(JobFailedError):
    """A Spark Connect server does not answer, or has lost the session: it was stopped or restarted."""


class JobCancelledError(ArcbeamError):
    """The job was cancelled."""


class RequestRefusedError(ArcbeamError):
    """What was asked of a job is not possible as the job stands, or cannot come true any more."""


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
