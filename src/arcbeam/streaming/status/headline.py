"""The condition of a streaming job in a sentence: its state, the cause, and what would change it.

Owns the choice and the words: `arcbeam status`, its JSON and the page show the same. Returns plain text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP, long_shown
from arcbeam.store.log.endnote import EndNote
from arcbeam.streaming.status.moment import DUE_NOW
from arcbeam.streaming.status.reasons import Cause, CauseKind
from arcbeam.streaming.status.status import Status
from arcbeam.streaming.status.words import (
    LONG_OVERDUE,
    ago,
    drain_line,
    driver_line,
    has_job_graph,
    overdue_line,
    resume_line,
    running_for,
    shown,
    silent,
    without_since,
)

_LONG_WAIT: Final = 60.0
"""Seconds. A healthy stream always waits for something: only what has not moved for longer is shown as waiting."""

CANCELLED: Final = "The job was cancelled."


@dataclass(frozen=True, slots=True)
class Headline:
    """A job's condition in a sentence.

    Attributes:
        text: the sentence.
        released_when: what would unblock the job by itself; "" if nothing blocks it.
        remedy: what a user can do; "" if nothing has to be done, or only `released_when` helps.
        since: since when; "" if unknown.
        at: a time, in microseconds since 1970; after the text comes how long ago it was. 0: none.
        level: "good", "warning" or "error".
        label: the word before the sentence; "": by the level.
        stage: the stage that blocks the job; "": none does.
    """

    text: str
    released_when: str = ""
    since: str = ""
    level: str = "good"
    label: str = ""
    at: int = 0
    stage: str = ""
    remedy: str = ""

    @property
    def ago(self) -> str:
        """How long ago the time was, when the headline was made."""
        return ago(self.at)

    @property
    def word(self) -> str:
        """The word before the sentence, so that colour is never alone."""
        return self.label or {"good": "OK", "warning": "Waiting", "error": "Problem"}[self.level]

    @property
    def line(self) -> str:
        """All of it in a line. A command ends the line."""
        first = f"{self.word}: {self.text}"
        if self.since:
            first = f"{_sentence(first)} Since {self.since}"
        elif self.at:
            first = f"{first} {self.ago}"
        parts = [_sentence(first)]
        parts += [_sentence(f"Released when: {self.released_when}")] if self.released_when else []
        parts += [f"What to do: {self.remedy}"] if self.remedy else []
        return " ".join(parts)

    def as_record(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "state": self.word,
            "level": self.level,
            "text": self.text,
            "since": self.since or (shown(self.at) if self.at else ""),
            "stage": self.stage,
            "released_when": self.released_when,
            "remedy": self.remedy,
            "line": self.line,
        }


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def headline(status: Status) -> Headline:
    """Return a job's condition: its end, else a missing driver, else its drain, else the first cause that decides."""
    if (line := stopped(status)) is not None:
        return line
    deciding = [cause for cause in status.causes if cause.kind is CauseKind.DRIVER or cause.decides]
    if not any(cause.kind.is_trouble for cause in deciding):
        if drains := drain_line(status):
            return Headline(drains, level="warning", label="Draining", stage=deciding[0].stage if deciding else "")
        if (line := _slow(status)) is not None:
            return line
    if deciding:
        return headline_of(status, next((cause for cause in deciding if not is_ahead(status, cause)), deciding[0]))
    if not status.has_begun:
        # The opening of a job with a TestStream has the script's first time, which is 0. A later opening is not the
        # begin of the job.
        began = status.time if not status.micro_batch else 0
        text = f"The first micro-batch has not been committed yet{'; the job began' if began else '.'}"
        return Headline(text, label="Starting", at=began)
    return Headline("No watermark waits for anything.")


def stopped(status: Status) -> Headline | None:
    """Return the condition of a job that no driver runs, or seems to run; None if one does."""
    if ended := status.ended:
        if ended.state == "CANCELLED":
            remedy = f"to continue from its last commit, {resume_line(status)}"
            return Headline(CANCELLED, remedy=remedy, level="warning", label="Ended")
        return Headline(_error_line(status, ended), remedy=_after_error(status), level="error", label="Failed")
    if status.is_over:
        return Headline(f"The job has ended: it is {status.mode}. Nothing is left to do.", label="Ended")
    if status.is_suspended:
        text, remedy = "The job is suspended. No driver is running it.", f"to continue, {resume_line(status)}"
        return Headline(text, remedy=remedy, level="warning", label="Suspended")
    if silent(status) is not None:
        remedy = f"look for its process; if it is dead, {resume_line(status)}"
        return Headline(driver_line(status), remedy=remedy, level="error", label="No driver")
    if line := overdue_line(status):
        remedy = f"look for its driver's process; if there is none, {resume_line(status)}"
        return Headline(line, remedy=remedy, level="error", label="No driver")
    return None


def _error_line(status: Status, ended: EndNote) -> str:
    """Return the first line of the error with which a job failed, with its transform."""
    # The rest of a long error is shown elsewhere.
    first, where = ended.why.partition("\n")[0], failing(status)
    return (first or "its error is unknown") + (f", in transform '{where}'" if where and where not in first else "")


def _after_error(status: Status) -> str:
    """Return what to do about a failure. To resume the job alone would repeat the error."""
    first = "correct the cause of the error; "
    if not has_job_graph(status) or not status.folder:
        return f"{first}then {resume_line(status)}"
    return f"{first}run the corrected script with its --checkpoint_dir; if it needs no change, {resume_line(status)}"


def causes_of(status: Status) -> tuple[str, Sequence[Cause]]:
    """Return what a job's watermarks wait for, after a sentence that is needed if it has ended; "": it has not."""
    if not status.is_over:
        return "", status.causes
    if status.ended and status.causes:
        return "When the job ended. If it is resumed, it waits for this again:", status.causes
    return "Nothing: the job has ended.", ()


def error_of(status: Status) -> str:
    """Return the error with which a job ended, if its first line, which is in the headline, is not all; else ""."""
    why = status.ended.why if status.ended else ""
    return why if "\n" in why else ""


_IN_TRANSFORM: Final = re.compile(r"(?:while running|in transform|in step) '([^\n]+?)'(?=[\s\]:;,.)]|$)", re.M)


def failing(status: Status) -> str:
    """Return the transform in which a job has failed, or its next micro-batch fails; "" if none does, or unknown."""
    if status.ended:
        found = _IN_TRANSFORM.search(status.ended.why)
        return found[1] if found else ""
    return next((cause.stage for cause in status.causes if cause.kind is CauseKind.FAILURE), "")


def _slow(status: Status) -> Headline | None:
    """Return that a micro-batch runs for long; None if none does."""
    running = running_for(status)
    if running is None or running[1] < LONG_OVERDUE:
        return None
    number, seconds = running
    return Headline(
        f"micro-batch {number} has been running for {long_shown(seconds)}; watermarks advance when it is committed",
        level="warning",
        label="Slow",
        remedy="see which of its tasks run, on the page or in Spark's; if single elements take that long, divide their "
        "work, else give the job more cores",
    )


def headline_of(status: Status, cause: Cause) -> Headline:
    """Return a cause as a sentence; a watermark that has just advanced is not waiting."""
    since, stage = cause.since, cause.stage
    level = "error" if cause.kind.is_trouble else "warning"
    if is_ahead(status, cause):
        return Headline("The job is running. Its watermarks are ahead of the clock, and hold nothing that is due.")
    if since is None:
        return Headline(cause.text, cause.released_when, level=level, stage=stage)
    # The script of a TestStream moves the job's clock: how long ago by the real clock says nothing.
    at = 0 if status.scripted else since.time
    # Its driver works on what is due: micro-batches may take minutes.
    waits = not status.driver or cause.released_when != DUE_NOW
    if cause.kind.is_trouble or ((seconds := _seconds_since(status, since.time)) >= _LONG_WAIT and waits):
        return Headline(without_since(cause), cause.released_when, shown(since.time), level, at=at, stage=stage)
    text, label = "The job is running. The watermark that decides advanced", ""
    if cause.time <= MIN_TIMESTAMP:
        text, label = "The watermark that decides has not moved yet; the job started", "Starting"
    if at:
        return Headline(text, label=label, at=at)
    return Headline(f"{text} {long_shown(seconds)} ago.", since=shown(since.time), label=label)


def is_ahead(status: Status, cause: Cause) -> bool:
    """Return whether a cause holds a watermark ahead of the clock. A TestStream's clock and watermark are unrelated."""
    if cause.kind.is_trouble or status.scripted:
        return False
    return time.time() * 1e6 < cause.time < END_OF_GLOBAL_WINDOW


def _seconds_since(status: Status, when: int) -> float:
    """Return how long ago a time is, by the clock of the job: a TestStream moves its own."""
    now = status.time / 1e6 if status.scripted else time.time()
    return max(0.0, now - when / 1e6)
