"""The exception tree: what can fail, by type, and what to do about it.

Owns every exception that crosses a package boundary. Decisions (retry, refuse, report) are made by type, never by
message. Every exception pickles: most of them travel from a Spark worker to the driver. Must not import Beam or Spark.
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
"""Removes secrets from the texts of errors; `arcbeam.secrets` sets it when it is imported."""


class ArcbeamError(Exception):
    """Root of all exceptions that arcbeam raises on purpose.

    Args:
        message: what failed, with its name.
        remedy: what the reader can do about it; empty if the message says it.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        # SUBTLE: not `super()`: the class may also inherit from the user's own class (see `Raised`), whose constructor
        # must not be called.
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
    """One property of a pipeline that is not supported.

    Attributes:
        transform: full name of the transform, or "pipeline".
        what: it needs.
        remedy: what the user can do instead; may be empty.
    """

    transform: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.transform}: {self.what}" + (f" ({self.remedy})" if self.remedy else "")


class UnsupportedPipelineError(SubmissionError):
    """The pipeline needs features that are not supported; `items` lists *all* of them."""

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
    """A job ended FAILED. The subclass names the cause."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of user code, in parts. Each part is pickled separately: often the whole exception cannot be.

    Attributes:
        kinds: module and qualified name of its class and of the base classes below `Exception`, in resolution order;
            empty for classes that a driver must not raise (`SystemExit`, `StopIteration`).
        args: its `args`, pickled; empty if they cannot be.
        attributes: those of its other attributes that can be pickled, by name.
    """

    kinds: tuple[tuple[str, str], ...] = ()
    args: bytes = b""
    attributes: tuple[tuple[str, bytes], ...] = ()


class UserCodeError(JobFailedError):
    """User code raised. Never retried.

    An error from a worker is also an instance of the user's own class, so that `except ValueError` around a pipeline
    works. If this process cannot find that class by name, or the class does not allow multiple inheritance, the nearest
    base class is used. The error has the `args` of the user's exception; the step follows a text in the first argument,
    as in the SDK. It has the user's attributes, except those with names that this class uses. The user's constructor is
    not called.

    Attributes:
        step: full name of the transform that raised ("" if unknown).
        traceback: the user's traceback, as text.
        error: the last line of the user's traceback.
        raised: the user's exception; None if nothing is known of it.
    """

    _tagged_with_step = True
    """Tells the SDK, which adds the step to exceptions that pass through it, that the step is known."""

    _ours: ClassVar[type[UserCodeError] | None] = None
    """The class of arcbeam in a class that also inherits from the user's."""

    def __init__(self, step: str, error: str, traceback: str, raised: Raised | None = None) -> None:
        error, traceback = redact(error), redact(traceback)
        ArcbeamError.__init__(self, f"{error} [while running '{step}']\n{traceback}")
        self.step = step
        self.error = error
        self.traceback = traceback
        self.raised = raised

    def about(self, what: str) -> UserCodeError:
        """Return the same error with a line about what was being processed: a step, a key, a restriction."""
        return type(self)(self.step, self.error, f"{self.traceback.rstrip()}\n  {what}\n", self.raised)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_user_code_error, (self._ours or type(self), self.step, self.error, self.traceback, self.raised))


def _user_code_error(
    ours: type[UserCodeError], step: str, error: str, traceback: str, raised: Raised | None
) -> UserCodeError:
    """Return the error in this process: an instance of the user's class, too, if this process has it."""
    for module, name in raised.kinds if raised else ():
        # Any failure of a user's class leads to the next class, and last to the plain error.
        with contextlib.suppress(Exception):
            kind = functools.reduce(getattr, name.split("."), sys.modules[module])
            if isinstance(kind, type) and issubclass(kind, Exception) and kind is not Exception:
                return _as_kind(kind, ours(step, error, traceback, raised))
    return ours(step, error, traceback, raised)


_STATIC = 1 << 9
"""The interpreter's `Py_TPFLAGS_HEAPTYPE`. Classes written in C do not have this flag."""

_SAFE = ("__delattr__", "__eq__", "__getattribute__", "__hash__", "__reduce_ex__", "__repr__", "__setattr__")
"""Methods that Python needs to raise, print and pickle an exception. The user's may fail, for example if frozen."""


@functools.lru_cache(maxsize=64)
def _mixed(ours: Any, kind: Any) -> Any:
    """Return a class that inherits from both, with the name of `ours`."""
    namespace = {name: getattr(ours, name) for name in ("__module__", "__qualname__", "__doc__")}
    namespace |= {name: getattr(Exception, name) for name in _SAFE} | {"_ours": ours}
    return types.new_class(ours.__name__, (ours, kind), exec_body=lambda body: body.update(namespace))


def _as_kind(kind: Any, error: Any) -> UserCodeError:
    """Return the same error as an instance of `kind`, too. Raises whatever prevents it."""
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
        # As in the SDK's runners: tests and handlers look there for the step.
        step = f" [while running '{error.step}']"
        if made.args and isinstance(made.args[0], str) and not made.args[0].endswith(step):
            made.args = (made.args[0] + step, *made.args[1:])
    return made


class CoderError(UserCodeError):
    """A coder failed on one element. `error` has the element's repr (shortened) and the coder, `step` the transform."""


class PublishRefusedError(JobFailedError):
    """A publisher refuses committables, and would again. Never retried: the user must do something first."""


class WorkerLostError(JobFailedError):
    """A worker or executor died (killed, out of memory, segmentation fault) more often than the job retries.

    Attributes:
        died: a Python worker or SDK worker died, perhaps of its user code; False if only its executor or a connection
            was lost.
        step: full name of the transform that it ran last ("" if unknown).
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
        """Return the same error for a job that gives up after this many tries of a micro-batch."""
        message = f"{self.message}\nThis happened in {tries} of {tries} tries of the micro-batch."
        return WorkerLostError(
            message, self.remedy, died=self.died, step=self.step, how=self.how, memory=self.memory, tries=tries
        )


class SubmitterLostError(JobFailedError):
    """The program that submitted the job, in which its SDK workers run (LOOPBACK), has ended. Never retried."""


class SdkWorkerStartError(JobFailedError):
    """No SDK worker of an environment starts, and none has started since the job began to run here.

    Retried for two minutes at most: its command, image or service is probably wrong.

    Attributes:
        ended: a program of the executor's machine was started, and has ended. That is retried twice.
    """

    def __init__(self, message: str, remedy: str = "", *, ended: bool = False) -> None:
        super().__init__(message, remedy)
        self.ended = ended


class DriverLostError(JobFailedError):
    """Spark's driver, the Java process of the session, died: out of memory, killed, or crashed."""


class ServerLostError(JobFailedError):
    """A Spark Connect server does not answer, or has lost the session: it was stopped or restarted."""


class JobCancelledError(ArcbeamError):
    """The job was cancelled."""


class RequestRefusedError(ArcbeamError):
    """A request to a job cannot be carried out in the job's state."""


class JobNotFoundError(ArcbeamError):
    """No job has the given id."""


class SetupError(ArcbeamError):
    """Something outside the pipeline is missing or wrong: Java, PySpark, a used port, a folder without write access."""


class StateFormatError(ArcbeamError):
    """Stored state is damaged, has a newer format, or belongs to another reader.

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
