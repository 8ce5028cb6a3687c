"""The condition of a streaming job in a sentence: its state, the cause, and what would change it.

Owns the choice and the words: `arcbeam status`, its JSON and the page show the same. Reads records only; those of other
versions may lack fields. Returns plain text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP, long_shown
from arcbeam.streaming.status.moment import DUE_NOW
from arcbeam.streaming.status.status import drain_line
from arcbeam.streaming.status.words import (
    LONG_OVERDUE,
    Record,
    ago,
    driver_line,
    has_begun,
    has_job_graph,
    is_over,
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

_WELL = frozenset({"done", "drained"})
"""The modes of jobs that ended as intended."""

_TROUBLE: Final = ("failure", "driver")
"""The kinds of causes that are no watermark's."""


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


def headline(record: Record) -> Headline:
    """Return a job's condition: its end, else a missing driver, else its drain, else the first cause that decides."""
    if (line := stopped(record)) is not None:
        return line
    deciding = [cause for cause in record["causes"] if cause.get("kind") == "driver" or cause.get("decides", True)]
    if not any(cause.get("kind") in _TROUBLE for cause in deciding):
        if drains := drain_line(record):
            return Headline(drains, level="warning", label="Draining", stage=deciding[0]["stage"] if deciding else "")
        if (line := _slow(record)) is not None:
            return line
    if deciding:
        return headline_of(record, next((cause for cause in deciding if not is_ahead(record, cause)), deciding[0]))
    if not has_begun(record):
        # The opening of a job with a TestStream has the script's first time, which is 0. A later opening is not the
        # begin of the job.
        began = record["time"] if not record["micro_batch"] else 0
        text = f"The first micro-batch has not been committed yet{'; the job began' if began else '.'}"
        return Headline(text, label="Starting", at=began)
    return Headline("No watermark waits for anything.")


def stopped(record: Record) -> Headline | None:
    """Return the condition of a job that no driver runs, or seems to run; None if one does."""
    if ended := record.get("ended"):
        if ended["state"] == "CANCELLED":
            remedy = f"to continue from its last commit, {resume_line(record)}"
            return Headline(CANCELLED, remedy=remedy, level="warning", label="Ended")
        return Headline(_error_line(record), remedy=_after_error(record), level="error", label="Failed")
    mode = record["mode"]
    if is_over(record):
        text = f"The job has ended: it is {mode}. Nothing is left to do."
        return Headline(text, level="good" if mode in _WELL else "warning", label="Ended")
    if mode == "suspended":
        text, remedy = "The job is suspended. No driver is running it.", f"to continue, {resume_line(record)}"
        return Headline(text, remedy=remedy, level="warning", label="Suspended")
    if silent(record) is not None:
        remedy = f"look for its process; if it is dead, {resume_line(record)}"
        return Headline(driver_line(record), remedy=remedy, level="error", label="No driver")
    if line := overdue_line(record):
        remedy = f"look for its driver's process; if there is none, {resume_line(record)}"
        return Headline(line, remedy=remedy, level="error", label="No driver")
    return None


def _error_line(record: Record) -> str:
    """Return the first line of the error with which a job failed, with its transform."""
    # The rest of a long error is shown elsewhere.
    first = str(record["ended"]["why"]).partition("\n")[0]
    where = failing(record)
    return (first or "its error is unknown") + (f", in transform '{where}'" if where and where not in first else "")


def _after_error(record: Record) -> str:
    """Return what to do about a failure. To resume the job alone would repeat the error."""
    first = "correct the cause of the error; "
    if not has_job_graph(record) or not record.get("folder"):
        return f"{first}then {resume_line(record)}"
    return f"{first}run the corrected script with its --checkpoint_dir; if it needs no change, {resume_line(record)}"


def causes_of(record: Record) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Return what a job's watermarks wait for, after a sentence that is needed if it has ended; "": it has not."""
    if not is_over(record):
        return "", record["causes"]
    if record.get("ended") and record["causes"]:
        return "When the job ended. If it is resumed, it waits for this again:", record["causes"]
    return "Nothing: the job has ended.", ()


def error_of(record: Record) -> str:
    """Return the error with which a job ended, if its first line, which is in the headline, is not all; else ""."""
    why = str((record.get("ended") or {}).get("why", ""))
    return why if "\n" in why else ""


_IN_TRANSFORM: Final = re.compile(r"(?:while running|in transform|in step) '([^\n]+?)'(?=[\s\]:;,.)]|$)", re.M)


def failing(record: Record) -> str:
    """Return the transform in which a job has failed, or its next micro-batch fails; "" if none does, or unknown."""
    if ended := record.get("ended"):
        found = _IN_TRANSFORM.search(ended["why"])
        return found[1] if found else ""
    return next((cause["stage"] for cause in record["causes"] if cause.get("kind") == "failure"), "")


def _slow(record: Record) -> Headline | None:
    """Return that a micro-batch runs for long; None if none does."""
    running = running_for(record)
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


def headline_of(record: Record, cause: Mapping[str, Any]) -> Headline:
    """Return a cause as a sentence; a watermark that has just advanced is not waiting."""
    since, is_failure = cause.get("since"), cause.get("kind") in _TROUBLE
    level = "error" if is_failure else "warning"
    if is_ahead(record, cause):
        return Headline("The job is running. Its watermarks are ahead of the clock, and hold nothing that is due.")
    stage = cause.get("stage") or ""
    if since is None:
        return Headline(cause["text"], cause["released_when"], level=level, stage=stage)
    # The script of a TestStream moves the job's clock: how long ago by the real clock says nothing.
    at = 0 if record.get("scripted") else since["time"]
    # Its driver works on what is due: micro-batches may take minutes.
    waits = not record.get("driver") or cause["released_when"] != DUE_NOW
    if is_failure or ((seconds := _seconds_since(record, since["time"])) >= _LONG_WAIT and waits):
        return Headline(without_since(cause), cause["released_when"], shown(since["time"]), level, at=at, stage=stage)
    text, label = "The job is running. The watermark that decides advanced", ""
    if cause.get("time", 0) <= MIN_TIMESTAMP:
        text, label = "The watermark that decides has not moved yet; the job started", "Starting"
    if at:
        return Headline(text, label=label, at=at)
    return Headline(f"{text} {long_shown(seconds)} ago.", since=shown(since["time"]), label=label)


def is_ahead(record: Record, cause: Mapping[str, Any]) -> bool:
    """Return whether a cause holds a watermark ahead of the clock. A TestStream's clock and watermark are unrelated."""
    if cause.get("kind") in _TROUBLE or record.get("scripted"):
        return False
    return bool(time.time() * 1e6 < cause.get("time", MIN_TIMESTAMP) < END_OF_GLOBAL_WINDOW)


def _seconds_since(record: Record, when: int) -> float:
    """Return how long ago a time is, by the clock of the job: a TestStream moves its own."""
    now = record["time"] / 1e6 if record.get("scripted") else time.time()
    return max(0.0, now - when / 1e6)
