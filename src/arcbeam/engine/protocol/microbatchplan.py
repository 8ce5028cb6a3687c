"""The plan of a micro-batch: what the driver sends to its tasks.

Owns the shape of a plan. Must not know why a plan is as it is (`coordinator`), nor how a task runs it (`task`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.script import ScriptEvent
from arcbeam.model.timestamps import Duration, Timestamp


@dataclass(frozen=True, slots=True)
class MicroBatchBudget:
    """The limits of a task in a micro-batch; it leaves the rest for the next one. A task always does some work.

    Attributes:
        time: for work that can be left over: restrictions and timers. Elements from the exchange are always processed.
        elements: the number of elements from restrictions plus the number of timers fired.
        bytes: the size of elements from restrictions.
    """

    time: Duration
    elements: int
    bytes: int

    def scaled(self, factor: float, least: MicroBatchBudget, most: MicroBatchBudget) -> MicroBatchBudget:
        """Return the budget with each part multiplied, between bounds."""
        return MicroBatchBudget(
            Duration(min(max(round(self.time * factor), least.time), most.time)),
            min(max(round(self.elements * factor), least.elements), most.elements),
            min(max(round(self.bytes * factor), least.bytes), most.bytes),
        )


@dataclass(frozen=True, slots=True)
class Handover:
    """A restriction moves from one shard to another, before anything else happens in the micro-batch.

    Attributes:
        stage: its stage.
        id: its id.
        source, target: the shards.
        handed: what the target needs, as the source has it at the head.
    """

    stage: str
    id: bytes
    source: int
    target: int
    handed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class MicroBatchPlan:
    """The plan that all tasks of a micro-batch receive.

    Attributes:
        micro_batch: its number: the head's plus 1.
        attempt: how many runs of it have failed. Reports of earlier runs are ignored.
        time: its recorded time: the processing time that everything in the micro-batch sees.
        head: the number of the micro-batch whose state it continues.
        times: the watermarks of the head.
        budget: the limits of each task.
        beginning: the sources that begin in it, because no micro-batch with them is committed.
        drain: truncate all restrictions not truncated yet: first those that wait, then those that arrive.
        moves: restrictions that change their shard.
        first: the level with which it begins: those before are idle and report nothing new.
        pieces: by stage, into how many parts a checkpoint's residual is cut, so that all tasks have work; a stage that
            is missing has 1.
        prepare: no work is left: unless this micro-batch makes new work, it is the last.
        preparing: the stages that call `prepare_to_shutdown` in it.
        event: the script's event that happens in this micro-batch; `time` includes its change of the clock.
    """

    micro_batch: int
    attempt: int
    time: Timestamp
    head: int
    times: WatermarkTimes
    budget: MicroBatchBudget
    beginning: frozenset[str] = frozenset()
    drain: bool = False
    prepare: bool = False
    preparing: frozenset[str] = frozenset()
    moves: tuple[Handover, ...] = ()
    event: ScriptEvent | None = None
    first: int = 0
    pieces: Mapping[str, int] = field(default_factory=dict)
