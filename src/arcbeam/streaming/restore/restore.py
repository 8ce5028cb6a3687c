"""How a driver takes a job over: what is in its folder, and what of that fits the pipeline that is to go on with it.

Owns from where a job goes on, its number of shards, the numbers of its stages, and whose state goes to another level;
what of a manifest fits is in `fitting`. Must not know what runs its micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from arcbeam.model.plan import Plan
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.claims import work_folder
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.chain import UnreadableHead, read_newest
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.log.opening import misfit
from arcbeam.store.log.relocating import Move, moves, relocated
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
    with_outputs,
    with_side_inputs,
    without,
)
from arcbeam.streaming.restore.stagemapping import renamed


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """How a job is to be gone on with.

    Attributes:
        savepoint: go on from there, and leave behind what came later; "": from where the job is.
        force: go on though it was drained, or is done; without it, a job that has ended accepts only its own pipeline.
        renamed: stages that are called otherwise now: new names, by those that the job knows.
        shards: that it must have; None: those that it has.
        program: what runs it from here on, to be kept in its folder; None: as before.
        files: the local files that the program names, by name.
        drop: what belongs to no stage of the pipeline any more, of state and of what is to be published, is given up.
    """

    savepoint: str = ""
    force: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    shards: int | None = None
    program: JobGraph | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    drop: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """A job that was taken over.

    Attributes:
        log: this driver's hold on it.
        shards: of each level.
        numbers: of the pipeline's stages.
        dropped: what was given up, each in a line.
        moved: the stages whose state was put to another level.
        idle: the stages that are new, and to which nothing comes: all that they read has ended.
    """

    log: CommitLog
    shards: int
    numbers: Mapping[str, int]
    dropped: tuple[str, ...] = ()
    moved: tuple[Move, ...] = ()
    idle: tuple[str, ...] = ()


def restore(plan: Plan, blobs: DurableBlobs, how: RestoreOptions, *, shards: int, now: Timestamp, driver: str) -> Taken:
    """Takes a job over, or begins it.

    Of a job that has ended, the last micro-batch may not be published yet. A driver with the same pipeline does that
    and writes nothing into the folder: the log that it gets has the job's own head.

    Args:
        plan: of the pipeline.
        blobs: the job's folder; an empty one begins a new job.
        how: it is gone on with.
        shards: of a new job.
        now: the time.
        driver: who this is, for people.

    Raises:
        IncompatibleStateError: the pipeline does not fit what is there; or the job has ended, and ran another one.
        StoreError: see `CommitLog.open`.
    """
    newest = read_newest(blobs)
    had = newest.before if isinstance(newest, UnreadableHead) else newest
    if had is not None:
        refuse_other_shards(had, how.shards, blobs)
    shards = how.shards or (had.shape.shards if had is not None else shards)

    shape = shape_of(plan, shards)
    dropped: tuple[str, ...] = ()
    moved: tuple[Move, ...] = ()
    idle: tuple[str, ...] = ()

    publishers = {name for stage in plan.stages for name in stage.publishers}

    def adapted(origin: Manifest) -> Manifest:
        nonlocal dropped, moved, idle
        refuse_renamed_writers(origin, how.renamed, blobs)
        now_called = renamed(origin, how.renamed, publishers)
        # A job that has ended is only finished, unless it goes on in spite of that.
        goes_on = origin.mode not in ENDED or how.force
        if not goes_on:
            refuse_another_pipeline(now_called, shape, how.program, how.renamed, blobs)
        now_called = with_side_inputs(now_called, shape, blobs)
        gone, lost = left(now_called, shape, publishers)
        if how.drop:
            now_called, dropped = without(now_called, gone, publishers), (*gone.values(), *lost.values())
        elif lost:
            # What state there is without a stage is among the differences.
            raise misfit(blobs, origin, [*differences(now_called.shape, shape), *lost.values()])
        if goes_on and not how.drop:
            refuse_exchanged_sources(plan, now_called, blobs)
        moved = moves(now_called.shape, shape, progress_of(now_called).numbers) if goes_on else ()
        fitting = with_outputs(plan, now_called)
        if goes_on:
            refuse_what_is_too_late(plan, fitting, blobs)
            refuse_side_inputs_of_the_past(plan, now_called, fitting, blobs)
            known = {of.stage for of in now_called.watermarks}
            idle = tuple(of.stage for of in fitting.watermarks if of.stage not in known)
        return fitting

    def filled(opening: Manifest) -> Manifest:
        if not moved:
            return opening
        with work_folder("moved") as scratch:
            return relocated(blobs, opening, moved, scratch)

    def kept(epoch: int, before: str) -> str:
        return "" if how.program is None else jobgraphs.keep(blobs, how.program, how.files, epoch, before)

    log = CommitLog.open(
        blobs,
        shape,
        now,
        driver=driver,
        savepoint=how.savepoint,
        force=how.force,
        finish=True,
        program=kept,
        adapt=adapted,
        fill=filled,
    )
    return Taken(log, shards, numbered(log.head, [stage.uid for stage in plan.stages]), dropped, moved, idle)
