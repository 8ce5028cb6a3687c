"""The assignment of a micro-batch to its tasks: the engine's plan, and the head's state and side inputs.

Owns the value. Must not know how tasks receive it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.model.files import Shard, SideFile
from arcbeam.pickling import QuickPickle
from arcbeam.store.manifest.values import Abandoned, Manifest, Opening, ShardVersion

_level: Final = attrgetter("level")
_place: Final = attrgetter("level", "shard")


@dataclass(frozen=True, slots=True)
class SampleOrder(QuickPickle):
    """A request for samples that a micro-batch carries out.

    Attributes:
        request: its id.
        stage: the uid of the stage.
    """

    request: str
    stage: str


@dataclass(frozen=True, slots=True)
class TaskAssignment(QuickPickle):
    """A micro-batch to be run.

    Attributes:
        plan: the engine's plan.
        epoch: the epoch of the driver, which is part of the names of files.
        job: the store's id of the job.
        abandoned: abandoned micro-batches below the head.
        openings: the openings that led to the head; see `Manifest`.
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
        """Return what a task needs to read a shard's state at the head."""
        at = bisect_left(self.shards, (level, shard), key=_place)
        known = self.shards[at : at + 1]
        files = known[0].files if known and _place(known[0]) == (level, shard) else ()
        return ShardVersion(self.job, level, shard, self.plan.head, self.abandoned, self.openings, files)

    def of_level(self, level: int, stages: Collection[str], sides: Collection[int]) -> TaskAssignment:
        """Return the part of the assignment that the tasks of a level need.

        Args:
            level: the level of the shards.
            stages: the stages of the level.
            sides: the numbers of the side inputs that its stages read.
        """
        return replace(
            self,
            plan=replace(self.plan, moves=tuple(move for move in self.plan.moves if move.stage in stages)),
            shards=self.shards[
                bisect_left(self.shards, level, key=_level) : bisect_right(self.shards, level, key=_level)
            ],
            side_files=tuple(file for file in self.side_files if file.channel in sides),
        )


def ordered(plan: MicroBatchPlan, head: Manifest, epoch: int) -> TaskAssignment:
    """Return the assignment of a micro-batch that follows the head.

    Raises:
        ValueError: it follows another micro-batch.
    """
    if plan.head != head.micro_batch:
        raise ValueError(
            f"micro-batch {plan.micro_batch} follows micro-batch {plan.head}, but the head is "
            f"micro-batch {head.micro_batch}"
        )
    return TaskAssignment(plan, epoch, head.job, head.abandoned, head.openings, head.shards, head.side_files)
