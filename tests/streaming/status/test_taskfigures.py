"""Figures of tasks: their spread, and the slowest ones with their shards."""

from __future__ import annotations

import pytest

from arcbeam.model.rows import BundleReport
from arcbeam.streaming.status.taskfigures import SHOWN, task_record
from tests.streaming.jobs import LAYOUT

pytestmark = pytest.mark.contract("PAGE-12")


def report(task: int, seconds: float, elements: int, stage: str = "join") -> BundleReport:
    return BundleReport(stage, task, worker=f"host:{task}", seconds=seconds, elements_in=elements)


def test_spread_and_slowest_tasks() -> None:
    reports = [report(0, 0.1, 10), report(1, 0.9004, 500), report(0, 2, 3, "read"), report(0, 1, 1, "unknown")]
    record = task_record(7, 5, reports, LAYOUT)
    assert (record["micro_batch"], record["time"], set(record["stages"])) == (7, 5, {"join", "read"})
    join = record["stages"]["join"]
    assert (join["tasks"], join["seconds"], join["elements"]) == (2, [0.1, 0.5, 0.9], [10, 255, 500])
    assert join["slowest"] == [
        {"task": 1, "shards": [1, 1], "seconds": 0.9, "elements": 500, "worker": "host:1"},
        {"task": 0, "shards": [0, 0], "seconds": 0.1, "elements": 10, "worker": "host:0"},
    ]
    assert record["stages"]["read"]["slowest"][0]["shards"] == [0, 1]


def test_record_does_not_grow_with_tasks() -> None:
    record = task_record(7, 5, [report(n % 2, n / 7, n) for n in range(1000)], LAYOUT)
    assert len(record["stages"]["join"]["slowest"]) == SHOWN
