"""What the page shows of a job's state at its service: also of jobs without a status, and without contact.

Owns the words for these. `arcbeam.page.views` owns what is shown of a status. Returns plain text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from arcbeam.console.progressline import BatchProgress, StageProgress, StageState, summed
from arcbeam.model.timestamps import long_shown
from arcbeam.page import views
from arcbeam.page.sources import Listed
from arcbeam.page.views import Cell, JobRow
from arcbeam.streaming.status.headline import CANCELLED, Headline
from arcbeam.streaming.status.words import shown

_TERMINAL: Final = frozenset({"DONE", "DRAINED", "FAILED", "CANCELLED"})


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A stage of a bounded job.

    Attributes:
        spark: the address of Spark's page of its tasks; "" if it is unknown, or perhaps gone with the job.
    """

    name: str
    state: Cell
    level: str
    tasks: Cell
    elements: Cell
    retries: Cell
    seconds: Cell
    spark: str

    @property
    def line(self) -> str:
        """Its state and its tasks, for the graph."""
        return f"{self.state.text} · {self.tasks.text} tasks" if self.tasks.text != "–" else self.state.text


def is_live(job: Listed) -> bool:
    """Return whether a later look may show something else. Without contact, a job that had ended has ended still."""
    if job.state:
        return job.state not in _TERMINAL
    return job.status is None or not job.status.is_over


def is_unknown(job: Listed) -> bool:
    """Return whether a job may have another state by now: it had not ended, and its service does not answer."""
    return job.silent is not None and is_live(job)


def row_of(job: Listed) -> JobRow:
    """Return a job's row in the list."""
    if job.status is None and job.state:
        none = Cell("–", "only a streaming job that runs, or whose folder can be read, has it")
        line = headline(job)
        return JobRow(job.id, job.name or job.label, job.label, _state(job), none, none, line, job.since)
    row = views.row_of(job)
    if not is_unknown(job):
        return row
    line = headline(job)
    return replace(row, state=_state(job), headline=line)


def name_of(job: Listed) -> str:
    """Return a job's state in a word: that at its service, else that in its status."""
    status = job.status
    if job.state or status is None:
        return job.state or "unknown"
    return status.ended.state if status.ended else str(status.mode)


def _state(job: Listed) -> Cell:
    state = name_of(job)
    if job.silent is not None and is_live(job):
        return Cell(f"unknown ({state} {long_shown(job.silent)} ago)", "there is no contact with its service")
    return views.state_since(state, job.since)


def duration(job: Listed) -> Cell:
    """Return when a bounded job started, and how long it ran if it has ended."""
    if not job.started:
        return Cell("")
    ran = f", ran for {long_shown((job.since - job.started) / 1e6)}" if not is_live(job) else ""
    return Cell(f"started {shown(job.started)}{ran}", at=job.started if is_live(job) else 0)


def headline(job: Listed) -> Headline:
    """Return the condition of a job without a status, or without contact."""
    if job.silent is not None and is_live(job):
        state = job.state or "running"
        text = f"for {long_shown(job.silent)}. What is shown is from then: the job was {state}."
        return Headline(text, "its job server, or its network, answers again", level="error", label="No contact")
    match job.state:
        case "FAILED":
            first, remedy = job.why.partition("\n")[0], "correct the cause of the error, and submit the job again"
            return Headline(first or "its error is unknown", remedy=remedy, level="error", label="Failed")
        case "CANCELLED":
            return Headline(CANCELLED, level="warning", label="Ended")
        case "DONE" | "DRAINED":
            return Headline(f"The job has ended: it is {job.state}.", label="Ended")
        case "STOPPED":
            return Headline(
                "The job is suspended, or was not started.",
                _STOPPED,
                level="warning",
                label="Stopped",
            )
        case "CANCELLING":
            return Headline("The job is being cancelled.", level="warning")
        case "STARTING":
            return Headline("The job is starting.")
    if job.progress is None:
        return Headline("The job is running. It has no status yet.")
    stages, running = job.progress.stages, summed(job.progress.stages).stages
    if not stages:
        return Headline("The job is starting.")
    done = sum(stage.state is StageState.DONE for stage in stages)
    now = f" Now: {'; '.join(running)}." if running else ""
    return Headline(f"{done} of {len(stages)} stages are done.{now}")


def batch_rows(progress: BatchProgress, live: bool) -> Iterator[BatchRow]:
    """Yield the rows of a bounded job's stages, producers first.

    Args:
        progress: of the job.
        live: whether the job runs.
    """
    for stage in progress.stages:
        # If the job is not live, its server ended before it.
        total, state = stage.of, stage.state if live else stage.state.at_end()
        none = state in (StageState.WAITING, StageState.NOT_RUN)
        none_yet = state is StageState.RUNNING and not stage.elements
        blind = none_yet and not stage.live
        unknown = Cell("–", _BLIND) if blind else Cell("–", "no task has begun") if none else None
        yield BatchRow(
            stage.stage,
            Cell(state, _BLIND if blind else _STATES.get(state, "")),
            _LEVELS.get(state, ""),
            Cell(f"{'?' if blind else format(stage.tasks, ',')} of {total:,}", _rounds(stage))
            if total
            else Cell("–", "how many tasks it has is known when its input is"),
            unknown or (_NONE_YET if none_yet else Cell(f"{stage.elements:,}", "that its tasks have read")),
            unknown or Cell(f"{stage.retries:,}", "tries of its tasks after the first"),
            unknown or Cell(long_shown(stage.seconds) if stage.seconds >= 10 else f"{stage.seconds:.2f} s", _SUM),
            views.spark_page(progress.spark if live else "", stage.spark_stage),
        )


_STOPPED: Final = (
    "it is started again; the page of a suspended job says how to resume it, if its folder can be read from here"
)
_SUM: Final = "the sum of its tasks; they run side by side"
_BLIND: Final = "its figures come when its Spark job ends: running tasks report only to a temporary location on a disk"
_NONE_YET: Final = Cell("–", "none is done yet: an element or restriction counts when it is processed")
_STATES: Final = {
    StageState.WAITING: "none of its tasks has begun",
    StageState.FAILED: "its error ended the job",
    StageState.STOPPED: "the job ended while it ran",
    StageState.NOT_RUN: "the job ended before it",
}
_LEVELS: Final = {StageState.FAILED: "error", StageState.STOPPED: "warning", StageState.NOT_RUN: "warning"}


def _rounds(stage: StageProgress) -> str:
    number = stage.rounds
    return "tasks that have ended" + (f", in {number} rounds" if number > 1 else "")
