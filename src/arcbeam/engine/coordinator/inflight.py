"""Values of the machine: the newest commit, and what may be committed next.

Owns their shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

from arcbeam.engine.coordinator.commands import Propose
from arcbeam.engine.coordinator.consistentcut import ShardReports
from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import Watermarks, WatermarkTimes
from arcbeam.model.timestamps import Duration, Timestamp


@dataclass(frozen=True, slots=True)
class Head:
    """The newest commit: its micro-batch, recorded time and watermarks."""

    micro_batch: int
    time: Timestamp
    times: WatermarkTimes


@dataclass(frozen=True, slots=True)
class Cut:
    """A micro-batch that has run and is consistent.

    Attributes:
        plan: the plan of the micro-batch.
        reports: the reports of its tasks.
        digest: the digest of all its attempts.
        places: the reports by stage and shard.
        marks: the watermarks that follow from them.
        took: its duration.
        prompt: nothing in it had to wait for the clock.
    """

    plan: MicroBatchPlan
    reports: tuple[TaskReport, ...]
    digest: bytes
    places: ShardReports
    marks: Watermarks
    took: Duration
    prompt: bool

    @property
    def times(self) -> WatermarkTimes:
        """The watermarks after the micro-batch."""
        return self.marks.times()

    @property
    def side(self) -> frozenset[Port]:
        """The side inputs that it has added to."""
        return frozenset(port for report in self.reports for port in report.published)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed commit; without `cut` it has no micro-batch."""

    command: Propose
    cut: Cut | None
