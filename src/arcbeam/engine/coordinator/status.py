"""What shards report that somebody should know who looks after a job.

Owns what is told, and that it is told once. Must not know who is told.
"""

from __future__ import annotations

from collections.abc import Iterator

from arcbeam.engine.coordinator.consistentcut import Places
from arcbeam.engine.protocol.layout import Layout


def news(layout: Layout, places: Places, told: set[tuple[str, str]]) -> Iterator[str]:
    """What has not been told yet of the restrictions of a micro-batch.

    Args:
        layout: of the job; who observes an output on all ways to it need not be told.
        places: the micro-batch's reports.
        told: by stage, what was told already; added to.
    """
    flows = {flow.name: flow for flow in layout.flows}
    for (stage, _), report in places.items():
        for output in report.restrictions.silent:
            if None in flows[stage].ways(output) and _is_new(told, stage, output):
                yield (
                    f"'{stage}' reports no watermark for {output!r}, which stays at the beginning of time until all it "
                    "reads is done: no window behind it ends before that. A watermark estimator lets it move "
                    "(DoFn.WatermarkEstimatorParam), or arcbeam.io.WithWatermark behind it"
                )
        for crowded in report.restrictions.crowded:
            if _is_new(told, stage, crowded.root):
                yield f"'{stage}': {crowded}"


def _is_new(told: set[tuple[str, str]], stage: str, what: str) -> bool:
    before = len(told)
    told.add((stage, what))
    return len(told) > before
