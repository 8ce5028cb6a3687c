"""What is real, and what may become so: values of the machine.

Owns their shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

from arcbeam.engine.coordinator.commands import Propose
from arcbeam.engine.coordinator.consistentcut import Places
from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import Times, Watermarks
from arcbeam.model.timestamps import Duration, Timestamp


@dataclass(frozen=True, slots=True)
class Head:
    """The newest commit: its micro-batch, recorded time and watermarks."""

    micro_batch: int
    time: Timestamp
    times: Times


@dataclass(frozen=True, slots=True)
class Cut:
    """A micro-batch that has run, and is consistent.

    Attributes:
        plan: of the micro-batch.
        reports: of its tasks.
        digest: of all its attempts.
        places: the reports by stage and shard.
        marks: the watermarks that follow from them.
        took: how long it was.
        prompt: nothing it did had to wait for the clock.
    """

    plan: MicroBatchPlan
    reports: tuple[TaskReport, ...]
    digest: bytes
    places: Places
    marks: Watermarks
    took: Duration
    prompt: bool

    @property
    def times(self) -> Times:
        """Where the watermarks are."""
        return self.marks.times()

    @property
    def side(self) -> frozenset[Port]:
        """The side inputs that it has added to."""
        return frozenset(port for report in self.reports for port in report.published)


@dataclass(frozen=True, slots=True)
class Proposal:
    """What is to become real; without `cut` it is a commit without a micro-batch."""

    command: Propose
    cut: Cut | None
