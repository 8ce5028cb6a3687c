"""One stage in one shard, during a micro-batch: the context that all kinds of stages share.

Owns the counters, and what user code has seen. Must not know the kinds of stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from arcbeam.engine.grouping.effects import DropCombined, DropHeld, DropLate
from arcbeam.engine.grouping.groupings import Combined, KeyElements
from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.protocol.microbatchplan import Handover, MicroBatchPlan
from arcbeam.engine.protocol.reports import Restrictions, RunningCounts
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.state.residuals import About
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.engine.task.bundles import Budget, BundleResult, CallResult, Exchange, Runner
from arcbeam.engine.watermarks.clocks import Clock
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp


@dataclass(slots=True)
class StageContext:
    """The context of a stage in a shard.

    Attributes:
        placed: the stage.
        shard: the shard's number.
        micro_batch: the micro-batch's number.
        now: the micro-batch's recorded time.
        committed_output: the stage's output watermark at the head: the minimum of its outputs.
        view: the shard's state.
        clock: the stage's watermarks in the shard.
        runner: its user code.
        exchange: the destination of late data.
        budget: the remaining budget.
        tally: the counters.
        late_until: elements that arrive now are late by this watermark; see `engine.watermarks.keyrangewatermarks`.
        abouts: what is known of the restrictions left in this micro-batch, by their hexadecimal ids.
    """

    placed: StagePlacement
    shard: int
    micro_batch: int
    now: Timestamp
    committed_output: Timestamp
    view: StateView
    clock: Clock
    runner: Runner
    exchange: Exchange
    budget: Budget
    tally: RunningCounts = field(default_factory=RunningCounts)
    late_until: Timestamp = MIN_TIMESTAMP
    abouts: dict[str, About] = field(default_factory=dict)

    def record(self, result: CallResult, timers: bool = False) -> None:
        """Record the result of a call of user code.

        Args:
            result: the result.
            timers: the call may set timers; the caller handles them.

        Raises:
            ValueError: it has set a timer where that is not allowed.
        """
        if result.timers and not timers:
            raise ValueError(
                f"{self.placed.name!r} has set a timer of family {result.timers[0].family!r} in a call that may set "
                f"none"
            )
        self.tally.written += result.written

    def drop(self, drop: DropLate | DropHeld | DropCombined | Late) -> None:
        """Record late data, and send it to its destination."""
        self.tally.late += drop.count if isinstance(drop, DropHeld | DropCombined) else 1
        self.exchange.late(self.placed.name, self.shard, drop)


class StageLogic(Protocol):
    """The work of a kind of stage in a shard. The methods are called in this order."""

    def begin(self, plan: MicroBatchPlan, moves: Sequence[Handover], upstream: Timestamp) -> None:
        """Prepare; called before anything else.

        Args:
            plan: the plan of the micro-batch.
            moves: the stage's moves from and to this shard.
            upstream: the stage's upstream watermark in this micro-batch: its input watermark once all elements arrived.
        """

    def timely(self, key: bytes, elements: KeyElements) -> KeyElements:
        """Drop late elements and return the others, before elements may be blocked by a side input."""

    def deliver(self, key: bytes, elements: KeyElements) -> None:
        """Process arrived elements; the watermark has not moved yet. Late ones are dropped."""

    def combined(self, combined: Combined) -> None:
        """Count what arrived accumulators stand for; the watermark has not moved yet. Only groupings get them."""
        raise AssertionError("this stage groups no accumulators")

    def resume(self) -> bool:
        """Do work that does not wait for a watermark; return whether some due work is left."""

    def fire(self, watermark: Timestamp) -> bool:
        """Fire everything that the watermark and the clock allow; return whether some is left."""

    def next_event(self) -> Timestamp | None:
        """Return the first event time that something waits for."""

    def next_due(self) -> Timestamp | None:
        """Return the first processing time that something waits for."""

    def restrictions(self) -> Restrictions:
        """Return the unfinished restrictions."""

    def kept(self, closed: BundleResult) -> StateMetrics:
        """Return the change of its state's size in the micro-batch, without blocked elements.

        Args:
            closed: the result of the end of its bundles.
        """
