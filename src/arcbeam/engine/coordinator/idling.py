"""The levels that have no more work and take no part in a micro-batch.

Owns which levels these are, and the reports that replace theirs. Must not know why a micro-batch runs.

A job that reads a splittable DoFn has at least one such level: the level that made the restrictions ended in the first
micro-batch. A stage is idle when its watermarks are at the end of time and nothing waits in any of its shards. Nothing
can reach it, and all its reports are final. If all stages of the first levels are idle, a micro-batch begins after
these levels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from arcbeam.engine.coordinator.consistentcut import Places
from arcbeam.engine.protocol.layout import Layout, Placed
from arcbeam.engine.protocol.markers import NO_INPUT
from arcbeam.engine.protocol.reports import Counts, StageReport, TaskReport
from arcbeam.engine.state.statemetrics import NO_STATE
from arcbeam.engine.watermarks.observed import NOTHING_SEEN
from arcbeam.engine.watermarks.outlierfilter import NOTHING_DOUBTED
from arcbeam.engine.watermarks.stages import Times
from arcbeam.model.timestamps import MAX_TIMESTAMP


def idle_levels(layout: Layout, places: Places, times: Times) -> int:
    """Return the number of idle levels, counted from the first; never all levels.

    Args:
        layout: the layout of the job.
        places: the reports of the head.
        times: the watermarks of the head.
    """
    busy = {report.stage for report in places.values() if _has_work(report)}
    awake = (placed.level for placed in layout.stages if placed.name in busy or not _is_over(placed, times))
    return min(awake, default=len(layout.tasks) - 1)


def idle_reports(layout: Layout, places: Places, levels: int) -> Iterator[TaskReport]:
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
    local = replace(report.local, seen=NOTHING_SEEN, sketches={}, doubted=NOTHING_DOUBTED)
    return replace(report, local=local, counts=Counts(), kept=NO_STATE)


def _is_over(placed: Placed, times: Times) -> bool:
    every = (times.inputs[placed.name], *(times.outputs[port] for port in placed.ports))
    return min(every) == MAX_TIMESTAMP


def _has_work(report: StageReport) -> bool:
    """Return whether work is left or waits: for time, the clock, a side input, the commit, or the job's end."""
    left = report.leftover or report.restrictions.live or report.uncommitted or report.unprepared
    return report.waits or bool(left)
