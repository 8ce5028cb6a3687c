"""The error of a Spark job whose worker died: which worker, how, and in which transform.

Owns how Spark's text and the worker's notes (`crashlog`) become one error, on the driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from arcbeam.errors import WorkerLostError
from arcbeam.spark.tasks.crashlog import WorkerCrash, crash_of
from arcbeam.store.jobtemp.location import JobLocation

_OF_WORKERS = ("crashed", "Python worker exited", "SIGSEGV", "MemoryError")
_LOST = (*_OF_WORKERS, "ExecutorLostFailure", "EOFException", "Connection reset", "Broken pipe")
_LOST_TASK = re.compile(r"Lost task [^\n]*?\(TID (\d+)\) \(([^)]*)\)")
_TIMES = re.compile(r"Task \d+ in stage [\d.]+ failed (\d+) times")
_NO_MEMORY = re.compile(r"MemoryError \[while running '(.*?)'\]")
"""The text that `failure.unrecorded` writes."""
_NAMES_MAX = 5
_KILLED = "signal 9"


def is_one(text: str) -> bool:
    """Return whether Spark's text reports a lost worker or executor."""
    return any(sign in text for sign in _LOST)


def described(text: str, running: Iterable[str], location: JobLocation, cause: str) -> WorkerLostError:
    """Return the error for a lost worker.

    Args:
        text: Spark's text.
        running: names of the stages that the Spark job ran.
        location: the job's location.
        cause: the last cause in the text.
    """
    lost = _LOST_TASK.findall(text)
    death = crash_of(location, [int(attempt) for attempt, _ in reversed(lost)])
    died = death is not None or any(sign in text for sign in _OF_WORKERS)
    no_memory = _NO_MEMORY.findall(text) if death is None else []
    if no_memory:
        death = WorkerCrash(no_memory[-1], "MemoryError")
    death = death or WorkerCrash()
    place = f" on {lost[-1][1]}" if lost else ""
    times = _TIMES.search(text)
    often = f"; Spark ran its task {times[1]} times" if times else ""
    if no_memory:
        what = f"user code ran out of memory{place}: {death}{often}"
    elif death.step or death.how:
        what = f"a Python worker died{place}: {death}{often}"
    else:
        what = (
            f"a Python worker or executor died{place}{often or ', and Spark does not try its task again'}. It was "
            "killed, ran out of memory, or had a segmentation fault in native code"
        )
    parts = [f"{what}."] if no_memory else [f"{what}.", cause]
    if death.stack:
        frames = "".join(f"\n  {line}" for line in death.stack.splitlines())
        parts.append(f"Its Python frames, innermost first:{frames}")
    if not death.step:
        names = list(running)
        more = ["…"] if len(names) > _NAMES_MAX else []
        parts.append("It ran one of these stages:" + "".join(f"\n  {name}" for name in [*names[:_NAMES_MAX], *more]))
    remedy = _remedy(death)
    return WorkerLostError("\n".join(parts), remedy, died=died, step=death.step, how=death.how, memory=death.memory)


def _remedy(death: WorkerCrash) -> str:
    memory = "give executors more memory (spark.executor.memoryOverhead)"
    if death.how == "MemoryError":
        return (
            f"check how much memory '{death.step}' allocates; if it needs that much, {memory}, or raise the limit of "
            "the operating system (ulimit -v)"
        )
    if death.how.startswith("exit code"):
        return f"raise an exception in '{death.step or 'the transform'}' instead of ending the process"
    if death.how and not death.how.startswith(_KILLED):
        where = f" that '{death.step}' calls" if death.step else ""
        return f"check the native code{where}: it crashed. The executor's log may have details"
    return (
        f"check the executor's log. If the system or an operator killed it for its memory, {memory}. To allow more "
        "retries, set a master local[n,4], or spark.task.maxFailures"
    )
