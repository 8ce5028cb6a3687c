"""What the page shows of a status: the state, the headline, the causes, the cells of the table of stages.

Owns the choice; the words are those of `arcbeam status`. Returns plain text, which the templates escape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from arcbeam.engine.protocol.reports import NO_COUNTS
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import (
    MIN_TIMESTAMP,
    behind_shown,
    is_far,
    long_shown,
)
from arcbeam.page.sources import Listed
from arcbeam.streaming.status.headline import Headline, headline, headline_of
from arcbeam.streaming.status.reasons import Cause
from arcbeam.streaming.status.status import StageStatus, Status
from arcbeam.streaming.status.words import (
    ago,
    backlog_shown,
    bytes_shown,
    clock,
    gap_of,
    parts_in_words,
    shown,
    state_of,
    without_driver,
)

_AHEAD: Final = 60.0
"""Seconds. Only a watermark that is farther ahead of the clock is shown as ahead: clocks of hosts differ."""
_STEADY: Final = 1e-4
"""A backlog that falls by a smaller share in a second does not fall."""
_LINE_CHARACTERS_MAX: Final = 160
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
    status = job.status
    if status is None:
        none = Cell("–", "the job's status cannot be read")
        line = Headline(job.error, level="error")
        return JobRow(job.id, job.label, job.label, Cell("unreadable"), none, none, line, MIN_TIMESTAMP)
    when, line = status.committed, headline(status)
    last = (
        Cell("last micro-batch", shown(when), when)
        if status.has_begun
        else Cell("no micro-batch has been committed yet")
    )
    # A running job keeps its place in the list.
    order = status.driver.since if status.driver else when
    name = status.name or job.label
    state = state_since(state_of(status), job.since or _since(status))
    resumes = line.remedy if status.ended or status.is_suspended else ""
    return JobRow(job.id, name, job.label, state, _rate(status), _lag(status), line, order, last, resumes)


def state_since(state: str, since: int) -> Cell:
    """Return the cell of a state since a time; 0: unknown."""
    return Cell(f"{state}, since", shown(since), since) if since else Cell(state, "its time is unknown")


def _since(status: Status) -> int:
    """Return since when a job has its state; 0 if that is unknown."""
    if status.ended:
        return status.ended.time
    if status.is_stopped:
        return status.committed
    runs = status.mode is CommitMode.RUNNING and not without_driver(status)
    return status.driver.since if status.driver and runs else 0


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


def figures(status: Status, growth: float | None = None) -> Iterator[tuple[str, Cell]]:
    """Yield the names and values of a job's figures.

    Args:
        status: of the job.
        growth: by how much its backlog grows per second; None: unknown.
    """
    yield "watermark gap", _lag(status)
    yield "input rate", _input_rate(status, growth)
    yield "rate", _rate(status)
    yield "catches up in", _catches_up(status, growth)
    backlog = f"{status.restrictions:,} restriction(s) of size {backlog_shown(status.backlog)}"
    yield "backlog", Cell(backlog, "sizes are in the units of the DoFns")
    size, rows = sum(status.state_bytes.values()), sum(status.state_entries.values())
    yield "state", Cell(f"{bytes_shown(size)}, {rows:,} rows", "a rewritten row counts again until files are merged")
    if (seconds := status.seconds.get("seconds")) is not None:
        yield "micro-batch", Cell(f"{status.micro_batch:,} took {seconds:.2f} s", parts_in_words(status))
    else:
        yield "micro-batch", Cell(f"{status.micro_batch:,}", "its duration was not stored")


def stage_rows(status: Status) -> Iterator[StageRow]:
    """Yield the rows of a job's stages, producers first."""
    # Nothing holds a job that has ended.
    waits = (
        ()
        if status.is_over
        else [
            (cause, headline_of(status, cause).level != "good") for cause in status.causes if not cause.kind.is_trouble
        ]
    )
    for stage in status.stages:
        counts, total, outputs = stage.micro_batch, stage.total or NO_COUNTS, stage.outputs
        least = min((out.watermark for out in outputs), default=None)
        unknown = Cell("–", "not counted in this micro-batch")
        yield StageRow(
            stage.stage,
            gap(status, stage.input),
            Cell("–", "the stage has no output") if least is None else gap(status, least),
            _count(counts.read, stage.read_rate, total.read) if counts else unknown,
            _count(sum(out.elements for out in outputs), stage.written_rate, total.written),
            _backlog(stage),
            Cell(f"{bytes_shown(stage.state_bytes)}", f"{stage.state_rows:,} rows"),
            Cell(f"{total.late:,}", "since the job began") if counts else unknown,
            *((NOTHING, False) if status.is_over else _why(stage, waits)),
        )


def _why(stage: StageStatus, waits: Sequence[tuple[Cause, bool]]) -> tuple[Cell, bool]:
    """Return what limits a stage, or the names of the stages above that do, and whether that is worth a look.

    Args:
        stage: the stage. All of its text is the hint.
        waits: all causes of the job, and whether each is worth a look.
    """
    name = stage.stage
    if own := [each for each in waits if each[0].stage == name]:
        cause, is_held = next((each for each in own if each[1]), own[0])
        # The watermark and since when are in the row, or on the stage's page.
        return Cell(shortened(cause.text.partition(": ")[2] or cause.text), cause.text), is_held
    if above := [each for each in waits if name in each[0].stages]:
        names = dict.fromkeys(cause.stage for cause, is_held in above)
        return Cell(f"by {', '.join(names)}", "what limits that stage is in its row"), any(each[1] for each in above)
    return Cell(shortened(stage.why), stage.why), True


def shortened(text: str) -> str:
    """Return the beginning of a text that fits into a line or two."""
    line = " ".join(text.split())
    return line if len(line) <= _LINE_CHARACTERS_MAX else line[: _LINE_CHARACTERS_MAX - 1] + "…"


def _count(elements: int, rate: float | None, total: int) -> Cell:
    hint = "in the last micro-batch" + (f"; {rate:,.1f}/s in the last minute" if rate is not None else "")
    return Cell(f"{elements:,}", f"{hint}; {total:,} since the job began")


def _backlog(stage: StageStatus) -> Cell:
    live = stage.restrictions
    return Cell(backlog_shown(stage.backlog) if live else "0", f"{live:,} restriction(s) not done")


def rate_cell(rate: float | None) -> Cell:
    """Return the cell of a rate."""
    if rate is None:
        return Cell("–", "unknown: its driver has committed one micro-batch")
    number = f"{rate:,.0f}"
    return Cell(f"{number} element{'' if number == '1' else 's'}/s", "from sources, in the last minute")


def _rate(status: Status) -> Cell:
    why = without_driver(status)
    return Cell("–", why) if why else rate_cell(status.rate)


def _input_rate(status: Status, growth: float | None) -> Cell:
    """Return the rate at which input arrives: what sources read, and what their backlog grows by."""
    if why := without_driver(status):
        return Cell("–", why)
    rate = status.rate
    if rate is None or growth is None:
        return Cell("–", "unknown: it is known some seconds after the driver has started")
    if rate + growth < -_STEADY * rate:
        return Cell("–", "unknown: the backlog falls faster than elements are read, so it does not count elements")
    return rate_cell(max(0.0, rate + growth))._replace(
        hint="in the last minute: the rate, and by how much the backlog grows; exact if the backlog counts elements"
    )


def _catches_up(status: Status, growth: float | None) -> Cell:
    """Return after how long the backlog is empty, if it falls as in the last minute."""
    if why := without_driver(status):
        return Cell("–", why)
    if not status.backlog:
        return Cell("0 s", "nothing is left to read")
    if growth is None:
        return Cell("–", "unknown: it is known some seconds after the driver has started")
    if growth > -_STEADY * status.backlog:
        return Cell("–", "the backlog does not fall")
    seconds = status.backlog / -growth
    return Cell(long_shown(seconds), f"the backlog falls by {-growth:,.4g} per second")


def _lag(status: Status) -> Cell:
    """Return how far a job is behind; the hint says why no driver runs it."""
    found, why = gap(status, status.watermark), without_driver(status)
    return found._replace(hint=f"{why}; {found.hint}") if why else found


def gap(status: Status, watermark: int) -> Cell:
    """Return how far a watermark is behind the clock; the absolute watermark is the hint."""
    text = gap_text(status, watermark)
    if watermark <= MIN_TIMESTAMP:
        return Cell(text, "the watermark has not moved yet")
    return Cell(text, f"the watermark is at: {shown(watermark)}")


def gap_text(status: Status, watermark: int) -> str:
    """Return the text of `gap`."""
    found = gap_of(status, watermark)
    if found is None:
        return "at the beginning" if watermark <= MIN_TIMESTAMP else "at the end"
    ahead = (watermark - clock(status)) / 1e6
    if is_far(-ahead):
        # Old data: how far it is behind says nothing, where it is does.
        return f"at {shown(watermark)[:_MINUTES]}"
    return f"{long_shown(ahead)} ahead" if ahead > _AHEAD else behind_shown(found / 1e6)
