"""What the page of a stage shows: all that a status and a plan say about one stage.

Owns the choice and the reasons for what is unknown. Returns plain text, which the templates escape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from arcbeam.model.plan import Plan
from arcbeam.page.sources import Record
from arcbeam.page.views import Cell, earliest, gap, spark_page, stage_with, without_driver
from arcbeam.streaming.status.headline import Headline, causes_of, failing, headline_of, stopped
from arcbeam.streaming.status.words import backlog_shown, bytes_shown, shown

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
    causes: Sequence[Mapping[str, Any]]
    waiting: Sequence[Fact]
    state: Sequence[Fact]
    tasks: Sequence[Fact]
    spark: str
    errors: Sequence[str]


def stage_of(record: Record, plan: Plan | None, number: int, tasks: Record | None = None, spark: str = "") -> StagePage:
    """Return the page of a stage.

    Args:
        record: the job's status.
        plan: its plan; None: unknown.
        number: the index of the stage in the status.
        tasks: figures of its tasks, as `arcbeam.streaming.status.taskfigures.task_record`; None: unknown.
        spark: the address of Spark's page; "": unknown.
    """
    stage = record["stages"][number]
    name = stage["stage"]
    drawn = next((of for of in plan.stages if of.uid == name), None) if plan else None
    if drawn is None:
        why = "The job's folder has no plan. A driver writes it when it starts." if plan is None else _OTHER_PLAN
    else:
        why = "" if drawn.transforms else "None: it passes elements on."
    ran = (tasks or {}).get("stages", {}).get(name, {})
    causes = [cause for cause in causes_of(record)[1] if name in (cause["stage"], *cause["stages"])]
    held = [cause for cause in causes if cause["kind"] != "driver"]
    return StagePage(
        name,
        stopped(record) or (headline_of(record, held[0]) if held else Headline(_FREE)),
        [(of.name, of.urn) for of in drawn.transforms] if drawn else [],
        why,
        list(_figures(record, stage)),
        [_output(record, out) for out in stage["outputs"]],
        causes,
        list(_waiting(stage)),
        list(_state(stage)),
        list(_tasks(record, stage, tasks)),
        spark_page("" if without_driver(record) else spark, ran.get("spark_stage")),
        [*_errors(record, name, plan, causes)],
    )


_OF_BOTH: Final = "elements in the last micro-batch, rate in the last minute"
_FREE: Final = "No watermark of this stage waits for anything."
_OTHER_PLAN: Final = "The plan in the job's folder has no such stage: a later driver runs a changed pipeline."


def _errors(record: Record, stage: str, plan: Plan | None, causes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    ended = record.get("ended")
    if ended and ended["why"]:
        transforms = {each.name: of.uid for of in plan.stages for each in of.transforms} if plan else {}
        fails = failing(record)
        if (stage_with(fails, transforms) if fails else stage) in ("", stage):
            yield f"the job is {ended['state']}: {ended['why']}"
        else:
            yield f"none in this stage: the job is {ended['state']} in '{fails}'"
    for cause in causes:
        if cause["kind"] == "failure":
            yield f"{cause['text']}; released when: {cause['released_when']}"


def _figures(record: Record, stage: Mapping[str, Any]) -> Iterator[tuple[str, Cell]]:
    counts, total = stage.get("micro_batch") or {}, stage.get("total") or {}
    since = stage.get("input_since")
    yield "input watermark", gap(record, stage["input"])
    if (least := earliest(stage)) < stage["input"]:
        yield "held output", gap(record, least)
    if since:
        yield "not moved since", Cell(f"micro-batch {since['micro_batch']:,},", shown(since["time"]), since["time"])
    else:
        yield "not moved since", Cell("–", "it was not stored")
    for name, count, rate in (("in", "read", "read_rate"), ("out", "written", "written_rate")):
        if count not in counts:
            yield name, Cell("–", "not counted in this micro-batch")
        elif why := without_driver(record):
            yield name, Cell(f"{counts[count]:,} elements", f"in the last micro-batch; {why}")
        elif stage.get(rate) is None:
            yield name, Cell(f"{counts[count]:,} elements", "in the last micro-batch; its rate is not known yet")
        else:
            yield name, Cell(f"{counts[count]:,} elements, {stage[rate]:,.4g}/s", _OF_BOTH)
    if total.get("made") and (emitted := stage.get("made_rate")) is not None and not without_driver(record):
        made = counts.get("made", 0)
        yield "emitted by its source", Cell(f"{made:,} elements, {emitted:,.4g}/s", _OF_BOTH)
    yield "late", Cell(f"{total.get('late', 0):,} dropped", "since the job began")


def _output(record: Record, out: Mapping[str, Any]) -> OutputRow:
    since = out.get("since")
    if out.get("mean") is None:
        times = "no element in the last micro-batch"
    elif out["least"] == out["most"]:
        times = shown(out["least"])
    else:
        times = f"{shown(out['least'])} to {shown(out['most'])}, mean {shown(out['mean'])}"
    return OutputRow(
        out["output"],
        gap(record, out["watermark"]),
        f"micro-batch {since['micro_batch']:,} ({shown(since['time'])})" if since else "not stored",
        Cell(f"{out.get('elements', 0):,}", "in the last micro-batch; read by two stages in two ways, it counts twice"),
        Cell(bytes_shown(out.get("bytes", 0)), "in the last micro-batch"),
        times,
    )


def _waiting(stage: Mapping[str, Any]) -> Iterator[Fact]:
    if live := stage.get("restrictions"):
        yield "restrictions", f"{live:,} not done, of size {backlog_shown(stage['backlog'])} in the units of their DoFn"
    else:
        yield "restrictions", "none that is not done"
    kept = stage.get("kept")
    if kept is None:
        yield "timers", "none: the stage has no state"
    else:
        event, clock = kept.get("event_timers", 0), kept.get("clock_timers", 0)
        yield "timers", f"{event:,} for event time, {clock:,} for the clock"
    next_event, next_due = stage.get("next_event"), stage.get("next_due")
    yield (
        "next by event time",
        "nothing waits for the watermark"
        if next_event is None
        else f"{shown(next_event)}, when the watermark is there",
    )
    yield "next by the clock", "nothing waits for the clock" if next_due is None else shown(next_due)
    if blocked := stage.get("blocked"):
        yield "blocked elements", f"{_number(kept, 'blocked')}wait until {'; until '.join(blocked)}"
    elif kept and kept.get("blocked"):
        yield "blocked elements", f"{kept['blocked']:,}, until a commit"
    else:
        yield "blocked elements", "none"
    if kept and kept.get("ordered"):
        yield "elements in order of time", f"{kept['ordered']:,} wait for the watermark"
    left = stage.get("leftover", 0)
    yield "work left", f"in {left:,} shard(s): the micro-batch ended before" if left else "none: all due work was done"


def _number(kept: Mapping[str, Any] | None, name: str) -> str:
    return f"{kept[name]:,} " if kept and kept.get(name) else ""


def _state(stage: Mapping[str, Any]) -> Iterator[Fact]:
    rows, size, kept = stage.get("state_rows", 0), stage.get("state_bytes", 0), stage.get("kept")
    if not rows:
        yield "size", "no rows: the stage keeps no state now"
        return
    yield "size", f"{bytes_shown(size)} in {rows:,} rows; a rewritten row counts again until files are merged"
    yield "keys", "not counted in this micro-batch" if kept is None else f"{kept.get('keys', 0):,}"
    shards, largest = stage["state_shards"], stage["state_largest"]
    mean, most = size / shards, largest[0][1] if largest else 0
    skew = f", {most / mean:.1f} times the mean" if most else ""
    median = bytes_shown(stage["state_median"])
    yield "shards", f"{shards:,} with state: median {median}, mean {bytes_shown(mean)}, most {bytes_shown(most)}{skew}"
    for shard, here in largest:
        yield f"shard {shard}", f"{bytes_shown(here)}, {here / size:.1%} of it" if size else bytes_shown(here)
    if more := shards - len(largest):
        yield "other shards", f"{more:,}, with at most {bytes_shown(largest[-1][1])} each" if largest else f"{more:,}"


def _tasks(record: Record, stage: Mapping[str, Any], tasks: Record | None) -> Iterator[Fact]:
    seconds = record.get("seconds") or {}
    parts = ", ".join(f"{part} {seconds[part]:.2f} s" for part in ("spark", "user") if part in seconds)
    yield "level", f"{stage['level']}: the tasks of a level run all its stages"
    yield "micro-batch", parts or "its time was not stored"
    if tasks is None:
        yield (
            "single tasks",
            "unknown: the job's folder has no figures of tasks; a driver writes them every ten seconds",
        )
        return
    if (of := tasks["stages"].get(stage["stage"])) is None:
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
