"""Restoring a job: a driver takes over its folder, and adapts its state to the pipeline.

Owns the manifest that a job resumes from, its number of shards, the numbers of its stages, and which state moves to
another level; `compatibility` adapts manifests. Must not know what runs the job's micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from arcbeam.model.plan import Plan
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.claims import work_folder
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.chain import read_manifest, read_newest
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.log.opening import later_micro_batches, misfit
from arcbeam.store.log.relocating import StageMove, moves, relocated
from arcbeam.store.manifest.jobgraphfile import JobGraph
from arcbeam.store.manifest.values import ENDED, Manifest, differences
from arcbeam.streaming.driverstate import numbered, progress_of
from arcbeam.streaming.physicalplan import shape_of
from arcbeam.streaming.restore.compatibility import (
    left,
    refuse_another_pipeline,
    refuse_exchanged_sources,
    refuse_other_shards,
    refuse_renamed_writers,
    refuse_side_inputs_of_the_past,
    refuse_what_is_too_late,
    relabelled,
    with_outputs,
    with_side_inputs,
    without,
)
from arcbeam.streaming.restore.relabelling import Relabelling
from arcbeam.streaming.restore.rescaling import rescaled, resumed_from
from arcbeam.streaming.restore.stagemapping import renamed, stages_of


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """How to restore a job.

    Attributes:
        savepoint: the savepoint to resume from; later micro-batches are discarded, which `discard` has to allow. Empty:
            resume from the newest micro-batch.
        force: resume also a job that is drained or done. Without it, a job that has ended accepts only its own
            pipeline.
        renamed: renamed stages: new names, by the job's names.
        shards: the number of shards from now; None: that of the state that is resumed.
        job_graph: the job graph that runs the job from now, stored in its folder; None: unchanged.
        files: the local files that the job graph names, by name.
        drop: drop state and committables for which the pipeline has no stage.
        discard: resume from a savepoint also if that discards committed micro-batches.
    """

    savepoint: str = ""
    force: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    shards: int | None = None
    job_graph: JobGraph | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    drop: bool = False
    discard: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """A job that was taken over.

    Attributes:
        log: this driver's commit log of the job.
        shards: the number of shards of each level.
        numbers: the numbers of the pipeline's stages.
        dropped: what was dropped, one line each.
        moved: the stages whose state was moved to another level.
        rescaled_from: the former number of shards; None: it has not changed.
        idle: new stages that receive nothing, because all their inputs have ended.
        discarded: how many committed micro-batches after the savepoint were discarded.
        relabelled: new labels, by old ones, of transforms that were recognized although their labels changed.
    """

    log: CommitLog
    shards: int
    numbers: Mapping[str, int]
    dropped: tuple[str, ...] = ()
    moved: tuple[StageMove, ...] = ()
    rescaled_from: int | None = None
    idle: tuple[str, ...] = ()
    discarded: int = 0
    relabelled: Mapping[str, str] = field(default_factory=dict)

    def warnings(self, how: RestoreOptions) -> Iterator[str]:
        """Yield, for people: what was discarded or recognized under another label, and which stages do nothing."""
        if self.discarded:
            yield f"went back to savepoint '{how.savepoint}': {self.discarded} later micro-batch(es) are discarded"
        for lost in self.dropped:
            yield f"discarded because of --allow_dropped_state: {lost}"
        for stage in self.idle:
            yield (
                f"stage '{stage}' is new, but all its inputs have ended, so it receives no elements. (A source that "
                f"was renamed is read from its beginning.)"
            )
        for old, new in self.relabelled.items():
            yield f"'{old}' is resumed as '{new}': only random parts of the labels differ"


def restore(plan: Plan, blobs: DurableBlobs, how: RestoreOptions, *, shards: int, now: Timestamp, driver: str) -> Taken:
    """Take over a job, or begin it.

    The last micro-batch of a job that has ended may be unpublished. A driver with the same pipeline publishes it, and
    writes nothing into the folder: its log then has the job's own head.

    Args:
        plan: the plan of the pipeline.
        blobs: the job's folder; an empty one begins a new job.
        how: how to restore the job.
        shards: the number of shards of a new job.
        now: the time.
        driver: this driver's name, for people.

    Raises:
        IncompatibleStateError: the pipeline does not fit the job; or the job has ended, and ran another one.
        StoreError: see `CommitLog.open`.
    """
    resumed = resumed_from(blobs, how.savepoint)
    shards = how.shards or (shards if resumed is None else resumed.shape.shards)
    shape = shape_of(plan, shards)
    rescaled_from: int | None = None
    dropped: tuple[str, ...] = ()
    moved: tuple[StageMove, ...] = ()
    idle: tuple[str, ...] = ()

    labels = Relabelling()
    publishers = {name for stage in plan.stages for name in stage.publishers}

    def adapted(origin: Manifest) -> Manifest:
        nonlocal dropped, moved, idle, rescaled_from, labels
        # A user who discards state may have changed a label to that end.
        labels = Relabelling() if how.drop else relabelled(origin, how.job_graph, how.renamed, blobs)
        names = {**labels.renamed(stages_of(origin)), **how.renamed}
        refuse_renamed_writers(origin, names, blobs)
        mapped = renamed(origin, names, publishers)
        # A job that has ended is only finished, unless it is forced to continue.
        continues = origin.mode not in ENDED or how.force
        if not continues:
            transforms = {**labels.transforms, **how.renamed}
            refuse_another_pipeline(mapped, shape, how.job_graph, transforms, blobs)
            refuse_other_shards(mapped, how.shards, blobs)
        mapped = with_side_inputs(mapped, shape, blobs)
        removed, lost = left(mapped, shape, publishers)
        if how.drop:
            mapped, dropped = without(mapped, removed, publishers), (*removed.values(), *lost.values())
        elif lost or (removed and labels.unclear):
            # State without a stage is among the differences.
            unclear = [f"labels with random parts: {labels.unclear}"] if labels.unclear else []
            raise misfit(blobs, origin, [*differences(mapped.shape, shape), *lost.values(), *unclear])
        if continues and not how.drop:
            refuse_exchanged_sources(plan, mapped, blobs)
        moved = moves(mapped.shape, shape, progress_of(mapped).numbers) if continues else ()
        fitting = with_outputs(plan, mapped)
        if continues:
            refuse_what_is_too_late(plan, fitting, blobs)
            refuse_side_inputs_of_the_past(plan, mapped, fitting, blobs)
            known = {of.stage for of in mapped.watermarks}
            idle = tuple(of.stage for of in fitting.watermarks if of.stage not in known)
        rescaled_from = origin.shape.shards if continues and origin.shape.shards != shards else None
        return replace(fitting, shape=replace(fitting.shape, shards=shards))

    def filled(opening: Manifest) -> Manifest:
        if not moved and rescaled_from is None:
            return opening
        with work_folder("moved") as scratch:
            opening = relocated(blobs, opening, moved, scratch)
            return opening if rescaled_from is None else rescaled(blobs, opening, rescaled_from, scratch)

    def kept(epoch: int, before: str) -> str:
        return "" if how.job_graph is None else jobgraphs.keep(blobs, how.job_graph, how.files, epoch, before)

    newest = read_newest(blobs) if how.savepoint else None

    def later(opened: Manifest) -> int:
        pin = opened.pin(how.savepoint)
        if newest is None or pin is None:
            return 0
        origin = read_manifest(blobs, pin.micro_batch)
        # A driver that ran until now may have committed more.
        return later_micro_batches(newest, origin) + opened.micro_batch - 1 - newest.micro_batch

    log = CommitLog.open(
        blobs,
        shape,
        now,
        driver=driver,
        savepoint=how.savepoint,
        force=how.force,
        discard=how.discard,
        finish=True,
        job_graph=kept,
        adapt=adapted,
        fill=filled,
    )
    numbers = numbered(log.head, [stage.uid for stage in plan.stages])
    return Taken(log, shards, numbers, dropped, moved, rescaled_from, idle, later(log.head), labels.labels)
