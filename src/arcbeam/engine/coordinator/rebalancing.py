"""Move restrictions to other shards and cut them, so that every task has some.

Owns how each stage is balanced, from the reports of its shards. Must not know why a micro-batch runs: none runs for
this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from arcbeam.engine.coordinator.consistentcut import ShardReports
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.microbatchplan import Handover
from arcbeam.engine.protocol.reports import Restrictions, StageReport
from arcbeam.engine.state.balancing import MovableRestriction, limit_of, rebalance


def handovers(layout: Layout, places: ShardReports) -> tuple[Handover, ...]:
    """Return the moves after which no task has much more than its share of a stage's restrictions, by their sizes.

    The balance is between tasks, not shards: a task runs its restrictions one after the other, in whichever shard.
    """
    moves: list[Handover] = []
    for stage, reports in _by_stage(places).items():
        if not any(report.restrictions.movable for report in reports.values()):
            continue
        level = next(placed.level for placed in layout.stages if placed.name == stage)
        ranges = [layout.range_of(level, task) for task in range(layout.tasks[level])]
        if _is_balanced(ranges, reports):
            continue
        movable = {(shard, each.id): each for shard, report in reports.items() for each in report.restrictions.movable}
        sources = {id: shard for shard, id in movable}
        loads = {shard: report.restrictions.live for shard, report in reports.items()}
        owners = {shard: task for task, owned in enumerate(ranges) for shard in owned}
        offered: dict[int, list[MovableRestriction]] = {task: [] for task in range(len(ranges))}
        for (shard, _), each in movable.items():
            offered[owners[shard]].append(MovableRestriction(each.id, each.size))
        for move in rebalance(
            offered,
            fixed={
                task: sum(_rest(reports[shard].restrictions) for shard in owned) for task, owned in enumerate(ranges)
            },
        ):
            source, target = sources[move.id], min(ranges[move.target], key=lambda shard: (loads[shard], shard))
            loads[target] += 1
            moves.append(Handover(stage, move.id, source, target, movable[source, move.id].handed))
    return tuple(moves)


def pieces(layout: Layout, places: ShardReports) -> dict[str, int]:
    """Return, for each stage with less ready work than tasks, into how many parts a checkpoint cuts a restriction. The
    parts are enough for each task, and fewer than for twice as many.
    """
    wanted: dict[str, int] = {}
    for stage, reports in _by_stage(places).items():
        ready = sum(report.restrictions.ready for report in reports.values())
        tasks = next(layout.tasks[placed.level] for placed in layout.stages if placed.name == stage)
        if 0 < ready < tasks:
            wanted[stage] = -(-tasks // ready)
    return wanted


def _by_stage(places: ShardReports) -> Mapping[str, Mapping[int, StageReport]]:
    stages: dict[str, dict[int, StageReport]] = {}
    for (stage, shard), report in places.items():
        stages.setdefault(stage, {})[shard] = report
    return stages


def _is_balanced(ranges: Sequence[range], reports: Mapping[int, StageReport]) -> bool:
    """Return whether no task is known to have too much: usually. Then no lists are made."""
    loads: list[float] = []
    for owned in ranges:
        load = 0.0
        for restrictions in (reports[shard].restrictions for shard in owned):
            sizes = [each.size for each in restrictions.movable]
            if sizes and not (min(sizes) > 0 and sum(sizes) < math.inf):
                return False
            load += _rest(restrictions) + sum(sizes)
        loads.append(load)
    return max(loads) <= limit_of(loads)


def _rest(restrictions: Restrictions) -> float:
    """Return the size of the restrictions that were not offered; 0 if a size is not a finite number."""
    rest = restrictions.size - sum(each.size for each in restrictions.movable)
    return rest if 0 < rest < math.inf else 0.0
