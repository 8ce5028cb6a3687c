"""What the page shows of a job's state at its service: also of jobs without a status, and without contact.

Owns the words for these. `arcbeam.page.views` owns what is shown of a status. Returns plain text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from arcbeam.model.timestamps import long_shown
from arcbeam.page import views
from arcbeam.page.sources import Listed
from arcbeam.page.views import Cell, JobRow
from arcbeam.streaming.status.headline import CANCELLED, Headline
from arcbeam.streaming.status.words import is_over, shown

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
    return job.record is None or not is_over(job.record)


def is_unknown(job: Listed) -> bool:
    """Return whether a job may have another state by now: it had not ended, and its service does not answer."""
    return job.silent is not None and is_live(job)


def row_of(job: Listed) -> JobRow:
    """Return a job's row in the list."""
    if job.record is None and job.state:
        none = Cell("–", "only a streaming job that runs, or whose folder can be read, has it")
        line = headline(job)
        return JobRow(job.id, job.name or job.label, job.label, _state(job), line.level, none, none, line, job.since)
    row = views.row_of(job)
    if not is_unknown(job):
        return row
    line = headline(job)
    return replace(row, state=_state(job), headline=line, level=line.level)


def name_of(job: Listed) -> str:
    """Return a job's state in a word: that at its service, else that in its status."""
    record = job.record
    if job.state or record is None:
        return job.state or "unknown"
    return str((record.get("ended") or {}).get("state") or record["mode"])


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
    stages = job.progress["stages"]
    if not stages:
        return Headline("The job is starting.")
    done = sum(stage["state"] == "done" for stage in stages)
    running = [stage["stage"] for stage in stages if stage["state"] == "running"]
    now = f" Now: {'; '.join(running)}." if running else ""
    return Headline(f"{done} of {len(stages)} stages are done.{now}")


def batch_rows(progress: Mapping[str, Any], live: bool) -> Iterator[BatchRow]:
    """Yield the rows of a bounded job's stages, producers first.

    Args:
        progress: of the job.
        live: whether the job runs.
    """
    for stage in progress["stages"]:
        total, state = stage["of"], stage["state"]
        if not live:
            # The server ended before the job.
            state = {"running": "stopped", "waiting": "not run"}.get(state, state)
        blind = not stage["live"] and state == "running" and not stage["elements"]
        none = state in ("waiting", "not run")
        none_yet = state == "running" and not stage["elements"]
        unknown = Cell("–", _BLIND) if blind else Cell("–", "no task has begun") if none else None
        yield BatchRow(
            stage["stage"],
            Cell(state, _BLIND if blind else _STATES.get(state, "")),
            {"failed": "error", "stopped": "warning", "not run": "warning"}.get(state, ""),
            Cell(f"{'?' if blind else format(stage['tasks'], ',')} of {total:,}", _rounds(stage))
            if total
            else Cell("–", "how many tasks it has is known when its input is"),
            unknown or (_NONE_YET if none_yet else Cell(f"{stage['elements']:,}", "that its tasks have read")),
            unknown or Cell(f"{stage['retries']:,}", "tries of its tasks after the first"),
            unknown
            or Cell(long_shown(stage["seconds"]) if stage["seconds"] >= 10 else f"{stage['seconds']:.2f} s", _SUM),
            views.spark_page(progress.get("spark", "") if live else "", stage["spark_stage"]),
        )


_STOPPED: Final = (
    "it is started again; the page of a suspended job says how to resume it, if its folder can be read from here"
)
_SUM: Final = "the sum of its tasks; they run side by side"
_BLIND: Final = "its figures come when its Spark job ends: running tasks report only to a temporary location on a disk"
_NONE_YET: Final = Cell("–", "none is done yet: an element or restriction counts when it is processed")
_STATES: Final = {
    "waiting": "none of its tasks has begun",
    "failed": "its error ended the job",
    "stopped": "the job ended while it ran",
    "not run": "the job ended before it",
}


def _rounds(stage: Mapping[str, Any]) -> str:
    number = stage["rounds"]
    return "tasks that have ended" + (f", in {number} rounds" if number > 1 else "")
