"""The meaning of a failure: a user's error, a missing module, a lost worker, a cancellation.

Owns both sides of an error's path. In the worker, the error that `arcbeam.harness.bundle.usererrors` makes of an
exception is recorded in the job's location, and Spark sees one line. On the driver, a failed Spark job becomes the
recorded error. Spark's texts decide only if no error can have been recorded: the worker died, or could not import
arcbeam. Imports no Spark, because both sides use it.
"""

from __future__ import annotations

import pickle
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from arcbeam.errors import (
    ArcbeamError,
    EnvironmentMismatchError,
    JobCancelledError,
    JobFailedError,
    UserCodeError,
)
from arcbeam.harness.bundle.usererrors import original
from arcbeam.model import texts
from arcbeam.spark.tasks import lostworker
from arcbeam.spark.tasks.sdkworkers import losses
from arcbeam.store.jobtemp.location import JobLocation

_CANCELLED = ("OPERATION_CANCELED", "cancelled", "canceled", "SPARK_JOB_CANCELLED", "INTERRUPTED")
_STOPPED = re.compile(r"SparkContext was shut ?down|stopped SparkContext|SparkContext is stopping")
_CAUSE_CHARACTERS_MAX = 4000

_OTHER_PYTHON = re.compile(
    r"PYTHON_VERSION_MISMATCH\] Python in worker has different version:? \(?['\"]?(\d[\d.]*).{0,3}?"
    r" (?:than|from) (?:that )?in driver:? \(?['\"]?(\d[\d.]*)",
    re.DOTALL,
)
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_SDK_WORKER = re.compile(r"^arcbeam\.fnapi\.lost\.SdkWorker(?:Lost|NotStarted)Error: (.*(?:\n  .*)*)", re.MULTILINE)
"""The text of such an error, whose further lines are what the worker's process wrote last."""


class TaskFailedError(Exception):
    """A user's error as Spark sees, prints and repeats it: one line. The job's location has the whole error."""


# In the worker.


def fit_for_spark(error: BaseException) -> BaseException:
    """Return the exception, or a replacement that PySpark's worker can send: encodable and of readable length.

    SUBTLE: the worker announces an error before it encodes it. If encoding fails, the JVM waits for the text forever.
    """
    try:
        text = texts.within(texts.SECONDS, lambda: "".join(traceback.format_exception(error)))
    except Exception as e:
        return TaskFailedError(f"{texts.fit(type(error).__name__)} (it cannot be described: {type(e).__name__})")
    fitting = texts.fit(text)
    return error if text == fitting else TaskFailedError(fitting)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A task whose exceptions Spark can always receive.

    Attributes:
        task: the task to run.
    """

    task: Callable[[Iterator[Any]], Iterator[Any]]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Run the task: `mapInArrow` calls this."""
        try:
            yield from self.task(batches)
            return
        except GeneratorExit:
            raise
        except BaseException as e:
            error = fit_for_spark(e)
        # SUBTLE: raised outside of `except`, so that the replaced error is not its context and is not printed with it.
        raise error


def record(location: JobLocation, stage: str, error: ArcbeamError) -> Exception:
    """Record an error where the driver and the task's retries find it.

    Returns:
        The exception to raise to Spark: one line, or the whole error if it could not be recorded.
    """
    try:
        location.record_error(stage, pickle.dumps(error))
    except Exception as e:
        error.add_note(f"(could not record it in the job's location: {type(e).__name__}: {e})")
        return error
    return one_line(error)


def unrecorded(error: BaseException, step: str) -> BaseException:
    """Return what Spark sees of an error that a retry may avoid: for a MemoryError, one line with the transform.

    Args:
        error: the exception that left the bundle.
        step: the transform that ran; the SDK's own note in the error has priority.
    """
    raised, step = original(error, step)
    return TaskFailedError(f"MemoryError [while running '{step}']") if isinstance(raised, MemoryError) else error


def one_line(error: ArcbeamError) -> TaskFailedError:
    """Return an error as Spark may print it repeatedly."""
    if isinstance(error, UserCodeError):
        what, where = error.error, f" in step '{error.step}'"
    else:
        what, where = error.message, ""
    first = what.splitlines()[0] if what else type(error).__name__
    return TaskFailedError(texts.fit(f"{first[:300]}{where} (traceback: see the driver)"))


def recorded(location: JobLocation, stage: str = "") -> ArcbeamError | None:
    """Return the first error that tasks of the job recorded, or that tasks of one stage recorded."""
    for data in location.errors(stage):
        found = pickle.loads(data)
        if isinstance(found, ArcbeamError):
            return found
    return None


# On the driver.


def as_job_failure(
    error: Exception, location: JobLocation, running: Iterable[str] = (), stage: str = ""
) -> ArcbeamError:
    """Return the exception to raise for a failed Spark job. Its `__cause__` is set if Spark's own text adds something.

    Args:
        error: the exception that Spark raised.
        location: the job's location, where a user's error is recorded.
        running: names of the stages that the Spark job ran.
        stage: the stage whose recorded errors count; "": all stages.
    """
    found = recorded(location, stage)
    if found is not None:
        found.__suppress_context__ = True
        return found
    failure = _from_text(error, str(error), running, location, stage)
    if type(failure) is JobFailedError:
        failure.__cause__ = error
    failure.__suppress_context__ = True
    return failure


def _from_text(error: Exception, text: str, running: Iterable[str], location: JobLocation, stage: str) -> ArcbeamError:
    if _STOPPED.search(text):
        return JobFailedError("the Spark session was stopped while the job ran on it")
    if any(sign in text for sign in _CANCELLED):
        return JobCancelledError("the job's Spark jobs were cancelled")
    versions = _OTHER_PYTHON.search(text)
    if versions or "PYTHON_VERSION_MISMATCH" in text:
        named = (
            f"the driver runs Python {versions[2]}; the worker runs Python {versions[1]}" if versions else text[:500]
        )
        return EnvironmentMismatchError(
            named, "use the same versions on both sides; PYSPARK_PYTHON names the workers' interpreter"
        )
    missing = _NO_MODULE.search(text)
    if missing and missing[1].split(".")[0] in ("arcbeam", "apache_beam", "lmdb", "pyarrow", "pandas"):
        return EnvironmentMismatchError(
            f"module '{missing[1]}' is missing on the worker",
            "install arcbeam (with its dependencies) for the workers' interpreter, which PYSPARK_PYTHON names",
        )
    if sdk_worker := _SDK_WORKER.search(text):
        return losses.left(location, stage) or JobFailedError(sdk_worker[1].rstrip())
    if lostworker.is_one(text):
        return lostworker.described(text, running, location, _last_cause(text))
    return JobFailedError(f"a Spark job failed: {_last_cause(text)}")


def _last_cause(text: str) -> str:
    """Return the last cause that Spark names; without one, the beginning of the text."""
    causes = [line for line in text.splitlines() if line.startswith("Caused by:")]
    return (causes[-1] if causes else text)[:_CAUSE_CHARACTERS_MAX]
