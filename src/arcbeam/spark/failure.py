"""What a failed Spark job means: a user's error, a lost worker, a cancellation.

Owns the translation of Spark's exceptions into ours. A user's error is known by its record in the job's temporary
location; Spark's texts only name what happened, they decide nothing.
"""

from __future__ import annotations

import pickle

from arcbeam.errors import ArcbeamError, JobCancelledError, JobFailedError, WorkerLostError
from arcbeam.store.location import JobLocation

_LOST = ("crashed", "ExecutorLostFailure", "Python worker exited", "EOFException", "Connection reset", "SIGSEGV")
_CANCELLED = ("OPERATION_CANCELED", "cancelled", "SPARK_JOB_CANCELLED")


def as_job_failure(error: Exception, location: JobLocation) -> ArcbeamError:
    """The exception to raise for a failed Spark job."""
    for record in location.errors():
        found = pickle.loads(record)
        if isinstance(found, ArcbeamError):
            return found
    text = str(error)
    if any(sign in text for sign in _LOST):
        return WorkerLostError(
            "a Python worker or executor died more often than Spark retries a task "
            f"(killed, out of memory, or a segmentation fault in native code):\n{_last_cause(text)}",
            "look at the executor's log; give executors more memory (spark.executor.memoryOverhead), or allow more "
            "retries (a master local[n,4], or spark.task.maxFailures)",
        )
    if any(sign in text for sign in _CANCELLED):
        return JobCancelledError("the job's Spark jobs were cancelled")
    return JobFailedError(f"a Spark job failed: {_last_cause(text)}")


def _last_cause(text: str) -> str:
    """The last cause that Spark names, else the beginning of the text."""
    causes = [line for line in text.splitlines() if line.startswith("Caused by:")]
    return causes[-1] if causes else text[:4000]
