"""The progress of a job on stderr: a progress line on a terminal, and lines about the start of the job.

Owns when a line is written, and its content. Knows a job only through a function that returns its progress.
"""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TextIO

from arcbeam.model.texts import visible

_LOG = logging.getLogger("arcbeam")

_QUIET_SECONDS = 2.0
"""Jobs shorter than this show no progress line."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a job.

    Attributes:
        stages: names of the stages that run now.
        elements: elements that tasks have read so far. The figures of running tasks are a few seconds old.
        tasks: number of finished tasks.
    """

    stages: tuple[str, ...]
    elements: int
    tasks: int


class StageState(StrEnum):
    """The state of a stage of a bounded job. The last three are those of a job that failed or was cancelled."""

    WAITING = "waiting"
    """No task has begun."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """Its error ended the job."""
    STOPPED = "stopped"
    """The job ended while it ran."""
    NOT_RUN = "not run"

    def at_end(self) -> StageState:
        """Return the state when a job ends that is not done."""
        return {StageState.RUNNING: StageState.STOPPED, StageState.WAITING: StageState.NOT_RUN}.get(self, self)


@dataclass(frozen=True, slots=True)
class StageProgress:
    """A stage of a bounded job.

    Attributes:
        stage: its name.
        state: of the stage.
        tasks: the number of its tasks that have ended, in all rounds so far.
        of: the number of its tasks in all rounds so far; 0: not known yet.
        retries: tries of tasks after the first.
        elements: that its tasks have read; of running tasks a few seconds ago.
        seconds: the sum of the durations of its tasks so far.
        rounds: of a splittable stage: the rounds that have begun; 1 for other stages.
        live: whether running tasks report. Otherwise figures come when the Spark job of the stage ends, and a stage
            whose tasks wait for a free core is RUNNING, too.
        spark_stage: the id of Spark's last stage that ran its tasks; None: unknown.
    """

    stage: str
    state: StageState = StageState.WAITING
    tasks: int = 0
    of: int = 0
    retries: int = 0
    elements: int = 0
    seconds: float = 0.0
    rounds: int = 1
    live: bool = True
    spark_stage: int | None = None


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of a bounded job, as a page shows it.

    Attributes:
        stages: producers first.
        plan: as `arcbeam.explain.as_json`; None: unknown.
        log: what its tasks have logged; see `arcbeam.runner.stagelog`.
        spark: the address of Spark's page; "": unknown.
    """

    stages: tuple[StageProgress, ...]
    plan: Mapping[str, Any] | None = None
    log: Sequence[Mapping[str, Any]] = ()
    spark: str = ""


def summed(stages: Sequence[StageProgress]) -> JobProgress:
    """Return the progress of a bounded job."""
    running = tuple(stage.stage for stage in stages if stage.state is StageState.RUNNING)
    return JobProgress(running, sum(stage.elements for stage in stages), sum(stage.tasks for stage in stages))


def line(progress: JobProgress, seconds: float, width: int) -> str:
    """Return one line of at most `width` characters: elapsed time, elements, tasks, stages."""
    figures = f"{seconds:5.0f} s  {progress.elements:,} elements  {progress.tasks} tasks"
    stages = "; ".join(progress.stages)
    return f"{figures}  {stages}"[:width]


def announce(text: str, stream: TextIO | None = None) -> None:
    """Report a phase of a job's start, which may take half a minute: in the log at INFO, or else on stderr.

    Python's logging shows WARNING and above until it is configured. If the logger "arcbeam" shows less than WARNING,
    nothing is written.

    Args:
        text: one line.
        stream: where to write if the log does not show INFO (default: stderr).
    """
    if _LOG.isEnabledFor(logging.INFO):
        _LOG.info("%s", text)
    elif _LOG.isEnabledFor(logging.WARNING):
        print(f"arcbeam: {visible(text)}", file=stream if stream is not None else sys.stderr, flush=True)


def watched() -> bool:
    """Return whether a progress line would be visible."""
    return sys.stderr.isatty()


class ProgressLine:
    """Writes the line once a second while the job runs, and erases it at the end.

    Args:
        progress: returns the job's progress; called on another thread.
        stream: where to write; nothing is written if it is not a terminal.
    """

    def __init__(self, progress: Callable[[], JobProgress], stream: TextIO | None = None) -> None:
        self._progress = progress
        self._stream = stream if stream is not None else sys.stderr
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ProgressLine:
        if self._stream.isatty():
            self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        started, shown = time.monotonic(), 0
        if self._done.wait(_QUIET_SECONDS):
            return
        while True:
            width = shutil.get_terminal_size().columns - 1
            text = line(self._progress(), time.monotonic() - started, width)
            self._stream.write("\r" + text.ljust(shown))
            self._stream.flush()
            shown = len(text)
            if self._done.wait(1.0):
                break
        self._stream.write("\r" + " " * shown + "\r")
        self._stream.flush()
