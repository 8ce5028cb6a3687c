"""Which restrictions change their shard with the next step.

Owns how what shards report becomes a balance of each stage. Must not know why a step is run: none is run for this.
"""

from __future__ import annotations

import math

from arcbeam.engine.plan.reports import Restrictions, StageReport
from arcbeam.engine.plan.stepplan import Handover
from arcbeam.engine.progress.cut import Places
from arcbeam.engine.state.balancing import Sized, rebalance


def handovers(places: Places) -> tuple[Handover, ...]:
    """What to move so that no shard has much more of a stage's restrictions than its share, by their sizes."""
    stages: dict[str, dict[int, StageReport]] = {}
    for (stage, shard), report in places.items():
        stages.setdefault(stage, {})[shard] = report
    moves: list[Handover] = []
    for stage, reports in stages.items():
        movable = {shard: report.restrictions.movable for shard, report in reports.items()}
        if not any(movable.values()):
            continue
        moves += [
            Handover(stage, move.id, move.source, move.target, handed)
            for move in rebalance(
                {shard: [Sized(each.id, each.size) for each in known] for shard, known in movable.items()},
                fixed={shard: _rest(report.restrictions) for shard, report in reports.items()},
            )
            for handed in (next(each.handed for each in movable[move.source] if each.id == move.id),)
        ]
    return tuple(moves)


def _rest(restrictions: Restrictions) -> float:
    """The size of what is not offered; nothing if some size is no number that can be reckoned with."""
    rest = restrictions.size - sum(each.size for each in restrictions.movable)
    return rest if 0 < rest < math.inf else 0.0
