"""Progress of running tasks: small files that tasks write while they run, for display.

Owns both sides: the thread in a task that writes, and the driver's reading of the files. Results come from reports
only; these files are only displayed, and written only if the job is watched.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from arcbeam.errors import ArcbeamError
from arcbeam.spark.tasks import workerlog
from arcbeam.store.jobtemp.location import JobLocation

_FIRST_SECONDS = 0.2
"""A shorter task writes only at its end."""
_SECONDS = 2.0
_PULSE = struct.Struct("<qqdHHB")
"""The fields of `Pulse` from `attempt` on."""


class TaskState(IntEnum):
    """The state of a try of a task."""

    RUNNING = 0
    ENDED = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class Pulse:
    """The newest figures of a task.

    Attributes:
        stage: id of its stage.
        attempt: Spark's task attempt id.
        elements: that it has read.
        seconds: its duration so far, without the time in which it waited for its first input.
        retries: earlier tries of the task.
        round: number of its stage's round, from 1.
        state: of this try.
    """

    stage: str
    attempt: int
    elements: int = 0
    seconds: float = 0.0
    retries: int = 0
    round: int = 1
    state: TaskState = TaskState.RUNNING


@dataclass(frozen=True, slots=True)
class HeartbeatTask:
    """A task that writes every few seconds how far it is.

    Attributes:
        task: the task to run.
        stage: id of its stage.
        location: the job's temporary location.
        round: number of the stage's round, from 1.
    """

    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    stage: str
    location: JobLocation
    round: int = 1

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task: `mapInArrow` calls this."""
        context = TaskContext.get()
        partition, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        retries = context.attemptNumber() if context else 0
        workerlog.at("", "")  # forget the worker's previous task
        # SUBTLE: not named by attempt, so that a retry replaces the file of the failed attempt.
        name = f"pulses/{self.stage}-{partition}"
        ended = threading.Event()

        def write(state: TaskState) -> None:
            figures = attempt, workerlog.elements(), workerlog.seconds(), retries, self.round, state
            with contextlib.suppress(ArcbeamError):
                self.location.put_bytes(name, _PULSE.pack(*figures))

        def beat() -> None:
            seconds = _FIRST_SECONDS
            while not ended.wait(seconds):
                write(TaskState.RUNNING)
                seconds = _SECONDS

        thread = threading.Thread(target=beat, name="pulse", daemon=True)
        thread.start()
        state = None
        try:
            yield from self.task(batches)
            state = TaskState.ENDED
        except Exception:
            state = TaskState.FAILED
            raise
        finally:
            ended.set()
            thread.join()
            # A task that Spark has stopped has neither ended nor failed.
            if state is not None:
                write(state)


def pulses(location: JobLocation, without: Collection[str] = ()) -> list[Pulse]:
    """Return the newest figures of all tasks that have written some.

    Args:
        location: of the job.
        without: ids of stages whose files are not read.
    """
    found = []
    with contextlib.suppress(ArcbeamError):
        for name in location.list("pulses/"):
            stage = name.removeprefix("pulses/").rpartition("-")[0]
            if stage not in without:
                attempt, elements, seconds, retries, round, state = _PULSE.unpack(location.get_bytes(name))
                found.append(Pulse(stage, attempt, elements, seconds, retries, round, TaskState(state)))
    return found


def writes_pulses(location: JobLocation, watched: bool) -> bool:
    """Return whether tasks write their progress: in a watched job with a folder as its location (files are cheap)."""
    return watched and location.folder is not None


def pulsing(task: Any, stage: str, location: JobLocation, watched: bool, round: int = 1) -> Any:
    """Return the task, which writes its progress if tasks of this job do."""
    return HeartbeatTask(task, stage, location, round) if writes_pulses(location, watched) else task
