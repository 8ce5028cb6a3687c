"""Texts about failed tries of a micro-batch, while it is retried, and about failed attempts of its tasks.

Owns the texts. Must not know where they are shown, nor whether there is another try.
"""

from __future__ import annotations

from typing import Final

ATTEMPT: Final = "attempt "
"""Begins a line about a failed attempt."""


def on_host(host: str, why: str) -> str:
    """Return the reason of a failure with the host of the task."""
    return f"on host {host}: {why}" if host else why


def failed_try(number: int, most: int, why: str) -> str:
    """Return a line about a failed try.

    Args:
        number: the number of the try, from 1.
        most: the number of tries after which the job fails.
        why: the error, whose first line is taken.
    """
    return f"try {number} of {most} failed: {why.partition(chr(10))[0]}"


def deadly_try(number: int, most: int, transform: str, how: str) -> str:
    """Return a line about a try in which a worker died.

    Args:
        number: the number of the try, from 1.
        most: the number of tries after which the job fails.
        transform: the transform that ran last in the worker; "" if unknown.
        how: how it died: an exit code, a signal; "" if unknown.
    """
    in_transform = f"in transform '{transform}'" if transform else ""
    return ", ".join(filter(None, (f"a worker died in try {number} of {most}", in_transform, how)))


def failed_attempt(number: int, micro_batch: int, level: int, task: int, why: str) -> str:
    """Return a line about a failed attempt of a task that Spark ran again.

    Args:
        number: the number of the attempt, from 1.
        micro_batch: the number of the micro-batch.
        level: the task's level.
        task: its number in the level.
        why: the error, whose first line is taken.
    """
    which = f"{ATTEMPT}{number} of task {task} failed (micro-batch {micro_batch}, level {level})"
    return f"{which}; Spark ran it again: {why.partition(chr(10))[0]}"


def more_attempts(count: int, micro_batch: int) -> str:
    """Return a line about failed attempts that have no lines of their own."""
    return f"{count} more attempts of tasks of micro-batch {micro_batch} failed, and Spark ran the tasks again"
