"""What the tasks of a micro-batch are given: the engine's plan, and what the head has of state and side inputs.

Owns the value. Must not know who carries it to tasks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.model.files import Shard, SideFile
from arcbeam.store.manifest.values import Abandoned, Manifest, Opening, ShardVersion


@dataclass(frozen=True, slots=True)
class TaskAssignment:
    """A micro-batch to be run.

    Attributes:
        plan: what all tasks are told.
        epoch: of the driver; the names of files have it.
        job: the store's id.
        abandoned: micro-batches that do not count, below the head.
        openings: that led to the head; see `Manifest`.
        shards: the head's state, by level and shard, ascending.
        side_files: the head's side inputs.
    """

    plan: MicroBatchPlan
    epoch: int
    job: str
    abandoned: tuple[Abandoned, ...] = ()
    openings: tuple[Opening, ...] = ()
    shards: tuple[Shard, ...] = ()
    side_files: tuple[SideFile, ...] = ()

    def version(self, level: int, shard: int) -> ShardVersion:
        """What a task needs to know to have a shard as it is at the head."""
        files = next((of.files for of in self.shards if (of.level, of.shard) == (level, shard)), ())
        return ShardVersion(self.job, level, shard, self.plan.head, self.abandoned, self.openings, files)

    def of_level(self, level: int, stages: Collection[str], sides: Collection[int]) -> TaskAssignment:
        """The same with what the tasks of a level need.

        Args:
            level: of whose shards the state is.
            stages: of the level.
            sides: the numbers of the side inputs that its stages read.
        """
        return replace(
            self,
            plan=replace(self.plan, moves=tuple(move for move in self.plan.moves if move.stage in stages)),
            shards=tuple(of for of in self.shards if of.level == level),
            side_files=tuple(file for file in self.side_files if file.channel in sides),
        )


def ordered(plan: MicroBatchPlan, head: Manifest, epoch: int) -> TaskAssignment:
    """The order of a micro-batch that stands on the head.

    Raises:
        ValueError: it stands on another micro-batch.
    """
    if plan.head != head.micro_batch:
        raise ValueError(
            f"micro-batch {plan.micro_batch} stands on micro-batch {plan.head}, and the head is "
            f"micro-batch {head.micro_batch}"
        )
    return TaskAssignment(plan, epoch, head.job, head.abandoned, head.openings, head.shards, head.side_files)
