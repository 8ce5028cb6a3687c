"""How a driver takes a job over: what is in its folder, and what of that fits the pipeline that is to go on with it.

Owns from where a job goes on, its number of shards, the numbers of its stages, whose state goes to another level, and
where outputs begin that they did not have. Must not know what runs its steps.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.plan import Plan
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.steps.placing import ports_of, shape_of
from arcbeam.steps.progress import numbered, progress_of, times_of
from arcbeam.steps.renaming import renamed
from arcbeam.steps.standing import standing_of
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import IncompatibleStateError
from arcbeam.store.log import programs
from arcbeam.store.log.chain import UnreadableHead, read_newest
from arcbeam.store.log.opening import misfit
from arcbeam.store.log.relocating import Move, moves, relocated
from arcbeam.store.log.steplog import StepLog
from arcbeam.store.manifest.programfile import Program
from arcbeam.store.manifest.values import (
    ENDED,
    JobShape,
    Manifest,
    OutputWatermark,
    StageWatermarks,
    differences,
)


@dataclass(frozen=True, slots=True)
class TakeOver:
    """How a job is to be gone on with.

    Attributes:
        savepoint: go on from there, and leave behind what came later; "": from where the job is.
        force: go on though it was drained, or is done.
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
    program: Program | None = None
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

    log: StepLog
    shards: int
    numbers: Mapping[str, int]
    dropped: tuple[str, ...] = ()
    moved: tuple[Move, ...] = ()
    idle: tuple[str, ...] = ()


def take_over(plan: Plan, blobs: DurableBlobs, how: TakeOver, *, shards: int, now: Timestamp, driver: str) -> Taken:
    """Takes a job over, or begins it. One that has ended is opened to finish what was left of its end.

    Args:
        plan: of the pipeline.
        blobs: the job's folder; an empty one begins a new job.
        how: it is gone on with.
        shards: of a new job.
        now: the time.
        driver: who this is, for people.

    Raises:
        IncompatibleStateError: the pipeline does not fit what is there.
        StoreError: see `StepLog.open`.
    """
    newest = read_newest(blobs)
    had = newest.before if isinstance(newest, UnreadableHead) else newest
    shards = how.shards or (had.shape.shards if had is not None else shards)

    shape = shape_of(plan, shards)
    dropped: tuple[str, ...] = ()
    moved: tuple[Move, ...] = ()
    idle: tuple[str, ...] = ()

    publishers = {name for stage in plan.stages for name in stage.publishers}

    def adapted(origin: Manifest) -> Manifest:
        nonlocal dropped, moved, idle
        now_called = renamed(origin, how.renamed, publishers)
        gone, lost = _left(now_called, shape, publishers)
        if how.drop:
            now_called, dropped = _without(now_called, gone, publishers), (*gone.values(), *lost.values())
        elif lost:
            # What state there is without a stage is among the differences.
            raise misfit(blobs, origin, [*differences(now_called.shape, shape), *lost.values()])
        # A job that has ended is only finished, unless it goes on in spite of that.
        goes_on = origin.mode not in ENDED or how.force
        if goes_on and not how.drop:
            _refuse_exchanged_sources(plan, now_called, blobs)
        moved = moves(now_called.shape, shape, progress_of(now_called).numbers)
        fitting = _with_outputs(plan, now_called)
        if goes_on:
            _refuse_what_is_too_late(plan, fitting, blobs)
            known = {of.stage for of in now_called.watermarks}
            idle = tuple(of.stage for of in fitting.watermarks if of.stage not in known)
        return fitting

    def filled(opening: Manifest) -> Manifest:
        # Also of a job that is only finished: it may be gone on with by force, and the opening says where its state is.
        if not moved:
            return opening
        with tempfile.TemporaryDirectory(prefix="arcbeam-moved-") as scratch:
            return relocated(blobs, opening, moved, Path(scratch))

    def kept(epoch: int, before: str) -> str:
        return "" if how.program is None else programs.keep(blobs, how.program, how.files, epoch, before)

    log = StepLog.open(
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


def _left(head: Manifest, shape: JobShape, publishers: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """What belongs to nobody in a pipeline: state, by stage, and what is to be published, by publisher; in a line."""
    stages = {of.stage for of in shape.stages}
    state = {
        of.stage: f"stage '{of.stage}' has state, and the pipeline has no such stage"
        for of in head.shape.stages
        if of.shape and of.stage not in stages
    }
    many = Counter(of.stage for of in head.committables if of.stage not in publishers)
    unpublished = {
        name: f"'{name}' has {number} committable(s) that may not be published, and the pipeline has no such publisher"
        for name, number in many.items()
    }
    return state, unpublished


def _without(head: Manifest, gone: Collection[str], publishers: Collection[str]) -> Manifest:
    """The manifest without the state of some stages, and without what only publishers that are not there could publish.

    SUBTLE: rows of state are known by their stage's number, and stay. So nobody may get that number again, also no
    stage that is called so later: it is kept under a name that none has.
    """
    progress = progress_of(head)
    numbers = {
        f"{stage} (dropped at step {head.step})" if stage in gone else stage: number
        for stage, number in progress.numbers.items()
    }
    return replace(
        head,
        shape=replace(head.shape, stages=tuple(of for of in head.shape.stages if of.stage not in gone)),
        holds=tuple(of for of in head.holds if of.stage not in gone),
        residuals=tuple(of for of in head.residuals if of.stage not in gone),
        committables=tuple(of for of in head.committables if of.stage in publishers),
        progress=replace(progress, numbers=numbers).encoded() if gone else head.progress,
        standing=standing_of(head).without(gone).encoded() if gone and head.standing else head.standing,
    )


def _with_outputs(plan: Plan, head: Manifest) -> Manifest:
    """The manifest with the watermarks of the outputs that the plan's stages have.

    Outputs are called as what travels there, so they come and go with the transforms behind a stage. One that a stage
    did not have begins where the earliest of those was that it had: as far as the stage has said anything to anybody,
    what comes from it there is late. Who reads it now may have read another one, which was further.

    What a stage was told of its input is not taken back, whatever it reads now: see `Times.upstream_of`.

    A stage that the manifest does not know begins at the beginning of time. Where all that it reads has come to the end
    of time, so has it: nothing will ever come to it, and who reads it now may have read that, and be at the end.
    """
    had = {of.stage: of for of in head.watermarks}
    ports = ports_of(plan)
    outputs: dict[Port, Timestamp] = {}
    fitting = []
    for stage in plan.stages:
        source = None if stage.source is None else plan.channels[stage.source]
        read = () if source is None else [outputs[ports[id, source.index]] for id in source.producers]
        is_over = bool(read) and min(read) == MAX_TIMESTAMP
        was, first = had.get(stage.uid), MIN_TIMESTAMP
        if was is None and is_over:
            was, first = StageWatermarks(stage.uid, MAX_TIMESTAMP, MAX_TIMESTAMP, ()), MAX_TIMESTAMP
        known = {of.output: of.watermark for of in was.outputs} if was else {}
        first = min(known.values(), default=first)
        own = tuple(ports[stage.id, index] for index in stage.sinks)
        outputs |= {port: known.get(port.output, first) for port in own}
        if was:
            said = tuple(OutputWatermark(port.output, outputs[port]) for port in own)
            fitting.append(StageWatermarks(stage.uid, was.upstream, was.input, said))
    return replace(head, watermarks=tuple(fitting))


def _refuse_exchanged_sources(plan: Plan, head: Manifest, blobs: DurableBlobs) -> None:
    """A source that the job has not had begins in the next step. Where another one is gone it may be the same under
    another name, and would be read twice.

    Raises:
        IncompatibleStateError: that may be so.
    """
    begun = frozenset(progress_of(head).begun)
    new = sorted(stage.uid for stage in plan.stages if stage.source is None and stage.uid not in begun)
    gone = sorted(begun - {stage.uid for stage in plan.stages})
    if new and gone:
        raise IncompatibleStateError(
            f"the job in '{blobs}' has begun with the source(s) {', '.join(map(repr, gone))}, which the pipeline does "
            f"not have, and without {', '.join(map(repr, new))}",
            "a source that is only called otherwise is given with --stage_mapping=old=new, and not read again; with "
            "--allow_dropped_state new ones begin where others are gone (a Create is a source, too)",
        )


def _refuse_what_is_too_late(plan: Plan, head: Manifest, blobs: DurableBlobs) -> None:
    """What comes to a stage whose input has ended is too late, all of it.

    Raises:
        IncompatibleStateError: a stage is to read more, and its input has ended.
    """
    times = times_of(head)
    ports = ports_of(plan)
    uids = {stage.id: stage.uid for stage in plan.stages}
    for stage in plan.stages:
        if stage.source is None or times.upstream.get(stage.uid) != MAX_TIMESTAMP:
            continue
        for id in plan.channels[stage.source].producers:
            if times.outputs.get(ports[id, stage.source], MIN_TIMESTAMP) < MAX_TIMESTAMP:
                raise IncompatibleStateError(
                    f"in the job in '{blobs}' the input of '{stage.uid}' has ended, and the pipeline has it read "
                    f"'{uids[id]}', too: all of that would be too late",
                    "begin a new job in another folder; or give what is new a way of its own through the pipeline",
                )
