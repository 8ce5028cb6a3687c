"""What there is to do for a job, as far as its shards have told.

Owns the difference between now, later, never and nothing more; and the story of a job that waits for what cannot come.
Must not know how a micro-batch is run, nor what was asked of the job.

After a micro-batch nothing is on its way between levels: what came was processed, or waits in a shard as rows. So there
is something to do only for one of these reasons:

- the budget of the micro-batch ended before all that was due was done;
- the clock has come to a timer or a restriction;
- a side input that elements wait for is complete, or has been added to: shards learn of both from the head;
- elements have waited for the micro-batch to become real;
- what was observed in the micro-batch has moved a watermark: those who read it learn of it from the head;
- nothing else is left: then stages whose user code prepares to shut down do so, from sources to sinks.

Else event time is no reason of its own: watermarks flow through all levels within a micro-batch, and each shard fires
all that they let fire.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from arcbeam.engine.coordinator.consistentcut import Places
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.reports import StageReport
from arcbeam.engine.watermarks.clocks import Port, input_time, shown_time
from arcbeam.engine.watermarks.comparison import due, passed
from arcbeam.engine.watermarks.holdreasons import HoldReason
from arcbeam.engine.watermarks.stages import Times, Watermarks
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp


@dataclass(frozen=True, slots=True)
class Ready:
    """There is something to do.

    Attributes:
        since: the moment of processing time at which it became so; None: as soon as the micro-batch before was
            committed.
    """

    since: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class Later:
    """There is nothing to do before that moment."""

    due: Timestamp


@dataclass(frozen=True, slots=True)
class Finished:
    """There is nothing to do, and never will be: all watermarks are at the end of time, and nothing waits; but perhaps
    for stages that are to prepare to shut down.

    Attributes:
        preparing: the stages that have their turn with that. None: all have had it.
    """

    preparing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Never:
    """Something waits for what will not come: nothing is due, and nobody is left who could bring it."""


Outlook = Ready | Later | Finished | Never


def look(
    layout: Layout,
    places: Places,
    times: Times,
    published: Set[Port],
    now: Timestamp,
    prepared: Set[str] = frozenset(),
    *,
    goes_on: bool = False,
) -> Outlook:
    """What there is to do.

    Args:
        layout: of the job.
        places: the reports of the head.
        times: its watermarks.
        published: the side inputs that it has added to.
        now: processing time.
        prepared: the stages that have prepared to shut down.
        goes_on: somebody else may still move time and clock: what waits for these is not to be ended.
    """
    unprepared = {report.stage for report in places.values() if report.unprepared} - prepared
    if unprepared and not goes_on and (preparing := _preparing(layout, places, times, published, unprepared)):
        return Finished(preparing)
    return _look(layout, places, times, published, now, unprepared)


def _look(
    layout: Layout,
    places: Places,
    times: Times,
    published: Set[Port],
    now: Timestamp,
    unprepared: Set[str],
) -> Outlook:
    first = MAX_TIMESTAMP
    told = layout.told_at_commits(times.outputs)
    for report in places.values():
        if report.leftover or _is_woken(report, told, times, published):
            return Ready()
        if report.next_due is not None:
            first = min(first, report.next_due)
    if first < MAX_TIMESTAMP:
        return Ready(first) if due(now, first) else Later(first)
    complete = all(time == MAX_TIMESTAMP for each in (times.inputs, times.outputs) for time in each.values())
    # What is due at the end of time is due never.
    waiting = any(report.restrictions.live or report.waits for report in places.values())
    return Finished(frozenset(unprepared)) if complete and not waiting else Never()


def _is_woken(report: StageReport, told: Mapping[str, Timestamp], times: Times, published: Set[Port]) -> bool:
    """Whether the commit lets something go on."""
    return (
        report.uncommitted
        or (report.stage in told and report.input < input_time(told[report.stage], report.local))
        or any(each.port in published or passed(times.outputs[each.port], each.until) for each in report.awaited)
    )


def _preparing(
    layout: Layout, places: Places, times: Times, published: Set[Port], unprepared: Set[str]
) -> frozenset[str]:
    """The stages that are to prepare to shut down, if the job is at its end but for that: those that have none above
    them which are to do it first.

    What is behind a stage that has not prepared is held by it: there, whatever waits for time or the clock is ended by
    the end of time, and does not count. Nor does what the commit lets go on, which the micro-batch does in which they
    prepare: a timer that sets itself again and again may bring it about for ever. Restrictions, which no time ends,
    count.
    """
    behind = _behind(layout, unprepared)
    told = layout.told_at_commits(times.outputs)
    for report in places.values():
        goes_on = report.leftover or report.waits or _is_woken(report, told, times, published)
        if report.restrictions.live or (report.stage not in behind and goes_on):
            return frozenset()
    for stage in layout.stages:
        if stage.name in behind:
            continue
        ends = [times.inputs.get(stage.name)]
        if stage.name not in unprepared:
            ends += [times.outputs.get(port) for port in stage.ports]
        if any(time != MAX_TIMESTAMP for time in ends):
            return frozenset()
    return frozenset(unprepared - behind)


def _behind(layout: Layout, stages: Set[str]) -> set[str]:
    """The stages that read what those have put out, whatever is in between; also as a side input."""
    behind: set[str] = set()
    while True:
        known = stages | behind
        more = {
            stage.name
            for stage in layout.stages
            if any(port.stage in known for port in (*stage.flow.inputs, *(port for _, port in stage.side_inputs)))
        }
        if more <= behind:
            return behind
        behind |= more


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a stage waits for; prints as a line, or several.

    Attributes:
        stage: its name.
        why: what keeps its input watermark where it is.
        outputs: the same of each output that is behind the input.
        parked: what elements wait for, each once.
        live: restrictions that are not done.
        size: of them together.
        next_event: its first event-time timer or waiting element.
        next_due: when its first timer or restriction is due by the clock.
        leftover: in how many shards the micro-batch's budget ended before the work.
    """

    stage: str
    why: HoldReason
    outputs: tuple[HoldReason, ...]
    parked: tuple[str, ...]
    live: int
    size: float
    next_event: Timestamp | None
    next_due: Timestamp | None
    leftover: int

    def __str__(self) -> str:
        lines = [f"'{self.stage}': {self.why}", *map(str, self.outputs)]
        lines += [f"elements are parked until {each}" for each in self.parked]
        if self.live:
            lines.append(f"{self.live} restriction(s) of size {self.size:g} are not done")
        if self.next_event is not None:
            lines.append(f"what is first in event time has its turn behind {shown_time(self.next_event)}")
        if self.next_due is not None:
            when = "never" if self.next_due == MAX_TIMESTAMP else f"at {shown_time(self.next_due)}"
            lines.append(f"what is first by the clock is due {when}")
        if self.leftover:
            lines.append(f"{self.leftover} shard(s) did not come to the end of what was due")
        return "\n    ".join(lines)


@dataclass(frozen=True, slots=True)
class Dump:
    """What each stage waits for, producers first."""

    stages: tuple[Waiting, ...]

    def __str__(self) -> str:
        return "\n".join(f"  - {stage}" for stage in self.stages)


def dump(places: Places, marks: Watermarks) -> Dump:
    """What each stage waits for; stages that wait for nothing are left out."""
    times = marks.times()
    waiting: list[Waiting] = []
    for name, input in times.inputs.items():
        ports = [port for port in times.outputs if port.stage == name]
        reports = [report for (stage, _), report in places.items() if stage == name]
        parked = {
            f"{awaited.port} is past {shown_time(awaited.until)}; it is at {marks.explain_output(awaited.port)}": None
            for report in reports
            for awaited in report.awaited
        }
        of = Waiting(
            name,
            marks.explain(name),
            tuple(marks.explain_output(port) for port in ports if times.outputs[port] < input),
            tuple(parked),
            sum(report.restrictions.live for report in reports),
            sum(report.restrictions.size for report in reports),
            min((report.next_event for report in reports if report.next_event is not None), default=None),
            min((report.next_due for report in reports if report.next_due is not None), default=None),
            sum(report.leftover for report in reports),
        )
        busy = of.parked or of.live or of.leftover or of.next_event is not None or of.next_due is not None
        if busy or min([input, *(times.outputs[port] for port in ports)]) < MAX_TIMESTAMP:
            waiting.append(of)
    return Dump(tuple(waiting))
