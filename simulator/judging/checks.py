"""What must hold of everything that one attempt of a task does, whatever becomes of it.

Owns the checks. They use comparisons of their own, so that a mistake in the engine's is no mistake here. Must not know
who is checked.
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
"""At the budget of a micro-batch, for each stage and shard, beyond one for each thing that was done. One was seen."""


def is_behind(watermark: Timestamp, moment: Timestamp) -> bool:
    """Whether a watermark says that nothing of that moment comes any more."""
    return moment < watermark or watermark == MAX_TIMESTAMP


def of_output(out: Out, said: Timestamp, honest: bool) -> None:
    """Nothing is put out that the watermark has said will not come; but the last pane of a window, with nothing new."""
    closing = out.pane is not None and out.pane.timing is Timing.LATE and out.pane.is_last
    if honest and not closing and out.time < said:
        raise Broken(f"{out.stage} put out {out} at {out.time}, its watermark was at {said}")


def of_pane(out: Out, ends: list[tuple[str, Timestamp]]) -> None:
    """Takes note of what a pane says about the watermark."""
    assert out.pane is not None
    assert out.window is not None
    if out.pane.timing is not Timing.EARLY:
        ends.append((f"the end of the window of a pane that is {out.pane.timing.value}", out.window.max_timestamp))


def of_drop(stage: Stage, drop: Drop, upstream: Timestamp, honest: bool) -> None:
    """What is dropped as late is late: by its window, and by what the producers have said."""
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
    # But for what comes behind the end of time: a source that is surprised by its last event had said that.
    if drop.window == GLOBAL_WINDOW and not in_order and drop.watermark != MAX_TIMESTAMP:
        raise Broken(f"{stage.name} dropped {drop} as late: nothing is too late for the global window")
    over = drop.time if in_order else drop.window.max_timestamp
    assert over is not None
    if drop.watermark != MAX_TIMESTAMP and drop.watermark <= over + stage.kind.lateness:
        raise Broken(f"{stage.name} dropped {drop} at {drop.watermark}, before it was too late for {over}")
    if drop.time is not None and drop.time >= upstream:
        raise Broken(f"{stage.name} dropped {drop}, and its producers had said {upstream}")


def is_expired(stage: Stage, window: Window, watermark: Timestamp | None) -> bool:
    """Whether what comes for a window must be dropped. Windows that merge are not judged: they change."""
    kind = stage.kind
    if watermark is None or not isinstance(kind, (Group, Keep)) or kind.windowing.merges:
        return False
    late = 0 if isinstance(kind, Keep) and kind.way == "order" else kind.lateness
    return is_behind(watermark, min(Timestamp(window.max_timestamp + late), END_OF_GLOBAL_WINDOW))


def of_lateness(stage: Stage, late: Sequence[tuple[bytes, bytes, Window]], records: Sequence[Record]) -> None:
    """All that came too late was dropped."""
    if isinstance(stage.kind, Keep) and stage.kind.way == "order":
        return
    dropped = Counter((each.key, joined(each.atoms), each.window) for each in records if isinstance(each, Drop))
    if missed := Counter(late) - dropped:
        raise Broken(f"{stage.name} took in what had expired: {list(missed)[:5]}")


class Happened(Protocol):
    """What one stage has done in one shard, in an attempt; see `desks.StageDesk`."""

    stage: Stage

    @property
    def ends(self) -> Sequence[tuple[str, Timestamp]]:
        """What has fired, and the moments that the watermark must have passed for it."""

    @property
    def waiting(self) -> Sequence[Timestamp]:
        """The moments of what waited for the watermark when the clock let something of its key fire."""

    @property
    def records(self) -> Sequence[Record]:
        """What it put out and dropped."""


def of_report(happened: Happened, report: StageReport, plan: MicroBatchPlan) -> None:
    """Nothing has fired too early, or out of turn; all that is due was done, or is told; drops are counted."""
    stage = happened.stage
    where = f"{stage.name} in shard {report.shard}"
    for what, moment in happened.ends:
        if not is_behind(report.input, moment):
            raise Broken(f"{where} is at {report.input}, and {what} of {moment} has fired")
    for moment in happened.waiting:
        if is_behind(report.input, moment):
            raise Broken(f"{where} is at {report.input}, and the clock went before a timer of {moment}")
    if stage.name in plan.preparing and report.input != MAX_TIMESTAMP:
        raise Broken(f"{where} was to prepare to shut down, and is at {report.input}")
    if report.leftover:
        if not (report.counts.fired or report.counts.resumed or report.counts.written):
            raise Broken(f"{where} has left something, and done nothing")
    else:
        late = stage.kind.lateness if isinstance(stage.kind, Keep) and stage.kind.way == "order" else 0
        if report.next_event is not None and is_behind(
            MAX_TIMESTAMP if report.input == MAX_TIMESTAMP else Timestamp(report.input - late), report.next_event
        ):
            raise Broken(f"{where} is at {report.input}, and what has its turn at {report.next_event} was left")
        if report.next_due is not None and report.next_due <= plan.time:
            raise Broken(f"{where} has left what is due at {report.next_due}; it is {plan.time}")
        if report.next_due is not None and isinstance(stage.kind, Group) and stage.kind.trigger == "synchronized":
            raise Broken(f"{where} waits until {report.next_due}, and is to follow the clock of what it reads")
    drops = sum(record.elements for record in happened.records if isinstance(record, Drop))
    if report.counts.late != drops:
        raise Broken(f"{where} has dropped {drops}, and counts {report.counts.late}")


def of_looks(looks: int, report: TaskReport) -> None:
    """A task looks at its budget when it has done something, or is about to: else it spins until that is used up."""
    every = [stage.counts for stage in report.stages]
    done = sum(each.read + each.written + each.fired + each.resumed + each.unparked + each.made for each in every)
    if looks > done + _IDLE_LOOKS * (1 + len(every)):
        raise Broken(
            f"a busy loop: task {report.task} of level {report.level} has looked at its budget {looks} times, and has "
            f"done {done} things: {'; '.join(f'{of.stage} in shard {of.shard}: {of.counts}' for of in report.stages)}"
        )
