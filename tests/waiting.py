"""Waiting until something has happened: each wait has a deadline, and its failure says what was awaited.

If the code under test has an event for it, wait for that instead.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

SECONDS = 120.0
"""The usual deadline: late, because the machine may be busy."""
_INTERVAL_SECONDS = 0.02


class Deadline:
    """For loops that do something until a condition holds: they check it each time.

    Args:
        what: what is awaited; or a function that returns it, and what happened instead, such as a log.
        seconds: how long the loop may last.
    """

    def __init__(self, what: str | Callable[[], str] = "", seconds: float = SECONDS) -> None:
        self._what, self._seconds = what, seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Fail if it has passed."""
        if time.monotonic() > self._end:
            self.fail(f"not in {self._seconds:.0f} s")

    def fail(self, how: str) -> None:
        """Fail."""
        raise AssertionError(f"{how}: {self._what() if callable(self._what) else self._what}")


def until(
    condition: Callable[[], T | None],
    what: str | Callable[[], str] = "",
    *,
    seconds: float = SECONDS,
    process: subprocess.Popen[Any] | None = None,
) -> T:
    """Return the first true value of a condition.

    Args:
        condition: evaluated every few milliseconds.
        what: see `Deadline`.
        seconds: the deadline.
        process: a process that must not end before.
    """
    deadline = Deadline(what, seconds)
    while True:
        # Before the condition: what a process did before its end counts.
        ended = process is not None and process.poll() is not None
        if found := condition():
            return found
        if ended:
            deadline.fail("the process ended before")
        deadline.check()
        time.sleep(_INTERVAL_SECONDS)


def while_running(result: Any, condition: Callable[[], T | None], what: str = "", *, seconds: float = 5 * SECONDS) -> T:
    """Return the first true value of a condition while a job runs, which must not end before.

    Args:
        result: the result of the job.
        condition: evaluated every few milliseconds.
        what: what is awaited.
        seconds: the deadline.
    """
    deadline = Deadline(what, seconds)
    while not (found := condition()):
        assert result.wait_until_finish(20) == "RUNNING", f"the job ended before: {what}"
        deadline.check()
    return found
