"""Times and elements of the tasks of a micro-batch, by stage: whether the work is spread evenly.

Owns the record. Only that of one micro-batch is kept, in a file of its own outside of any commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from arcbeam.engine.protocol.layout import Layout
from arcbeam.model.rows import BundleReport

SHOWN: Final = 5
"""The slowest tasks of a stage that the record names."""


def task_record(micro_batch: int, now: int, reports: Sequence[BundleReport], layout: Layout) -> dict[str, Any]:
    """Return the record of a micro-batch.

    Args:
        micro_batch: its number.
        now: the time, in microseconds since 1970.
        reports: of its tasks.
        layout: of the job.

    Returns:
        JSON values: `micro_batch`, `time`, and `stages`: for each stage `tasks` (their number), `seconds` and
        `elements` (least, median and greatest of its tasks), and `slowest`: `task`, `shards` (first and last),
        `seconds`, `elements` and `worker`, and `spark_stage`: the id of Spark's stage that ran them, or None. A task
        runs all stages of its level, and its time is that of all.
    """
    levels = {placed.name: placed.level for placed in layout.stages}
    by_stage: dict[str, list[BundleReport]] = {}
    for report in reports:
        if report.stage in levels:
            by_stage.setdefault(report.stage, []).append(report)
    stages = {stage: _stage(of, layout, levels[stage]) for stage, of in by_stage.items()}
    return {"micro_batch": micro_batch, "time": now, "stages": stages}


def _stage(reports: Sequence[BundleReport], layout: Layout, level: int) -> Mapping[str, Any]:
    slowest = sorted(reports, key=lambda report: (-report.seconds, report.shard))[:SHOWN]
    return {
        "tasks": len(reports),
        "seconds": [round(each, 3) for each in _spread([report.seconds for report in reports])],
        "elements": _spread([report.elements_in for report in reports]),
        "spark_stage": max((report.spark_stage for report in reports if report.spark_stage is not None), default=None),
        "slowest": [
            {
                "task": report.shard,
                "shards": [(shards := layout.range_of(level, report.shard))[0], shards[-1]],
                "seconds": round(report.seconds, 3),
                "elements": report.elements_in,
                "worker": report.worker,
            }
            for report in slowest
        ],
    }


def _spread(values: Sequence[float]) -> list[float]:
    return [min(values), median(values), max(values)]
