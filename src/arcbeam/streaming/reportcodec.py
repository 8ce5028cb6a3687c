"""Reports of tasks as bytes, and back.

Owns their form between a task and the driver. Must not know how the bytes travel.

Most shards of a large job do nothing in a micro-batch; only their input watermark moves. The driver then uses the rest
of their last report again, without decoding it: that takes a tenth of the time, and makes no garbage.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

from arcbeam.engine.protocol.reports import StageReport, TaskReport
from arcbeam.model.timestamps import MIN_TIMESTAMP


def packed(report: TaskReport) -> bytes:
    """Return the bytes of a task's report."""
    shards = [
        (of.stage, of.shard, of.input, pickle.dumps(replace(of, input=MIN_TIMESTAMP), protocol=5))
        for of in report.stages
    ]
    return pickle.dumps((replace(report, stages=()), shards), protocol=5)


class ReportReader:
    """Reads the reports of all tasks of a job, micro-batch after micro-batch."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[bytes, StageReport]] = {}

    def read(self, data: bytes) -> TaskReport:
        """Return a report; the bytes must come from this job."""
        report, shards = pickle.loads(data)
        assert isinstance(report, TaskReport)
        return replace(report, stages=tuple([self._stage(*each) for each in shards]))

    def _stage(self, stage: str, shard: int, input: Any, data: bytes) -> StageReport:
        known = self._known.get((stage, shard))
        if known is None or known[0] != data:
            known = self._known[stage, shard] = data, pickle.loads(data)
        return known[1].at(input)
