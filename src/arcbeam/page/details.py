"""What the page shows of a job on request: options, user metrics, messages, savepoints, the log of its tasks.

Owns the choice and the words. Returns plain text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from arcbeam.page.views import Cell
from arcbeam.store.log.endnote import EndNote
from arcbeam.store.log.jobname import NOTHING_LEFT, resume_command
from arcbeam.store.manifest.values import ENDED
from arcbeam.streaming.status.records import Record
from arcbeam.streaming.status.words import bytes_shown, shown

_ROW: Final = 150
"""The characters of a message's row besides its text, about."""
_FOLLOWED: Final = 12_000
"""The characters of the messages that an open page follows, about: an update is small."""

_URGENT: Final = frozenset({"WARNING", "ERROR"})


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A user metric."""

    name: str
    kind: str
    step: str
    value: str


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message, or a line of the log of a stage.

    Attributes:
        place: the worker, or the driver, that logged it; "" for a message.
    """

    time: Cell
    level: str
    text: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class SavepointRow:
    """A savepoint; `note` says what to know before a job resumes from it, "" if nothing."""

    name: str
    time: Cell
    micro_batch: str
    size: Cell
    resume: str
    note: str
    problem: str


def option_rows(details: Record, *, defaults: bool) -> list[tuple[str, str]]:
    """Return names and values of options, by name: those that were set, or those that have their default."""
    unset = set(details.get("defaults", ()))
    options = sorted(details.get("options", {}).items())
    return [(f"--{name}", _text(value)) for name, value in options if (name in unset) == defaults]


def metric_rows(details: Record) -> list[MetricRow]:
    """Return the user metrics, by step and name."""
    rows = [
        MetricRow(
            f"{each['namespace']}: {each['name']}" if each["namespace"] else each["name"],
            str(each["kind"]).removesuffix("s").replace("_", " "),
            each["step"],
            _value(each["value"]),
        )
        for each in details.get("metrics", ())
    ]
    return sorted(rows, key=lambda row: (row.step, row.name))


def message_rows(details: Record, ended: EndNote | None = None) -> tuple[list[MessageRow], list[MessageRow]]:
    """Return the messages, newest first: those that an open page follows, and those before them.

    Args:
        details: of the job.
        ended: how its driver ended, as in its status; None: it has not, or with a commit.
    """
    found = list(details.get("messages", ()))
    # A driver writes its messages before it knows its end.
    if ended and ended.why and not any(ended.why in each["text"] for each in found):
        when = max((ended.time, *(each["time"] for each in found)))
        found.append({"time": when, "level": "ERROR", "text": ended.why})
    return _followed([_row(each) for each in reversed(found)])


def log_rows(
    log: Iterable[Record], messages: Iterable[Record] = (), stage: str = "", transforms: Iterable[str] = ()
) -> tuple[list[MessageRow], list[MessageRow]]:
    """Return what tasks have logged, and the warnings of the driver about their stage, as `message_rows` does.

    Args:
        log: the lines of a job's tasks; see `arcbeam.runner.stagelog`.
        messages: of the job.
        stage: the stage; "": all stages, whose names are in the rows.
        transforms: of the stage.
    """
    quoted = [f"'{name}'" for name in (stage, *transforms)] if stage else []
    found = [(each, each["worker"] if stage else f"{each['stage']}, {each['worker']}") for each in log]
    found = [(each, place) for each, place in found if stage in ("", each["stage"])]
    found += [
        (each, "driver")
        for each in messages
        if each["level"] in _URGENT and any(name in each["text"] for name in quoted)
    ]
    return _followed([_row(each, place) for each, place in sorted(found, key=lambda of: -of[0]["time"])])


def _row(of: Record, place: str = "") -> MessageRow:
    return MessageRow(Cell("", shown(of["time"]), of["time"]), of["level"], of["text"], place)


def _followed(rows: list[MessageRow]) -> tuple[list[MessageRow], list[MessageRow]]:
    size = 0
    for at, row in enumerate(rows):
        size += len(row.text) + _ROW
        if at and size > _FOLLOWED:
            return rows[:at], rows[at:]
    return rows, []


def savepoint_rows(details: Record) -> Iterator[SavepointRow]:
    """Yield the savepoints, newest first."""
    for each in reversed(details.get("savepoints", ())):
        own = f"only this savepoint needs {bytes_shown(each['own'])} of it"
        ended = each["mode"] in ENDED
        later = each.get("later", 0)
        resume = resume_command(each["path"], bool(each.get("job_graph")), True, ended, bool(later))
        notes = [f"discards {later:,} later committed micro-batch(es)"] if later else []
        notes += [f"the job is {each['mode']} there: {NOTHING_LEFT}"] if ended else []
        yield SavepointRow(
            each["name"],
            Cell("", shown(each["time"]), each["time"]),
            f"{each['micro_batch']:,}",
            Cell("–", "it cannot be read") if each["problem"] else Cell(bytes_shown(each["size"]), own),
            resume,
            "; ".join(notes),
            each["problem"],
        )


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _value(value: Any) -> str:
    if value is None:
        return "nothing is committed yet"
    if isinstance(value, Mapping):
        if "strings" in value:
            more = value["number"] - len(value["strings"])
            return ", ".join(value["strings"]) + (f", and {more:,} more" if more else "")
        if not value["count"]:
            return "no values yet"
        mean = value["sum"] / value["count"]
        return f"{value['count']:,} values from {value['min']:,} to {value['max']:,}, mean {mean:,.4g}"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
