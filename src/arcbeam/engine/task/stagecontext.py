"""One stage in one shard, for the length of a micro-batch: what all kinds of stages have around them.

Owns what is counted, and what user code has seen. Must not know kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from arcbeam.engine.grouping.effects import DropHeld, DropLate
from arcbeam.engine.grouping.groupings import Elements
from arcbeam.engine.protocol.layout import Placed
from arcbeam.engine.protocol.microbatchplan import Handover, MicroBatchPlan
from arcbeam.engine.protocol.reports import Restrictions
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.engine.task.bundles import Budget, BundleResult, CallResult, Exchange, Runner
from arcbeam.engine.watermarks.clocks import Clock
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import Timestamp


@dataclass(slots=True)
class RunningCounts:
    """What has been done so far; as `reports.Counts`."""

    read: int = 0
    written: int = 0
    fired: int = 0
    resumed: int = 0
    unparked: int = 0
    late: int = 0
    made: int = 0


@dataclass(slots=True)
class StageContext:
    """What a stage has around it in a shard.

    Attributes:
        placed: the stage.
        shard: the shard's number.
        micro_batch: the micro-batch's number.
        now: the micro-batch's recorded time.
        committed_output: the stage's output watermark, as the head has it: the least of its outputs.
        view: the shard's state.
        clock: the stage's watermarks in the shard.
        runner: its user code.
        exchange: where late data goes.
        budget: how much more may be done.
        tally: what was done.
        abouts: what the restrictions are of that were left in this micro-batch, for people, by the hexadecimal ids.
    """

    placed: Placed
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
    abouts: dict[str, Callable[[], str]] = field(default_factory=dict)

    def record(self, result: CallResult, timers: bool = False) -> None:
        """Takes note of what user code did.

        Args:
            result: that.
            timers: it may set timers; the caller sees to them.

        Raises:
            ValueError: it has set a timer where it may not.
        """
        if result.timers and not timers:
            raise ValueError(
                f"{self.placed.name!r} has set a timer of {result.timers[0].family!r} where it can set none"
            )
        self.tally.written += result.written

    def drop(self, drop: DropLate | DropHeld | Late) -> None:
        """Something came too late."""
        self.tally.late += drop.count if isinstance(drop, DropHeld) else 1
        self.exchange.late(self.placed.name, self.shard, drop)


class StageLogic(Protocol):
    """What a kind of stage does in a shard, in the order of its methods."""

    def begin(self, plan: MicroBatchPlan, moves: Sequence[Handover], upstream: Timestamp) -> None:
        """Before anything else.

        Args:
            plan: of the micro-batch.
            moves: those of the stage from and to this shard.
            upstream: the stage's upstream watermark in this micro-batch: its own when all that comes has come.
        """

    def timely(self, key: bytes, elements: Elements) -> Elements:
        """Of elements that may have to wait for a side input, those that are not too late; the others are dropped."""

    def deliver(self, key: bytes, elements: Elements) -> None:
        """Elements have come; the watermark has not moved yet. What comes too late is dropped."""

    def resume(self) -> bool:
        """What does not wait for a watermark; whether something of that is left that was due."""

    def fire(self, watermark: Timestamp) -> bool:
        """What the watermark and the clock let fire, to the last; whether something of that is left."""

    def next_event(self) -> Timestamp | None:
        """The first moment of event time that something waits for."""

    def next_due(self) -> Timestamp | None:
        """The first moment of processing time that something waits for."""

    def restrictions(self) -> Restrictions:
        """What is not done."""

    def kept(self, closed: BundleResult) -> StateMetrics:
        """By how much more it keeps than before the micro-batch, but for what is parked.

        Args:
            closed: of the end of its bundles.
        """
