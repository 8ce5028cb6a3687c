"""What the page of a stage shows: all that a status and a plan say about one stage.

Owns the choice and the reasons for what is unknown. Returns plain text, which the templates escape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from arcbeam.engine.protocol.reports import NO_COUNTS
from arcbeam.model.plan import Plan
from arcbeam.page.views import Cell, gap, spark_page, stage_with
from arcbeam.streaming.status.headline import Headline, causes_of, failing, headline_of, stopped
from arcbeam.streaming.status.reasons import Cause, CauseKind
from arcbeam.streaming.status.records import Record
from arcbeam.streaming.status.status import OutputStatus, StageStatus, Status
from arcbeam.streaming.status.words import COUNTERS, backlog_shown, bytes_shown, shown, without_driver

Fact = tuple[str, str]
"""A name, and what is known of it in words; or why it is unknown."""


@dataclass(frozen=True, slots=True)
class OutputRow:
    """An output of a stage."""

    name: str
    watermark: Cell
    since: str
    elements: Cell
    size: Cell
    times: str


@dataclass(frozen=True, slots=True)
class StagePage:
    """A stage.

    Attributes:
        name: of the stage.
        headline: the job's condition if no driver seems to run it, else the first cause that holds the stage.
        transforms: their full names and URNs, in order; empty if unknown.
        no_transforms: why they are unknown; "" if they are not.
        figures: the most important figures.
        outputs: its outputs.
        causes: all that holds its watermarks, each with what releases it.
        waiting: restrictions, timers and blocked elements.
        state: its state.
        tasks: what is known of the tasks that ran it.
        spark: the address of Spark's page of these tasks; "" if there is none.
        errors: failures of its micro-batches that are being retried, and the error with which the job ended.
    """

    name: str
    headline: Headline
    transforms: Sequence[Fact]
    no_transforms: str
    figures: Sequence[tuple[str, Cell]]
    outputs: Sequence[OutputRow]
    causes: Sequence[Cause]
    waiting: Sequence[Fact]
    state: Sequence[Fact]
    tasks: Sequence[Fact]
    spark: str
    errors: Sequence[str]


def stage_of(status: Status, plan: Plan | None, number: int, tasks: Record | None = None, spark: str = "") -> StagePage:
    """Return the page of a stage.

    Args:
        status: the job's status.
        plan: its plan; None: unknown.
        number: the index of the stage in the status.
        tasks: figures of its tasks, as `arcbeam.streaming.status.taskfigures.task_record`; None: unknown.
        spark: the address of Spark's page; "": unknown.
    """
    stage = status.stages[number]
    name = stage.stage
    drawn = next((of for of in plan.stages if of.uid == name), None) if plan else None
    if drawn is None:
        why = "The job's folder has no plan. A driver writes it when it starts." if plan is None else _OTHER_PLAN
    else:
        why = "" if drawn.transforms else "None: it passes elements on."
    ran = (tasks or {}).get("stages", {}).get(name, {})
    causes = [cause for cause in causes_of(status)[1] if name in (cause.stage, *cause.stages)]
    held = [cause for cause in causes if cause.kind is not CauseKind.DRIVER]
    return StagePage(
        name,
        stopped(status) or (headline_of(status, held[0]) if held else Headline(_FREE)),
        [(of.name, of.urn) for of in drawn.transforms] if drawn else [],
        why,
        list(_figures(status, stage)),
        [_output(status, out) for out in stage.outputs],
        causes,
        list(_waiting(stage)),
        list(_state(stage)),
        list(_tasks(status, stage, tasks)),
        spark_page("" if without_driver(status) else spark, ran.get("spark_stage")),
        [*_errors(status, name, plan, causes)],
    )


_OF_BOTH: Final = "elements in the last micro-batch, rate in the last minute"
_FREE: Final = "No watermark of this stage waits for anything."
_OTHER_PLAN: Final = "The plan in the job's folder has no such stage: a later driver runs a changed pipeline."


def _errors(status: Status, stage: str, plan: Plan | None, causes: Sequence[Cause]) -> Iterator[str]:
    ended = status.ended
    if ended and ended.why:
        transforms = {each.name: of.uid for of in plan.stages for each in of.transforms} if plan else {}
        fails = failing(status)
        if (stage_with(fails, transforms) if fails else stage) in ("", stage):
            yield f"the job is {ended.state}: {ended.why}"
        else:
            yield f"none in this stage: the job is {ended.state} in '{fails}'"
    for cause in causes:
        if cause.kind is CauseKind.FAILURE:
            yield f"{cause.text}; released when: {cause.released_when}"


def _figures(status: Status, stage: StageStatus) -> Iterator[tuple[str, Cell]]:
    counts, total, since = stage.micro_batch, stage.total or NO_COUNTS, stage.input_since
    yield "input watermark", gap(status, stage.input)
    if (least := stage.earliest) < stage.input:
        yield "held output", gap(status, least)
    if since:
        yield "not moved since", Cell(f"micro-batch {since.micro_batch:,},", shown(since.time), since.time)
    else:
        yield "not moved since", Cell("–", "it was not stored")
    why = without_driver(status)
    yield "in", _elements(counts.read if counts else None, stage.read_rate, why)
    yield "out", _elements(counts.written if counts else None, stage.written_rate, why)
    if total.made and stage.made_rate is not None and not why:
        yield "emitted by its source", _elements((counts or NO_COUNTS).made, stage.made_rate, "")
    for name, words in COUNTERS.items():
        yield name, Cell(f"{getattr(total, name):,} {words}", "since the job began")


def _elements(count: int | None, rate: float | None, why: str) -> Cell:
    """Return the cell of elements in the last micro-batch, and of their rate.

    Args:
        count: the elements; None: not counted.
        rate: None: unknown.
        why: why there is no rate; "" if there is one.
    """
    if count is None:
        return Cell("–", "not counted in this micro-batch")
    if why or rate is None:
        return Cell(f"{count:,} elements", f"in the last micro-batch; {why or 'its rate is not known yet'}")
    return Cell(f"{count:,} elements, {rate:,.4g}/s", _OF_BOTH)


def _output(status: Status, out: OutputStatus) -> OutputRow:
    since = out.since
    if out.least is None or out.most is None or out.mean is None:
        times = "no element in the last micro-batch"
    elif out.least == out.most:
        times = shown(out.least)
    else:
        times = f"{shown(out.least)} to {shown(out.most)}, mean {shown(out.mean)}"
    return OutputRow(
        out.output,
        gap(status, out.watermark),
        f"micro-batch {since.micro_batch:,} ({shown(since.time)})" if since else "not stored",
        Cell(f"{out.elements:,}", "in the last micro-batch; read by two stages in two ways, it counts twice"),
        Cell(bytes_shown(out.bytes), "in the last micro-batch"),
        times,
    )


def _waiting(stage: StageStatus) -> Iterator[Fact]:
    if live := stage.restrictions:
        yield "restrictions", f"{live:,} not done, of size {backlog_shown(stage.backlog)} in the units of their DoFn"
    else:
        yield "restrictions", "none that is not done"
    kept = stage.kept
    if kept is None:
        yield "timers", "none: the stage has no state"
    else:
        yield "timers", f"{kept.event_timers:,} for event time, {kept.clock_timers:,} for the clock"
    next_event, next_due = stage.next_event, stage.next_due
    yield (
        "next by event time",
        "nothing waits for the watermark"
        if next_event is None
        else f"{shown(next_event)}, when the watermark is there",
    )
    yield "next by the clock", "nothing waits for the clock" if next_due is None else shown(next_due)
    if blocked := stage.blocked:
        number = f"{kept.blocked:,} " if kept and kept.blocked else ""
        yield "blocked elements", f"{number}wait until {'; until '.join(blocked)}"
    elif kept and kept.blocked:
        yield "blocked elements", f"{kept.blocked:,}, until a commit"
    else:
        yield "blocked elements", "none"
    if kept and kept.ordered:
        yield "elements in order of time", f"{kept.ordered:,} wait for the watermark"
    left = stage.leftover
    yield "work left", f"in {left:,} shard(s): the micro-batch ended before" if left else "none: all due work was done"


def _state(stage: StageStatus) -> Iterator[Fact]:
    rows, size, kept = stage.state_rows, stage.state_bytes, stage.kept
    if not rows:
        yield "size", "no rows: the stage keeps no state now"
        return
    yield "size", f"{bytes_shown(size)} in {rows:,} rows; a rewritten row counts again until files are merged"
    yield "keys", "not counted in this micro-batch" if kept is None else f"{kept.keys:,}"
    shards, largest = stage.state_shards, stage.state_largest
    mean, most = size / shards, largest[0][1] if largest else 0
    skew = f", {most / mean:.1f} times the mean" if most else ""
    median = bytes_shown(stage.state_median)
    yield "shards", f"{shards:,} with state: median {median}, mean {bytes_shown(mean)}, most {bytes_shown(most)}{skew}"
    for shard, here in largest:
        yield f"shard {shard}", f"{bytes_shown(here)}, {here / size:.1%} of it" if size else bytes_shown(here)
    if more := shards - len(largest):
        yield "other shards", f"{more:,}, with at most {bytes_shown(largest[-1][1])} each" if largest else f"{more:,}"


def _tasks(status: Status, stage: StageStatus, tasks: Record | None) -> Iterator[Fact]:
    seconds = status.seconds
    parts = ", ".join(f"{part} {seconds[part]:.2f} s" for part in ("spark", "user") if part in seconds)
    yield "level", f"{stage.level}: the tasks of a level run all its stages"
    yield "micro-batch", parts or "its time was not stored"
    if tasks is None:
        yield (
            "single tasks",
            "unknown: the job's folder has no figures of tasks; a driver writes them every ten seconds",
        )
        return
    if (of := tasks["stages"].get(stage.stage)) is None:
        yield "single tasks", f"none ran this stage in micro-batch {tasks['micro_batch']:,}"
        return
    yield "tasks", f"{of['tasks']:,} in micro-batch {tasks['micro_batch']:,} ({shown(tasks['time'])})"
    yield "time of a task", f"{_spread(of['seconds'], '.2f')} s{_skew(of['seconds'])}"
    yield "elements of a task", f"{_spread(of['elements'], ',.10g')}{_skew(of['elements'])}"
    for each in of["slowest"]:
        first, last = each["shards"]
        shards = f"shard {first}" if first == last else f"shards {first} to {last}"
        elements = f"{each['elements']:,} element{'' if each['elements'] == 1 else 's'}"
        text = f"{each['seconds']:.2f} s, {elements}, in {shards}, on {each['worker']}"
        yield f"task {each['task']}", text


def _spread(values: Sequence[float], form: str) -> str:
    least, middle, most = values
    if least == most:
        return f"{most:{form}}"
    return f"{least:{form}} to {most:{form}}, median {middle:{form}}"


def _skew(values: Sequence[float]) -> str:
    _, middle, most = values
    return f"; the greatest is {most / middle:.1f} times the median" if middle > 0 and most >= 2 * middle else ""
