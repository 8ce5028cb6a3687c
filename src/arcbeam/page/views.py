"""What the page shows of a status record: the state, the headline, the causes, the cells of the table of stages.

Owns the choice; the words are those of `arcbeam status`. Returns plain text, which the templates escape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from arcbeam.model.timestamps import (
    MIN_TIMESTAMP,
    behind_shown,
    is_far,
    long_shown,
)
from arcbeam.page.sources import Listed
from arcbeam.streaming.status.headline import Headline, headline, headline_of
from arcbeam.streaming.status.words import (
    Record,
    ago,
    backlog_shown,
    bytes_shown,
    clock,
    committed_at,
    gap_of,
    has_begun,
    is_over,
    overdue_line,
    shown,
    silent,
    state_of,
)

_AHEAD: Final = 60.0
"""Seconds. Only a watermark that is farther ahead of the clock is shown as ahead: clocks of hosts differ."""
_STEADY: Final = 1e-4
"""A backlog that falls by a smaller share in a second does not fall."""
_LONGEST_LINE: Final = 160
"""Characters."""
_MINUTES: Final = len("2026-01-05 10:00")


class Cell(NamedTuple):
    """A cell of a table. A page has thousands, and a tuple is made faster than a dataclass.

    Attributes:
        text: what it shows.
        hint: shown on hover: an absolute time, or why there is no value.
        at: a time, in microseconds since 1970; after the text comes how long ago it was. 0: none.
    """

    text: str
    hint: str = ""
    at: int = 0

    @property
    def ago(self) -> str:
        """How long ago the time was, when the page was made."""
        return ago(self.at)


NOTHING: Final = Cell("")


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in the list.

    Attributes:
        id: in addresses.
        name, folder: its own.
        state: its state, and since when.
        level: of its headline.
        rate, behind: figures.
        headline: its condition.
        resumes: what to do about it; "" if it has ended well, or a driver runs it or may run it.
        order: of the list: newest first.
        last: its last micro-batch; no text if it has none.
    """

    id: str
    name: str
    folder: str
    state: Cell
    level: str
    rate: Cell
    behind: Cell
    headline: Headline
    order: int
    last: Cell = NOTHING
    resumes: str = ""

    @property
    def state_word(self) -> str:
        """The state alone, to filter jobs."""
        return re.split(r"[, (]", self.state.text, maxsplit=1)[0].lower()


class StageRow(NamedTuple):
    """A stage in a job's table; producers come first.

    Attributes:
        why: what its watermark waits for.
        is_held: that is worth a look. If not, the watermark has just advanced, or is ahead of the clock.
    """

    name: str
    input: Cell
    output: Cell
    read: Cell
    written: Cell
    backlog: Cell
    state: Cell
    late: Cell
    why: Cell
    is_held: bool


def row_of(job: Listed) -> JobRow:
    """Return a job's row in the list."""
    record = job.record
    if record is None:
        none = Cell("–", "the job's status cannot be read")
        line = Headline(job.error, level="error")
        return JobRow(job.id, job.label, job.label, Cell("unreadable"), "error", none, none, line, MIN_TIMESTAMP)
    when, line = committed_at(record), headline(record)
    began = has_begun(record)
    last = Cell("last micro-batch", shown(when), when) if began else Cell("no micro-batch has been committed yet")
    # A running job keeps its place in the list.
    order = (record.get("driver") or {}).get("since", when)
    name = record.get("name") or job.label
    state = state_since(state_of(record), job.since or _since(record))
    resumes = line.remedy if record.get("ended") or record["mode"] == "suspended" else ""
    return JobRow(job.id, name, job.label, state, line.level, _rate(record), _lag(record), line, order, last, resumes)


def state_since(state: str, since: int) -> Cell:
    """Return the cell of a state since a time; 0: unknown."""
    return Cell(f"{state}, since", shown(since), since) if since else Cell(state, "its time is unknown")


def _since(record: Record) -> int:
    """Return since when a job has its state; 0 if that is unknown."""
    if ended := record.get("ended"):
        return int(ended.get("time") or 0)
    if is_over(record) or record["mode"] == "suspended":
        return committed_at(record)
    if record["mode"] != "running" or without_driver(record):
        return 0
    return int((record.get("driver") or {}).get("since", 0))


def stage_with(name: str, transforms: Mapping[str, str]) -> str:
    """Return the stage of a transform; "" if unknown.

    Args:
        name: of the transform. It may be inside one of the plan's, or around some of them.
        transforms: the stage of each of the plan's transforms.
    """
    above = (name[:at] for at in range(len(name), 0, -1) if at == len(name) or name[at] == "/")
    inside = (known for known in transforms if known.startswith(f"{name}/"))
    return next((transforms[each] for each in (*above, *inside) if each in transforms), "")


def spark_page(address: str, stage: int | None) -> str:
    """Return the address of Spark's page of one of its stages; "" if it is unknown.

    Args:
        address: of Spark's page; "": unknown.
        stage: its id in Spark; None: unknown.
    """
    # SUBTLE: PySpark does not say which attempt of its stage a task belongs to. Almost always it is the first.
    is_known = address.startswith(("http://", "https://")) and stage is not None
    return f"{address}/stages/stage/?id={stage}&attempt=0" if is_known else ""


def figures(record: Record, growth: float | None = None) -> Iterator[tuple[str, Cell]]:
    """Yield the names and values of a job's figures.

    Args:
        record: its status.
        growth: by how much its backlog grows per second; None: unknown.
    """
    yield "watermark gap", _lag(record)
    yield "input rate", _input_rate(record, growth)
    yield "rate", _rate(record)
    yield "catches up in", _catches_up(record, growth)
    backlog = f"{record['restrictions']:,} restriction(s) of size {backlog_shown(record['backlog'])}"
    yield "backlog", Cell(backlog, "sizes are in the units of the DoFns")
    size, rows = sum(record["state_bytes"].values()), sum(record["state_entries"].values())
    yield "state", Cell(f"{bytes_shown(size)}, {rows:,} rows", "a rewritten row counts again until files are merged")
    seconds = record.get("seconds") or {}
    if "seconds" in seconds:
        names = (("plan", "plan"), ("spark", "Spark"), ("user", "transforms"), ("commit", "previous commit"))
        parts = ", ".join(f"{name} {seconds[part]:.2f} s" for part, name in names if part in seconds)
        yield "micro-batch", Cell(f"{record['micro_batch']:,} took {seconds['seconds']:.2f} s", parts)
    else:
        yield "micro-batch", Cell(f"{record['micro_batch']:,}", "its duration was not stored")


def stage_rows(record: Record) -> Iterator[StageRow]:
    """Yield the rows of a job's stages, producers first."""
    # Nothing holds a job that has ended.
    waits = (
        ()
        if is_over(record)
        else [
            (cause, headline_of(record, cause).level != "good")
            for cause in record["causes"]
            if cause.get("kind") not in ("failure", "driver")
        ]
    )
    for stage in record["stages"]:
        micro_batch, total, outputs = stage.get("micro_batch") or {}, stage.get("total") or {}, stage["outputs"]
        least = min((out["watermark"] for out in outputs), default=None)
        unknown = Cell("–", "not counted in this micro-batch")
        yield StageRow(
            stage["stage"],
            gap(record, stage["input"]),
            Cell("–", "the stage has no output") if least is None else gap(record, least),
            _count(micro_batch["read"], stage.get("read_rate"), total.get("read"))
            if "read" in micro_batch
            else unknown,
            _count(sum(out.get("elements", 0) for out in outputs), stage.get("written_rate"), total.get("written")),
            _backlog(stage),
            Cell(f"{bytes_shown(stage.get('state_bytes', 0))}", f"{stage.get('state_rows', 0):,} rows"),
            Cell(f"{total['late']:,}", "since the job began") if "late" in total else unknown,
            *((NOTHING, False) if is_over(record) else _why(stage, waits)),
        )


def _why(stage: Mapping[str, Any], waits: Sequence[tuple[Mapping[str, Any], bool]]) -> tuple[Cell, bool]:
    """Return what limits a stage, or the names of the stages above that do, and whether that is worth a look.

    Args:
        stage: the stage. All of its text is the hint.
        waits: all causes of the job, and whether each is worth a look.
    """
    name = stage["stage"]
    if own := [each for each in waits if each[0]["stage"] == name]:
        cause, is_held = next((each for each in own if each[1]), own[0])
        # The watermark and since when are in the row, or on the stage's page.
        text = str(cause["text"])
        return Cell(shortened(text.partition(": ")[2] or text), text), is_held
    if above := [each for each in waits if name in each[0]["stages"]]:
        names = dict.fromkeys(cause["stage"] for cause, is_held in above)
        return Cell(f"by {', '.join(names)}", "what limits that stage is in its row"), any(each[1] for each in above)
    return Cell(shortened(stage.get("why", "")), stage.get("why", "")), True


def shortened(text: str) -> str:
    """Return the beginning of a text that fits into a line or two."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1] + "…"


def earliest(stage: Mapping[str, Any]) -> int:
    """Return the earliest watermark of a stage: that of its input, or of an output that is held."""
    return int(min((stage["input"], *(out["watermark"] for out in stage["outputs"]))))


def _count(elements: int, rate: float | None, total: int | None) -> Cell:
    hint = "in the last micro-batch" + (f"; {rate:,.1f}/s in the last minute" if rate is not None else "")
    return Cell(f"{elements:,}", hint + (f"; {total:,} since the job began" if total is not None else ""))


def _backlog(stage: Mapping[str, Any]) -> Cell:
    live = stage.get("restrictions", 0)
    return Cell(backlog_shown(stage["backlog"]) if live else "0", f"{live:,} restriction(s) not done")


def rate_cell(rate: float | None) -> Cell:
    """Return the cell of a rate."""
    if rate is None:
        return Cell("–", "unknown: its driver has committed one micro-batch")
    number = f"{rate:,.0f}"
    return Cell(f"{number} element{'' if number == '1' else 's'}/s", "from sources, in the last minute")


def without_driver(record: Record) -> str:
    """Return why no driver runs a job; "" if one seems to run it."""
    if is_over(record):
        return "the job has ended"
    if record["mode"] == "suspended":
        return "the job is suspended"
    return "no driver seems to be running the job" if silent(record) is not None or overdue_line(record) else ""


def _rate(record: Record) -> Cell:
    why = without_driver(record)
    return Cell("–", why) if why else rate_cell(record.get("rate"))


def _input_rate(record: Record, growth: float | None) -> Cell:
    """Return the rate at which input arrives: what sources read, and what their backlog grows by."""
    if why := without_driver(record):
        return Cell("–", why)
    rate = record.get("rate")
    if rate is None or growth is None:
        return Cell("–", "unknown: it is known some seconds after the driver has started")
    if rate + growth < -_STEADY * rate:
        return Cell("–", "unknown: the backlog falls faster than elements are read, so it does not count elements")
    return rate_cell(max(0.0, rate + growth))._replace(
        hint="in the last minute: the rate, and by how much the backlog grows; exact if the backlog counts elements"
    )


def _catches_up(record: Record, growth: float | None) -> Cell:
    """Return after how long the backlog is empty, if it falls as in the last minute."""
    if why := without_driver(record):
        return Cell("–", why)
    if not record["backlog"]:
        return Cell("0 s", "nothing is left to read")
    if growth is None:
        return Cell("–", "unknown: it is known some seconds after the driver has started")
    if growth > -_STEADY * record["backlog"]:
        return Cell("–", "the backlog does not fall")
    seconds = record["backlog"] / -growth
    return Cell(long_shown(seconds), f"the backlog falls by {-growth:,.4g} per second")


def _lag(record: Record) -> Cell:
    """Return how far a job is behind. What was true at its last micro-batch grows old without a driver."""
    found, why = gap(record, record["watermark"]), without_driver(record)
    fixed = ("at the beginning", "at the end")
    return Cell("–", f"{why}; {found.hint}") if why and found.text not in fixed else found


def gap(record: Record, watermark: int) -> Cell:
    """Return how far a watermark is behind the clock; the absolute watermark is the hint."""
    text = gap_text(record, watermark)
    if watermark <= MIN_TIMESTAMP:
        return Cell(text, "the watermark has not moved yet")
    return Cell(text, f"the watermark is at: {shown(watermark)}")


def gap_text(record: Record, watermark: int) -> str:
    """Return the text of `gap`."""
    found = gap_of(record, watermark)
    if found is None:
        return "at the beginning" if watermark <= MIN_TIMESTAMP else "at the end"
    ahead = (watermark - clock(record)) / 1e6
    if is_far(-ahead):
        # Old data: how far it is behind says nothing, where it is does.
        return f"at {shown(watermark)[:_MINUTES]}"
    return f"{long_shown(ahead)} ahead" if ahead > _AHEAD else behind_shown(found / 1e6)
