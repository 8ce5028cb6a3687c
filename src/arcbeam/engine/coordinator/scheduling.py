"""The next work of a job, according to its shards' reports.

Owns the difference between now, later, never and finished; and the explanation of a job that waits for something that
cannot happen. Must not know how a micro-batch runs, nor the requests to the job.

After a micro-batch nothing is in transit between levels: elements were processed, or wait in a shard as rows. So there
is work only for one of these reasons:

- the budget of the micro-batch ended before all due work was done;
- the clock has reached a timer or a restriction;
- a side input that elements wait for is complete or has grown: shards read both from the head;
- elements have waited for the commit of the micro-batch;
- what was observed in the micro-batch has moved a watermark: the stages that read it learn of it from the head;
- no other work is left: then stages whose user code prepares to shut down do so, from sources to sinks.

Event time alone is no reason: watermarks flow through all levels within a micro-batch, and each shard fires everything
that they allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from arcbeam.engine.coordinator.consistentcut import ShardReports
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.reports import StageReport
from arcbeam.engine.watermarks.clocks import Port, input_time, shown_time
from arcbeam.engine.watermarks.comparison import due, passed
from arcbeam.engine.watermarks.holdreasons import HoldReason
from arcbeam.engine.watermarks.stages import Watermarks, WatermarkTimes
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp


@dataclass(frozen=True, slots=True)
class Ready:
    """There is work.

    Attributes:
        since: the processing time since which there is work. None: since the commit of the last micro-batch.
    """

    since: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class WakeAt:
    """There is no work before that moment."""

    due: Timestamp


@dataclass(frozen=True, slots=True)
class Finished:
    """There is no more work: all watermarks are at the end of time, and nothing waits. Stages may still have to prepare
    to shut down.

    Attributes:
        preparing: the stages that prepare next. Empty: all have prepared.
    """

    preparing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Stuck:
    """Something waits, but nothing is due, and no event can end the wait."""


Outlook = Ready | WakeAt | Finished | Stuck


def look(
    layout: Layout,
    places: ShardReports,
    times: WatermarkTimes,
    published: Set[Port],
    now: Timestamp,
    prepared: Set[str] = frozenset(),
    *,
    script_continues: bool = False,
) -> Outlook:
    """Return the next work of a job.

    Args:
        layout: the layout of the job.
        places: the reports of the head.
        times: the watermarks of the head.
        published: the side inputs that the head has added to.
        now: processing time.
        prepared: the stages that have prepared to shut down.
        script_continues: the script may still move watermarks and the clock. Do not end what waits for these.
    """
    unprepared = {report.stage for report in places.values() if report.unprepared} - prepared
    if unprepared and not script_continues and (preparing := _preparing(layout, places, times, published, unprepared)):
        return Finished(preparing)
    return _look(layout, places, times, published, now, unprepared)


def _look(
    layout: Layout,
    places: ShardReports,
    times: WatermarkTimes,
    published: Set[Port],
    now: Timestamp,
    unprepared: Set[str],
) -> Outlook:
    first = MAX_TIMESTAMP
    observed_inputs = layout.observed_inputs(times.outputs)
    for report in places.values():
        if _has_left(report, observed_inputs, times, published):
            return Ready()
        if report.next_due is not None:
            first = min(first, report.next_due)
    if first < MAX_TIMESTAMP:
        return Ready(first) if due(now, first) else WakeAt(first)
    complete = all(time == MAX_TIMESTAMP for each in (times.inputs, times.outputs) for time in each.values())
    # A timer at the end of time never fires.
    waiting = any(report.restrictions.live or report.waits for report in places.values())
    return Finished(frozenset(unprepared)) if complete and not waiting else Stuck()


def has_work(
    report: StageReport,
    observed_inputs: Mapping[str, Timestamp],
    times: WatermarkTimes,
    published: Set[Port],
    now: Timestamp,
) -> bool:
    """Return whether a shard of a stage has something to do at a processing time, though nothing reaches it.

    Args:
        report: the shard's report at the head.
        observed_inputs: the upstream watermarks of the stages that read observed outputs.
        times: the watermarks of the head.
        published: the side inputs that the head has added to.
        now: the processing time.
    """
    is_due = report.next_due is not None and due(now, report.next_due)
    return is_due or _has_left(report, observed_inputs, times, published)


def _has_left(
    report: StageReport, observed_inputs: Mapping[str, Timestamp], times: WatermarkTimes, published: Set[Port]
) -> bool:
    """Return whether work is left or unblocked, at any processing time."""
    return report.leftover or _is_woken(report, observed_inputs, times, published)


def _is_woken(
    report: StageReport, observed_inputs: Mapping[str, Timestamp], times: WatermarkTimes, published: Set[Port]
) -> bool:
    """Return whether the commit unblocks some work."""
    return (
        report.uncommitted
        or (report.stage in observed_inputs and report.input < input_time(observed_inputs[report.stage], report.local))
        or any(each.port in published or passed(times.outputs[each.port], each.until) for each in report.awaited)
    )


def _preparing(
    layout: Layout, places: ShardReports, times: WatermarkTimes, published: Set[Port], unprepared: Set[str]
) -> frozenset[str]:
    """Return the stages that prepare to shut down next, if nothing else keeps the job from its end. These are the
    stages without an unprepared stage upstream.

    A stage that has not prepared holds the watermarks of all stages downstream of it. What waits there for time or the
    clock is ended by the end of time, and does not count. Work that the commit unblocks there does not count either:
    the
    micro-batch in which stages prepare does it, and a timer that sets itself again may cause it forever. Restrictions
    count, because no watermark ends them.
    """
    downstream = _downstream(layout, unprepared)
    observed_inputs = layout.observed_inputs(times.outputs)
    for report in places.values():
        is_busy = report.waits or _has_left(report, observed_inputs, times, published)
        if report.restrictions.live or (report.stage not in downstream and is_busy):
            return frozenset()
    for stage in layout.stages:
        if stage.name in downstream:
            continue
        ends = [times.inputs.get(stage.name)]
        if stage.name not in unprepared:
            ends += [times.outputs.get(port) for port in stage.ports]
        if any(time != MAX_TIMESTAMP for time in ends):
            return frozenset()
    return frozenset(unprepared - downstream)


def _downstream(layout: Layout, stages: Set[str]) -> set[str]:
    """Return the stages that read, directly or not, the outputs of these stages, also as a side input."""
    downstream: set[str] = set()
    while True:
        known = stages | downstream
        more = {
            stage.name
            for stage in layout.stages
            if any(port.stage in known for port in (*stage.flow.inputs, *(port for _, port in stage.side_inputs)))
        }
        if more <= downstream:
            return downstream
        downstream |= more


@dataclass(frozen=True, slots=True)
class StageWait:
    """What a stage waits for; prints as one or more lines.

    Attributes:
        stage: its name.
        why: what holds its input watermark.
        outputs: what holds each output watermark that lags behind the input watermark.
        blocked: what blocked elements wait for, each once.
        live: the number of restrictions that are not done.
        size: their total size.
        next_event: its first event-time timer or waiting element.
        next_due: when its first timer or restriction is due by the clock.
        leftover: the number of shards whose budget ended before their work.
    """

    stage: str
    why: HoldReason
    outputs: tuple[HoldReason, ...]
    blocked: tuple[str, ...]
    live: int
    size: float
    next_event: Timestamp | None
    next_due: Timestamp | None
    leftover: int

    def __str__(self) -> str:
        lines = [f"'{self.stage}': {self.why}", *map(str, self.outputs)]
        lines += [f"elements are blocked until {each}" for each in self.blocked]
        if self.live:
            lines.append(f"{self.live} restriction(s) of size {self.size:g} are not done")
        if self.next_event is not None:
            lines.append(f"the first event-time timer or element is due after {shown_time(self.next_event)}")
        if self.next_due is not None:
            when = "never" if self.next_due == MAX_TIMESTAMP else f"at {shown_time(self.next_due)}"
            lines.append(f"the first processing-time timer or restriction is due {when}")
        if self.leftover:
            lines.append(f"{self.leftover} shard(s) reached the limits of the micro-batch before all due work was done")
        return "\n    ".join(lines)


@dataclass(frozen=True, slots=True)
class Dump:
    """What each stage waits for, producers first."""

    stages: tuple[StageWait, ...]

    def __str__(self) -> str:
        return "\n".join(f"  - {stage}" for stage in self.stages)


def dump(places: ShardReports, marks: Watermarks) -> Dump:
    """Return what each stage waits for, without stages that wait for nothing."""
    times = marks.times()
    waiting: list[StageWait] = []
    for name, input in times.inputs.items():
        ports = [port for port in times.outputs if port.stage == name]
        reports = [report for (stage, _), report in places.items() if stage == name]
        blocked = {
            f"{awaited.port} is past {shown_time(awaited.until)}; it is at {marks.explain_output(awaited.port)}": None
            for report in reports
            for awaited in report.awaited
        }
        of = StageWait(
            name,
            marks.explain(name),
            tuple(marks.explain_output(port) for port in ports if times.outputs[port] < input),
            tuple(blocked),
            sum(report.restrictions.live for report in reports),
            sum(report.restrictions.size for report in reports),
            min((report.next_event for report in reports if report.next_event is not None), default=None),
            min((report.next_due for report in reports if report.next_due is not None), default=None),
            sum(report.leftover for report in reports),
        )
        busy = of.blocked or of.live or of.leftover or of.next_event is not None or of.next_due is not None
        if busy or min([input, *(times.outputs[port] for port in ports)]) < MAX_TIMESTAMP:
            waiting.append(of)
    return Dump(tuple(waiting))
