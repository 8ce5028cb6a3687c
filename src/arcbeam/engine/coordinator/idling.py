"""The levels that have nothing to do any more, and take no part in a micro-batch.

Owns which those are, and what is said in their place. Must not know why a micro-batch is run.

A job that reads a splittable DoFn has at least one: what made its restrictions ended in the first micro-batch. A stage
rests when it is at the end of time, and nothing waits in any of its shards: nothing can come to it, and whatever it has
to say it has said. If all stages of the first levels rest, a micro-batch begins behind them.
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


def resting(layout: Layout, places: Places, times: Times) -> int:
    """How many levels rest, from the first one on; never all of them.

    Args:
        layout: of the job.
        places: the reports of the head.
        times: its watermarks.
    """
    busy = {report.stage for report in places.values() if _has_work(report)}
    awake = (placed.level for placed in layout.stages if placed.name in busy or not _is_over(placed, times))
    return min(awake, default=len(layout.tasks) - 1)


def said_before(layout: Layout, places: Places, levels: int) -> Iterator[TaskReport]:
    """What the tasks of the first levels would report, had they been run: what they did, and that nothing happened."""
    for level in range(levels):
        for task in range(layout.tasks[level]):
            stages = tuple(
                _without_news(places[placed.name, shard])
                for shard in layout.range_of(level, task)
                for placed in layout.at(level)
            )
            yield TaskReport(level, task, b"", NO_INPUT, stages)


def _without_news(report: StageReport) -> StageReport:
    """How a stage stands, and nothing of what it did in the micro-batch of the report."""
    local = replace(report.local, seen=NOTHING_SEEN, sketches={}, doubted=NOTHING_DOUBTED)
    return replace(report, local=local, counts=Counts(), kept=NO_STATE)


def _is_over(placed: Placed, times: Times) -> bool:
    every = (times.inputs[placed.name], *(times.outputs[port] for port in placed.ports))
    return min(every) == MAX_TIMESTAMP


def _has_work(report: StageReport) -> bool:
    """Whether something is left, or waits: for time, the clock, a side input, the commit, or the job's end."""
    left = report.leftover or report.restrictions.live or report.uncommitted or report.unprepared
    return report.waits or bool(left)
