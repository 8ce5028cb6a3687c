"""The first levels, which have nothing to do in a micro-batch and take no part in it.

Owns which levels these are, and the reports that replace theirs. Must not know why a micro-batch runs.

The first levels receive nothing in a micro-batch, so they have work only for the reasons of `scheduling`. If none of
these holds for a level and for all levels before it, its tasks would change neither state nor watermarks, and all its
reports stay true. A job that reads a splittable DoFn has such levels: the level that made the restrictions ended in the
first micro-batch, and a source that looks for new files or partitions rests between two searches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from arcbeam.engine.coordinator.consistentcut import ShardReports
from arcbeam.engine.coordinator.scheduling import has_work
from arcbeam.engine.protocol.layout import Layout, StagePlacement
from arcbeam.engine.protocol.markers import NO_INPUT
from arcbeam.engine.protocol.microbatchplan import Handover
from arcbeam.engine.protocol.reports import Counts, StageReport, TaskReport
from arcbeam.engine.state.statemetrics import NO_STATE
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.observed import NOTHING_SEEN
from arcbeam.engine.watermarks.outlierfilter import NOTHING_UNCONFIRMED
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp


def idle_levels(
    layout: Layout,
    places: ShardReports,
    times: WatermarkTimes,
    published: Set[Port],
    now: Timestamp,
    moves: Sequence[Handover] = (),
) -> int:
    """Return the number of idle levels, counted from the first; never all levels.

    Args:
        layout: the layout of the job.
        places: the reports of the head.
        times: the watermarks of the head.
        published: the side inputs that the head has added to.
        now: the processing time of the micro-batch.
        moves: the restrictions that change their shard in it.
    """
    observed_inputs = layout.observed_inputs(times.outputs)
    busy = {move.stage for move in moves}
    for report in places.values():
        if report.stage not in busy and has_work(report, observed_inputs, times, published, now):
            busy.add(report.stage)
    awake = (placed.level for placed in layout.stages if placed.name in busy or _watches_inputs(placed, times))
    return min(awake, default=len(layout.tasks) - 1)


def idle_reports(layout: Layout, places: ShardReports, levels: int) -> Iterator[TaskReport]:
    """Yield the reports that tasks of the first levels would make if they ran: their last reports, without activity."""
    for level in range(levels):
        for task in range(layout.tasks[level]):
            stages = tuple(
                _without_news(places[placed.name, shard])
                for shard in layout.range_of(level, task)
                for placed in layout.at(level)
            )
            yield TaskReport(level, task, b"", NO_INPUT, stages)


def _without_news(report: StageReport) -> StageReport:
    """Return the report's state of a stage, without what the stage did in that micro-batch."""
    local = replace(report.local, seen=NOTHING_SEEN, sketches={}, unconfirmed=NOTHING_UNCONFIRMED)
    return replace(report, local=local, counts=Counts(), kept=NO_STATE)


def _watches_inputs(placed: StagePlacement, times: WatermarkTimes) -> bool:
    """Return whether the stage notes since when the inputs of observers are idle. Other shards may move these."""
    if not placed.flow.observed:
        return False
    every = (times.inputs[placed.name], *(times.outputs[port] for port in placed.ports))
    return min(every) < MAX_TIMESTAMP
