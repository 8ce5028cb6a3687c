"""Warnings from the reports of shards, for the operator of a job.

Owns the warnings, and that each is issued once. Must not know where they are shown.
"""

from __future__ import annotations

from collections.abc import Iterator

from arcbeam.engine.coordinator.consistentcut import ShardReports
from arcbeam.engine.protocol.layout import Layout


def news(layout: Layout, places: ShardReports, reported: set[tuple[str, str]]) -> Iterator[str]:
    """Yield new warnings about the restrictions of a micro-batch.

    Args:
        layout: the layout of the job. An output that is observed on all paths to it causes no warning.
        places: the micro-batch's reports.
        reported: the warnings issued so far, by stage; new ones are added.
    """
    flows = {flow.name: flow for flow in layout.flows}
    for (stage, _), report in places.items():
        for output in report.restrictions.silent:
            if None in flows[stage].paths(output) and _is_new(reported, stage, output):
                yield (
                    f"'{stage}' reports no watermark for {output!r}, which stays at the beginning of time until all "
                    f"its "
                    "input is processed: no window downstream ends before that. To advance it, use a watermark "
                    "estimator (DoFn.WatermarkEstimatorParam), or arcbeam.io.WithWatermark on its output"
                )
        for crowded in report.restrictions.crowded:
            if _is_new(reported, stage, crowded.root):
                yield f"'{stage}': {crowded}"


def _is_new(reported: set[tuple[str, str]], stage: str, what: str) -> bool:
    before = len(reported)
    reported.add((stage, what))
    return len(reported) > before
