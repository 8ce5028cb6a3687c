"""The manifest of a proposal.

Owns which parts of the reports a manifest contains, and what is removed from it. Must not know how a manifest is
committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from arcbeam.engine.coordinator import Propose
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.reports import StageReport, TaskReport
from arcbeam.engine.watermarks.comparison import passed
from arcbeam.engine.watermarks.holds import Hold
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.files import Shard, SideFile
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.manifest.values import HoldSummary, Manifest, OutputWatermark, ResidualSummary, StageWatermarks
from arcbeam.streaming.driverstate import Progress
from arcbeam.streaming.status.snapshot import Since, snapshot_after


def draft(
    log: CommitLog,
    layout: Layout,
    readers: Mapping[int, Sequence[str]],
    numbers: Mapping[str, int],
    command: Propose,
    figures: Mapping[str, Any] = MappingProxyType({}),
) -> Manifest:
    """Return the manifest of a proposal, without its savepoints.

    Args:
        log: the driver's commit log.
        layout: the layout of the job.
        readers: the stages that read each side channel.
        numbers: the numbers of all stages that the job ever had.
        command: the proposal.
        figures: measurements of the micro-batch; JSON values.
    """
    # Grouped by stage once, because many shards have many reports.
    stages: dict[str, list[StageReport]] = {}
    for stage in (stage for report in command.reports for stage in report.stages):
        stages.setdefault(stage.stage, []).append(stage)
    changes: dict[str, Any] = {}
    if stages:
        now = Since(command.micro_batch, command.time)
        snapshot = snapshot_after(log.head, layout, stages, command.times, now, figures)
        changes = {
            "holds": _holds(layout, stages),
            "residuals": _residuals(layout, stages),
            "snapshot": snapshot.encoded(),
        }
    return log.draft(
        command.time,
        mode=command.mode,
        attempts_digest=command.attempts_digest,
        watermarks=_watermarks(layout, command.times),
        shards=_shards(log.head, command.reports),
        side_files=_side_files(log.head, command.reports, readers),
        committables=log.head.committables
        if command.carries_unpublished
        else tuple(each for report in command.reports for each in report.committables),
        progress=Progress(
            layout.sources - command.unbegun,
            command.drains_to,
            numbers,
            command.script,
            command.times.seen,
            command.times.recent,
            command.times.unconfirmed,
        ).encoded(),
        **changes,
    )


def _watermarks(layout: Layout, times: WatermarkTimes) -> tuple[StageWatermarks, ...]:
    return tuple(
        StageWatermarks(
            placed.name,
            times.upstream_of(placed.name, (times.outputs[port] for port in placed.flow.inputs)),
            times.inputs[placed.name],
            tuple(OutputWatermark(port.output, times.outputs[port]) for port in placed.ports),
        )
        for placed in layout.stages
        if placed.name in times.inputs
    )


def _shards(head: Manifest, reports: Iterable[TaskReport]) -> tuple[Shard, ...]:
    """Return the head's shards, with those that the micro-batch has changed."""
    shards = {(shard.level, shard.shard): shard for shard in head.shards}
    for report in reports:
        shards.update({(shard.level, shard.shard): shard for shard in report.files.shards})
    return tuple(shards[place] for place in sorted(shards))


def _side_files(
    head: Manifest, reports: Sequence[TaskReport], readers: Mapping[int, Sequence[str]]
) -> tuple[SideFile, ...]:
    """Return the head's files and the micro-batch's, as long as they may be read.

    SUBTLE: a file may be needed after a reader's watermark has passed its window. Work that the watermark allows may be
    left for the next micro-batch. A restriction may have promised a later time than its element's window, in which it
    still reads. At the end of its input, windows wait for the clock if they have processing-time timers. Blocked
    elements hold the watermark themselves.
    """
    files = (*head.side_files, *(side for report in reports for side in report.files.sides))
    if not files:
        return ()
    reached: dict[str, Timestamp] = {}
    for stage in (stage for report in reports for stage in report.stages):
        ahead = stage.input if stage.next_event is None else min(stage.input, stage.next_event)
        if stage.restrictions.live or (stage.input == MAX_TIMESTAMP and stage.next_due is not None):
            ahead = MIN_TIMESTAMP
        reached[stage.stage] = min(ahead, reached.get(stage.stage, MAX_TIMESTAMP))

    def is_read(file: SideFile) -> bool:
        if file.until is None or file.channel not in readers:
            return True
        return not passed(min(reached.get(stage, MIN_TIMESTAMP) for stage in readers[file.channel]), file.until)

    removed = {name for report in reports for name in report.files.joined}
    return tuple(file for file in files if file.name not in removed and is_read(file))


def _holds(layout: Layout, stages: Mapping[str, Sequence[StageReport]]) -> tuple[HoldSummary, ...]:
    """Return what holds the watermarks of each stage, for people."""
    summaries: list[HoldSummary] = []
    for placed in layout.stages:
        earliest: tuple[Hold, int] | None = None
        count = 0
        for report in stages.get(placed.name, ()):
            first = _earliest(report)
            if first is not None:
                count += 1
                earliest = (first, report.shard) if earliest is None or first.time < earliest[0].time else earliest
        if earliest is not None:
            hold, shard = earliest
            summaries.append(HoldSummary(placed.name, count, hold.time, f"{hold} in shard {shard}"))
    return tuple(summaries)


def _earliest(report: StageReport) -> Hold | None:
    first = report.local.pending
    for of in report.local.outputs.values():
        for hold in (of.pending, of.hold):
            if hold is not None and (first is None or hold.time < first.time):
                first = hold
    return first


def _residuals(layout: Layout, stages: Mapping[str, Sequence[StageReport]]) -> tuple[ResidualSummary, ...]:
    """Return the unfinished restrictions of each stage."""
    summaries: list[ResidualSummary] = []
    for placed in layout.stages:
        busy = [report for report in stages.get(placed.name, ()) if report.restrictions.live]
        if busy:
            due = min((report.next_due for report in busy if report.next_due is not None), default=MAX_TIMESTAMP)
            live = sum(report.restrictions.live for report in busy)
            size = sum(report.restrictions.size for report in busy)
            summaries.append(ResidualSummary(placed.name, live, size, due))
    return tuple(summaries)
