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
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp


def packed(report: TaskReport) -> bytes:
    """Return the bytes of a task's report."""
    # Of the idle shards of a stage, by their input watermark.
    idle: dict[tuple[str, Timestamp], list[tuple[int, int]]] = {}
    parts: list[_Part] = []
    for place, of in enumerate(report.stages):
        places = idle.setdefault((of.stage, of.input), []) if of.idle else []
        places.append((place, of.shard))
        if len(places) > 1:
            continue
        parts.append((of.stage, places, of.input, pickle.dumps(replace(of, shard=0, input=MIN_TIMESTAMP), protocol=5)))
    return pickle.dumps((replace(report, stages=()), len(report.stages), parts), protocol=5)


class ReportReader:
    """Reads the reports of all tasks of a job, micro-batch after micro-batch."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[bytes, StageReport]] = {}

    def read(self, data: bytes) -> TaskReport:
        """Return a report; the bytes must come from this job."""
        report, count, parts = pickle.loads(data)
        assert isinstance(report, TaskReport)
        stages: list[Any] = [None] * count
        for part in parts:
            self._put(stages, *part)
        return replace(report, stages=tuple(stages))

    def _put(self, stages: list[Any], stage: str, places: list[tuple[int, int]], input: Timestamp, data: bytes) -> None:
        read: StageReport | None = None
        for place, shard in places:
            known = self._known.get((stage, shard))
            if known is None or known[0] != data:
                read = read or pickle.loads(data)
                known = self._known[stage, shard] = data, replace(read, shard=shard)
            stages[place] = known[1].at(input)


_Part = tuple[str, list[tuple[int, int]], Timestamp, bytes]
"""The name of a stage; the places of reports in the task's, and their shards; their input watermark; the rest."""
