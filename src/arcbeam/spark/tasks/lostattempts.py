"""Attempts of tasks that failed: why, if Spark ran the task of a streaming job again, and what they have logged.

Owns both sides: what a failed attempt leaves for the next one, which reports it, or for the driver, and what the driver
says of it. Spark does not report such attempts. While none fails, this costs nothing. Imports no Spark, because both
sides use it.

If Spark runs a whole stage again, as after the loss of an executor with a shuffle, attempts begin with number 0, and
are not reported: PySpark's `TaskContext` does not have the number of the stage's attempt.
"""

from __future__ import annotations

import contextlib
import json
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from arcbeam.errors import ArcbeamError
from arcbeam.model import texts
from arcbeam.model.rows import LogLine
from arcbeam.sizes import threshold
from arcbeam.spark.tasks.crashlog import crash_at
from arcbeam.spark.tasks.workerlog import task_lines
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.streaming.status.tries import failed_attempt, more_attempts, on_host

_LINES_MAX: Final = threshold(4)
"""Attempts of a micro-batch that get a line each."""
_LOGS: Final = "logs/"
_UNKNOWN: Final = "the reason is unknown; perhaps its executor was lost"


class StageLines(NamedTuple):
    """Lines that a task of a stage has logged.

    Attributes:
        stage: its id.
        worker: "host:pid" of the Python worker.
        lines: the lines.
    """

    stage: str
    worker: str
    lines: Sequence[LogLine]


@dataclass(frozen=True, slots=True)
class TaskRun:
    """A task in a run of a micro-batch.

    Attributes:
        micro_batch, run: the micro-batch, and its run by the driver.
        level, task: the task.
    """

    micro_batch: int
    run: int
    level: int
    task: int

    def place(self, number: int) -> list[int]:
        """Return what names one of its attempts in the notes of workers."""
        return [self.micro_batch, self.run, self.level, self.task, number]

    @property
    def _file(self) -> str:
        # SUBTLE: not named by the run, so that there are never more files than tasks.
        return f"attempts/{self.level}-{self.task}"


# In the worker.


def record_failure(location: JobLocation, of: TaskRun, number: int, error: BaseException) -> None:
    """Leave the reason of a failed attempt to the next one. Never raises: it is only for display.

    Args:
        location: the job's location.
        of: the task.
        number: of the attempt, from 0.
        error: the exception for Spark.
    """
    if location.folder is not None and not location.folder.exists():
        return  # the job has ended
    why = on_host(socket.gethostname(), texts.safe_text(str, error).partition("\n")[0][:1000])
    whys = [*earlier(location, of, number), why]
    with contextlib.suppress(ArcbeamError, OSError):
        location.put_bytes(of._file, json.dumps([of.micro_batch, of.run, whys]).encode())


def earlier(location: JobLocation, of: TaskRun, number: int) -> tuple[str, ...]:
    """Return the reasons of all attempts before one; "" is unknown: the worker may have died."""
    whys: list[str] = []
    if number:
        with contextlib.suppress(ArcbeamError, OSError, ValueError):
            *run, found = json.loads(location.get_bytes(of._file))
            whys = found if run == [of.micro_batch, of.run] else []
    return tuple((whys + [""] * number)[:number])


def record_lines(location: JobLocation, task: str, worker: str) -> None:
    """Leave the lines of a failed attempt for the driver. Never raises: they are only for display.

    Args:
        location: the job's location.
        task: a name of the task that its other attempts share, so that there are never more files than tasks.
        worker: the name of this process.
    """
    found = {stage: task_lines.taken(stage) for stage in task_lines.stages()}
    if not found or (location.folder is not None and not location.folder.exists()):
        return  # nothing to leave, or the job has ended
    with contextlib.suppress(ArcbeamError, OSError):
        location.put_bytes(f"{_LOGS}{task}", json.dumps([uuid.uuid4().hex, worker, found]).encode())


# On the driver.


class LeftLines:
    """What failed attempts of tasks have left.

    Args:
        location: the job's location.
    """

    def __init__(self, location: JobLocation) -> None:
        self._location, self._seen = location, dict[str, str]()

    def new(self) -> Iterator[StageLines]:
        """Yield what is new. Never raises."""
        with contextlib.suppress(ArcbeamError, OSError, ValueError):
            for name in self._location.list(_LOGS):
                id, worker, found = json.loads(self._location.get_bytes(name))
                if self._seen.get(name) != id:
                    self._seen[name] = id
                    for stage, lines in found.items():
                        yield StageLines(stage, worker, [LogLine(*line) for line in lines])


def warnings(location: JobLocation, tasks: Iterable[tuple[TaskRun, tuple[str, ...]]]) -> list[str]:
    """Return a line for each failed attempt; if there are many, for some of them, and one about the others.

    Args:
        location: the job's location.
        tasks: tasks of one micro-batch, with the result of `earlier`.
    """
    failed = [(of, number, why) for of, whys in tasks for number, why in enumerate(whys)]
    lines = [
        failed_attempt(number + 1, of.micro_batch, of.level, of.task, why or _death(location, of, number))
        for of, number, why in failed[:_LINES_MAX]
    ]
    if len(failed) > _LINES_MAX:
        lines.append(more_attempts(len(failed) - _LINES_MAX, failed[0][0].micro_batch))
    return lines


def _death(location: JobLocation, of: TaskRun, number: int) -> str:
    death = crash_at(location, of.place(number))
    return _UNKNOWN if death is None else on_host(death.host, f"a Python worker died: {death}")
