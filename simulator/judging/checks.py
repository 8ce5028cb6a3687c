"""Invariants of everything that one attempt of a task does, whether it is committed or not.

Owns the checks. They compare timestamps with their own code, so that a mistake in the engine's comparisons is not
repeated here. Must not know which component is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.engine.protocol.reports import StageReport, TaskReport
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, Timing, Window
from simulator.judging.records import Broken, Drop, Out, Record
from simulator.scenario.combining import joined
from simulator.scenario.kinds import Group, Keep
from simulator.scenario.plans import Stage

_IDLE_LOOKS = 10
"""Allowed checks of the micro-batch's budget per stage and shard, in addition to one per action. The maximum seen is
1."""


def is_behind(watermark: Timestamp, moment: Timestamp) -> bool:
    """Return whether a watermark has passed a timestamp: no more elements of that timestamp are expected."""
    return moment < watermark or watermark == MAX_TIMESTAMP


def of_output(out: Out, reported: Timestamp, honest: bool) -> None:
    """Check that no output is earlier than the watermark. Exempt: the last pane of a window, which has nothing new."""
    closing = out.pane is not None and out.pane.timing is Timing.LATE and out.pane.is_last
    if honest and not closing and out.time < reported:
        raise Broken(f"{out.stage} put out {out} at {out.time}, its watermark was at {reported}")


def of_pane(out: Out, ends: list[tuple[str, Timestamp]]) -> None:
    """Record what a pane implies about the watermark."""
    assert out.pane is not None
    assert out.window is not None
    if out.pane.timing is not Timing.EARLY:
        ends.append((f"the end of the window of a pane that is {out.pane.timing.value}", out.window.max_timestamp))


def of_drop(stage: Stage, drop: Drop, upstream: Timestamp, honest: bool) -> None:
    """Check that a dropped element is late, by its window and by the watermarks of its producers."""
    if not drop.late:
        if not (isinstance(stage.kind, Group) and stage.kind.finishes):
            raise Broken(f"{stage.name} dropped {drop}, and its trigger never finishes")
        if honest and stage.kind.together:
            raise Broken(f"{stage.name} dropped {drop}: its trigger finished before all of its window was there")
        return
    if honest:
        raise Broken(f"{stage.name} dropped {drop} as late: nothing can be late there")
    assert isinstance(stage.kind, (Group, Keep))
    in_order = isinstance(stage.kind, Keep) and stage.kind.way == "order"
    # Exempt: elements after the end of time. A source whose last event is surprising had already reached that end.
    if drop.window == GLOBAL_WINDOW and not in_order and drop.watermark != MAX_TIMESTAMP:
        raise Broken(f"{stage.name} dropped {drop} as late: nothing is too late for the global window")
    over = drop.time if in_order else drop.window.max_timestamp
    assert over is not None
    if drop.watermark != MAX_TIMESTAMP and drop.watermark <= over + stage.kind.lateness:
        raise Broken(f"{stage.name} dropped {drop} at {drop.watermark}, before it was too late for {over}")
    if drop.time is not None and drop.time >= upstream:
        raise Broken(f"{stage.name} dropped {drop}, but the watermark of its producers was {upstream}")


def is_expired(stage: Stage, window: Window, watermark: Timestamp | None) -> bool:
    """Return whether an element of a window must be dropped. Windows that merge are not judged, because they change."""
    kind = stage.kind
    if watermark is None or not isinstance(kind, (Group, Keep)) or kind.windowing.merges:
        return False
    late = 0 if isinstance(kind, Keep) and kind.way == "order" else kind.lateness
    return is_behind(watermark, min(Timestamp(window.max_timestamp + late), END_OF_GLOBAL_WINDOW))


def of_lateness(stage: Stage, late: Sequence[tuple[bytes, bytes, Window]], records: Sequence[Record]) -> None:
    """Check that every late element was dropped."""
    if isinstance(stage.kind, Keep) and stage.kind.way == "order":
        return
    dropped = Counter((each.key, joined(each.atoms), each.window) for each in records if isinstance(each, Drop))
    if missed := Counter(late) - dropped:
        raise Broken(f"{stage.name} accepted elements of expired windows: {list(missed)[:5]}")


class Happened(Protocol):
    """The actions of one stage in one shard, in one attempt; see `runners.StageContext`."""

    stage: Stage

    @property
    def ends(self) -> Sequence[tuple[str, Timestamp]]:
        """Return what has fired, each with the timestamp that the watermark must have passed."""

    @property
    def waiting(self) -> Sequence[Timestamp]:
        """Return the timestamps of event timers that were pending when a processing-time timer of the same key
        fired.
        """

    @property
    def records(self) -> Sequence[Record]:
        """Return the outputs and drops."""


def of_report(happened: Happened, report: StageReport, plan: MicroBatchPlan) -> None:
    """Check that nothing fires too early or out of order, that everything due is done or reported, and drops
    counted.
    """
    stage = happened.stage
    where = f"{stage.name} in shard {report.shard}"
    for what, moment in happened.ends:
        if not is_behind(report.input, moment):
            raise Broken(f"{where} is at {report.input}, but {what} of {moment} has fired")
    for moment in happened.waiting:
        if is_behind(report.input, moment):
            raise Broken(f"{where} is at {report.input}, but the clock fired before an event timer of {moment}")
    if stage.name in plan.preparing and report.input != MAX_TIMESTAMP:
        raise Broken(f"{where} had to prepare its shutdown, but is at {report.input}")
    if report.leftover:
        if not (report.counts.fired or report.counts.resumed or report.counts.written):
            raise Broken(f"{where} reports leftover work, but did nothing")
    else:
        late = stage.kind.lateness if isinstance(stage.kind, Keep) and stage.kind.way == "order" else 0
        if report.next_event is not None and is_behind(
            MAX_TIMESTAMP if report.input == MAX_TIMESTAMP else Timestamp(report.input - late), report.next_event
        ):
            raise Broken(f"{where} is at {report.input}, but skipped work that was due at {report.next_event}")
        if report.next_due is not None and report.next_due <= plan.time:
            raise Broken(f"{where} skipped work that was due at {report.next_due}; the time is {plan.time}")
        if report.next_due is not None and isinstance(stage.kind, Group) and stage.kind.trigger == "synchronized":
            raise Broken(f"{where} waits until {report.next_due}, but must follow the clock of its producer")
    drops = sum(record.elements for record in happened.records if isinstance(record, Drop))
    if report.counts.late != drops:
        raise Broken(f"{where} dropped {drops} elements, but counts {report.counts.late}")


def of_looks(looks: int, report: TaskReport) -> None:
    """Check that a task makes progress between checks of its budget. Otherwise it spins until the budget is used up."""
    every = [stage.counts for stage in report.stages]
    done = sum(each.read + each.written + each.fired + each.resumed + each.unblocked + each.made for each in every)
    if looks > done + _IDLE_LOOKS * (1 + len(every)):
        raise Broken(
            f"busy loop: task {report.task} of level {report.level} checked its budget {looks} times, but did only "
            f"{done} things: {'; '.join(f'{of.stage} in shard {of.shard}: {of.counts}' for of in report.stages)}"
        )
