"""Progress of running tasks: small files that tasks write while they run, for display.

Owns both sides: the thread in a task that writes, and the sums that the driver makes of the files. Results come from
reports only; these files are only displayed, and written only if the job is watched.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from arcbeam.errors import ArcbeamError
from arcbeam.model.rows import BundleReport
from arcbeam.spark.tasks import workerlog
from arcbeam.store.jobtemp.location import JobLocation

_SECONDS = 2.0
_PULSE = struct.Struct("<qqH?")
"""Task attempt id, elements read so far, earlier tries of the task, whether it has ended."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """The newest figures of a task.

    Attributes:
        stage: id of its stage.
        attempt: Spark's task attempt id.
        elements: that it has read.
        retries: earlier tries of the task.
        ended: whether it has ended.
    """

    stage: str
    attempt: int
    elements: int
    retries: int
    ended: bool


@dataclass(frozen=True, slots=True)
class HeartbeatTask:
    """A task that writes every few seconds how many elements it has read.

    Attributes:
        task: the task to run.
        stage: id of its stage.
        location: the job's temporary location.
    """

    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    stage: str
    location: JobLocation

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task: `mapInArrow` calls this."""
        context = TaskContext.get()
        partition, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        retries = context.attemptNumber() if context else 0
        workerlog.at("", "")  # forget the worker's previous task
        # SUBTLE: not named by attempt, so that a retry replaces the file of the failed attempt.
        name = f"pulses/{self.stage}-{partition}"
        ended = threading.Event()

        def write(end: bool = False) -> None:
            elements = workerlog.elements()
            if elements or retries:
                with contextlib.suppress(ArcbeamError):
                    self.location.put_bytes(name, _PULSE.pack(attempt, elements, retries, end))

        def beat() -> None:
            while not ended.wait(_SECONDS):
                write()

        thread = threading.Thread(target=beat, name="pulse", daemon=True)
        thread.start()
        try:
            yield from self.task(batches)
        finally:
            ended.set()
            thread.join()
        write(end=True)


def pulses(location: JobLocation) -> list[Pulse]:
    """Return the newest figures of all tasks that have written some."""
    found = []
    with contextlib.suppress(ArcbeamError):
        for name in location.list("pulses/"):
            attempt, elements, retries, ended = _PULSE.unpack(location.get_bytes(name))
            stage = name.removeprefix("pulses/").rpartition("-")[0]
            found.append(Pulse(stage, attempt, elements, retries, ended))
    return found


def unreported(location: JobLocation, reports: Iterable[BundleReport]) -> tuple[int, int]:
    """Return the progress of tasks that have not reported yet.

    Returns:
        The number of elements that they have read, and how many of them have ended.
    """
    reported = {(report.stage, report.attempt) for report in reports}
    running = [pulse for pulse in pulses(location) if (pulse.stage, pulse.attempt) not in reported]
    return sum(pulse.elements for pulse in running), sum(pulse.ended for pulse in running)


def pulsing(task: Any, stage: str, location: JobLocation, watched: bool) -> Any:
    """Return the task with progress files, if the job is watched and its location is a folder (files are cheap)."""
    return HeartbeatTask(task, stage, location) if watched and location.folder is not None else task
