"""What the tasks of a micro-batch are told.

Owns the shape of a plan. Must not know why it is so (`progress`), nor what is made of it (`shard`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from arcbeam.engine.watermarks.stages import Times
from arcbeam.model.script import ScriptEvent
from arcbeam.model.timestamps import Duration, Timestamp


@dataclass(frozen=True, slots=True)
class MicroBatchBudget:
    """What a task may use of each before it leaves the rest for the next micro-batch. It always does something.

    Attributes:
        time: for what can be left: restrictions and timers. What has come by the exchange is always processed.
        elements: put out by restrictions, and timers fired.
        bytes: put out by restrictions.
    """

    time: Duration
    elements: int
    bytes: int

    def scaled(self, factor: float, least: MicroBatchBudget, most: MicroBatchBudget) -> MicroBatchBudget:
        """So many times as much of each, between bounds."""
        return MicroBatchBudget(
            Duration(min(max(round(self.time * factor), least.time), most.time)),
            min(max(round(self.elements * factor), least.elements), most.elements),
            min(max(round(self.bytes * factor), least.bytes), most.bytes),
        )


@dataclass(frozen=True, slots=True)
class Handover:
    """A restriction goes from one shard to another, before anything else happens in the micro-batch.

    Attributes:
        stage: whose it is.
        id: of it.
        source, target: the shards.
        handed: what the target needs; as the source has it at the head.
    """

    stage: str
    id: bytes
    source: int
    target: int
    handed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class MicroBatchPlan:
    """What all tasks of a micro-batch are told.

    Attributes:
        micro_batch: its number: the head's and one.
        attempt: how often it was tried before; what an earlier run says does not count any more.
        time: recorded time: what the clock shows to everything in the micro-batch.
        head: number of the micro-batch that it stands on.
        times: watermarks of the head.
        budget: how much to do.
        beginning: the sources that begin in it: no micro-batch was committed with them.
        drain: truncate all restrictions that were not truncated yet, at first those that wait, later those that come.
        moves: restrictions that change their shard.
        first: the level with which it begins: those before have nothing to do any more, and say nothing new.
        pieces: by stage, into how many parts what a checkpoint leaves is cut, so that all tasks have some; one if a
            stage is not there.
        prepare: nothing is left to do: if nothing comes of this micro-batch either, it is the last.
        preparing: the stages that call `prepare_to_shutdown` in it.
        event: what the job's script says is to happen in this micro-batch; `time` has taken in what it says of the
            clock.
    """

    micro_batch: int
    attempt: int
    time: Timestamp
    head: int
    times: Times
    budget: MicroBatchBudget
    beginning: frozenset[str] = frozenset()
    drain: bool = False
    prepare: bool = False
    preparing: frozenset[str] = frozenset()
    moves: tuple[Handover, ...] = ()
    event: ScriptEvent | None = None
    first: int = 0
    pieces: Mapping[str, int] = field(default_factory=dict)
