"""A small job for tests of micro-batches: two sources, and a stage that reads one of them and has the other as a side
input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from arcbeam.engine.coordinator import Propose
from arcbeam.engine.protocol.layout import Layout, StagePlacement
from arcbeam.engine.protocol.microbatchplan import MicroBatchBudget, MicroBatchPlan
from arcbeam.engine.protocol.reports import StageReport, TaskReport
from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port
from arcbeam.engine.watermarks.stages import StageFlow, WatermarkTimes
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.manifest.values import JobShape, StageShape

READ, RATES, JOIN = Port("read", "main"), Port("rates", "main"), Port("join", "main")
LAYOUT = Layout(
    (
        StagePlacement(StageFlow("read", (), ("main",), 2), 1, 0),
        StagePlacement(StageFlow("rates", (), ("main",), 2), 2, 0),
        StagePlacement(StageFlow("join", (READ,), ("main",), 2), 3, 1, (("rates", RATES),)),
    ),
    shards=2,
    tasks=(1, 2),
)
_SHAPE = JobShape("plan", 2, tuple(StageShape(placed.name, placed.level, "") for placed in LAYOUT.stages))
READERS = {7: ("join",)}


def opened(blobs: DurableBlobs, now: int = 0, **options: Any) -> CommitLog:
    """A driver's commit log of the job."""
    return CommitLog.open(blobs, _SHAPE, Timestamp(now), **options)


def times(at: int) -> WatermarkTimes:
    """All watermarks at one time."""
    return WatermarkTimes(
        {name: Timestamp(at) for name in ("read", "rates", "join")},
        {port: Timestamp(at) for port in (READ, RATES, JOIN)},
        {"read": MAX_TIMESTAMP, "rates": MAX_TIMESTAMP, "join": Timestamp(at)},
    )


def plan(micro_batch: int = 1, head: int = 0, **changes: Any) -> MicroBatchPlan:
    """A micro-batch's plan."""
    return MicroBatchPlan(
        micro_batch, 0, Timestamp(5), head, times(MIN_TIMESTAMP), MicroBatchBudget(Duration(1), 1, 1), **changes
    )


def staged(stage: str, shard: int, at: int, **changes: Any) -> StageReport:
    """The report of a stage in a shard, at a watermark."""
    return StageReport(stage, shard, Timestamp(at), Local(None, {"main": OutputTime()}), **changes)


def proposal(micro_batch: int, at: int, *reports: TaskReport, **changes: Any) -> Propose:
    """A proposal, with all watermarks at one time."""
    return replace(
        Propose(micro_batch, Timestamp(micro_batch), CommitMode.RUNNING, times(at), b"cut", reports), **changes
    )


def reported(*stages: StageReport, level: int = 1, task: int = 0, **changes: Any) -> TaskReport:
    """The report of a task."""
    token = b"%d.%d" % (level, task)
    return replace(TaskReport(level, task, token, b"", stages), **changes)
