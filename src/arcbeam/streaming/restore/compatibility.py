"""What of a manifest a changed pipeline goes on with, and what of that pipeline it cannot have.

Owns what is left out, named otherwise or added, so that the manifest fits; and the refusals. Nothing is written here.
Must not know how a job is taken over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.fingerprint import changes
from arcbeam.model.plan import Plan
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import IncompatibleStateError
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.jobname import job_in
from arcbeam.store.manifest.jobgraphfile import JobGraph
from arcbeam.store.manifest.values import JobShape, Manifest, OutputWatermark, StageShape, StageWatermarks
from arcbeam.streaming.driverstate import Progress, progress_of, times_of
from arcbeam.streaming.physicalplan import ports_of, side_number, side_ports, without_sides
from arcbeam.streaming.status.snapshot import standing_of

_SHOWN = 8
"""So many differences of a pipeline are in an error."""
_VERSIONS = ("python", "beam")
"""What the bytes of code depend on, beside what its author wrote."""


def left(head: Manifest, shape: JobShape, publishers: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
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


def without(head: Manifest, gone: Collection[str], publishers: Collection[str]) -> Manifest:
    """The manifest without the state of some stages, and without what publishers that are not there could publish."""
    progress = _retired(progress_of(head), gone, head.micro_batch)
    return replace(
        head,
        shape=replace(head.shape, stages=tuple(of for of in head.shape.stages if of.stage not in gone)),
        holds=tuple(of for of in head.holds if of.stage not in gone),
        residuals=tuple(of for of in head.residuals if of.stage not in gone),
        committables=tuple(of for of in head.committables if of.stage in publishers),
        progress=progress.encoded() if gone else head.progress,
        standing=standing_of(head).without(gone).encoded() if gone and head.standing else head.standing,
    )


def with_side_inputs(head: Manifest, shape: JobShape, blobs: DurableBlobs) -> Manifest:
    """The manifest, in which stages have the side inputs that they are to have, where nothing waits for another one.

    A stage with side inputs has state for what waits for them, and what waits knows them by who writes them. If nothing
    does, they may come and go, and so may a stage that has no other state. Those of restrictions that are not done may
    only go: one that comes would be read before it is there. Where no shard has a file, no stage has state.

    Raises:
        IncompatibleStateError: a stage is to have others, and cannot yet.
    """
    if not any(shard.files for shard in head.shards):
        return replace(head, shape=replace(head.shape, stages=()))
    wanted = {of.stage: of.shape for of in shape.stages}
    standing = {of.name: of for of in standing_of(head).stages}
    fitting: list[StageShape] = []
    gone: list[str] = []
    wrong: list[str] = []
    for of in head.shape.stages:
        base, sides = without_sides(of.shape)
        stands, new = standing.get(of.stage), wanted.get(of.stage)
        if of.shape and stands is not None and stands.kept is not None and new != of.shape:
            new_base, new_sides = without_sides(new or "")
            parked = stands.kept.parked
            is_free = bool(sides) and _is_plain(base) and not stands.live and not parked
            if new is None and is_free:
                gone.append(of.stage)
                continue
            if new is not None and parked and (base == new_base or not new):
                wrong.append(
                    f"stage '{of.stage}' has other side inputs now, and {parked} element(s) wait for those it had"
                )
            elif new is not None and base == new_base and stands.live and new_sides - sides:
                wrong.append(
                    f"stage '{of.stage}' has more side inputs, and {stands.live} restriction(s) are not done in it, "
                    f"which would read those before they are there"
                )
            elif new is not None and (is_free or base == new_base):
                of = replace(of, shape=new)
        fitting.append(of)
    if wrong:
        raise IncompatibleStateError(
            f"the state in '{blobs}' (micro-batch {head.micro_batch}) does not fit this pipeline:\n"
            + "\n".join(f"  - {line}" for line in wrong),
            "run the job with the side inputs that it had until nothing waits any more (`arcbeam status` says what "
            "does), and change them then; or have another DoFn, with a name of its own, read the new ones",
        )
    progress = progress_of(head)
    return replace(
        head,
        shape=replace(head.shape, stages=tuple(fitting)),
        progress=_retired(progress, gone, head.micro_batch).encoded() if gone else head.progress,
    )


def _retired(progress: Progress, gone: Collection[str], micro_batch: int) -> Progress:
    """Numbers that nobody gets any more.

    SUBTLE: rows of state are known by their stage's number, and stay. So nobody may get that number again, also no
    stage that is called so later: it is kept under a name that none has.
    """
    numbers = {
        f"{stage} (dropped at micro-batch {micro_batch})" if stage in gone else stage: number
        for stage, number in progress.numbers.items()
    }
    return replace(progress, numbers=numbers)


def _is_plain(base: str) -> bool:
    """Whether a stage keeps nothing but what waits: its shape is how that is encoded, and in which windows."""
    return base.count("; ") == 1


def with_outputs(plan: Plan, head: Manifest) -> Manifest:
    """The manifest with the watermarks of the outputs that the plan's stages have, and what those of them have put out
    that are side inputs.

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
    # What nobody writes any more would be there twice for who writes it again later, from the beginning.
    sides = set(map(side_number, side_ports(plan)))
    return replace(
        head,
        watermarks=tuple(fitting),
        side_files=tuple(file for file in head.side_files if file.channel in sides),
    )


def refuse_another_pipeline(
    head: Manifest, shape: JobShape, program: JobGraph | None, renamed: Mapping[str, str], blobs: DurableBlobs
) -> None:
    """A job that has ended runs nothing, so a submission of another pipeline would succeed without having run.

    Args:
        head: of the job, by the names that the pipeline has.
        shape: what the pipeline asks of the state.
        program: what was submitted; None: that is unknown, and stages are compared.
        renamed: new names, by those that the job's program has.
        blobs: the job's folder.

    Raises:
        IncompatibleStateError: the pipeline is another one.
    """
    had = jobgraphs.readable(blobs, head.program)
    if program is not None and had is not None and had.transforms:
        same = all(had.versions.get(each) == program.versions.get(each) for each in _VERSIONS)
        differing = list(changes(had.transforms, program.transforms, renamed, compares_code=same))
    else:
        before, now = ({of.stage for of in each.stages} for each in (head.shape, shape))
        differing = [f"stage '{name}' is {'missing' if name in before else 'new'}" for name in sorted(before ^ now)]
    if not differing:
        return
    more = [f"and {len(differing) - _SHOWN} more"] if len(differing) > _SHOWN else []
    raise IncompatibleStateError(
        f"{job_in(blobs, head)} is {head.mode} (micro-batch {head.micro_batch}), and the pipeline is "
        "not the one that it ran:\n"
        + "\n".join(f"  - {line}" for line in [*differing[:_SHOWN], *more])
        + "\nNothing was run, and the folder is unchanged",
        "give this pipeline a folder of its own with --checkpoint_dir; or, to continue the ended job with this "
        "pipeline and the state that it left, add --force_resume",
    )


def refuse_other_shards(head: Manifest, shards: int | None, blobs: DurableBlobs) -> None:
    """Keys are distributed by the number of shards, so it is fixed when a job begins.

    Raises:
        IncompatibleStateError: another number is requested.
    """
    if shards not in (None, head.shape.shards):
        raise IncompatibleStateError(
            f"{job_in(blobs, head)} has {head.shape.shards} shards, and --shards={shards} requests another number: it "
            "is fixed when a job begins",
            f"leave out --shards, or give --shards={head.shape.shards}; the number of tasks that run concurrently "
            "follows from the cluster; for more shards begin a new job with another --checkpoint_dir",
        )


def refuse_exchanged_sources(plan: Plan, head: Manifest, blobs: DurableBlobs) -> None:
    """A source that the job has not had begins in the next micro-batch. Where another one is gone it may be the same
    under another name, and would be read twice.

    Raises:
        IncompatibleStateError: that may be so.
    """
    begun = frozenset(progress_of(head).begun)
    new = sorted(stage.uid for stage in plan.stages if stage.source is None and stage.uid not in begun)
    gone = sorted(begun - {stage.uid for stage in plan.stages})
    if new and gone:
        raise IncompatibleStateError(
            f"{job_in(blobs, head)} has begun with the source(s) {', '.join(map(repr, gone))}, which the pipeline does "
            f"not have, and without {', '.join(map(repr, new))}",
            "a source that is only called otherwise is given with --stage_mapping=old=new, and not read again; with "
            "--allow_dropped_state new ones begin where others are gone (a Create is a source, too)",
        )


def refuse_what_is_too_late(plan: Plan, head: Manifest, blobs: DurableBlobs) -> None:
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
                    f"in {job_in(blobs, head)} the input of '{stage.uid}' has ended, and the pipeline has it read "
                    f"'{uids[id]}', too: all of that would be too late",
                    "begin a new job in another folder; or give what is new a way of its own through the pipeline",
                )


def refuse_side_inputs_of_the_past(plan: Plan, head: Manifest, fitting: Manifest, blobs: DurableBlobs) -> None:
    """Of what has been put out there is only what was a side input then.

    Raises:
        IncompatibleStateError: a side input would be empty for ever.
    """
    had = {Port(of.stage, out.output) for of in head.watermarks for out in of.outputs}
    ended = {port for port, time in times_of(fitting).outputs.items() if time == MAX_TIMESTAMP}
    for port in sorted(side_ports(plan) & ended - had):
        raise IncompatibleStateError(
            f"in {job_in(blobs, head)} the input of stage '{port.stage}' has ended, and its {port.output!r} was no "
            f"side input then, as the pipeline has it now: what was put out is not there any more, and it would be "
            "empty",
            "give the source another name: then it is read again, for that side input (with --allow_dropped_state, if "
            "the old one goes)",
        )


def refuse_renamed_writers(head: Manifest, names: Mapping[str, str], blobs: DurableBlobs) -> None:
    """What is in a side input is known by the name of who writes it.

    Raises:
        IncompatibleStateError: one that has written something would be called otherwise.
    """
    there = {file.channel for file in head.side_files}
    writers = {
        of.stage for of in head.watermarks for out in of.outputs if side_number(Port(of.stage, out.output)) in there
    }
    for writer in sorted(writers):
        if any(new != old and (writer == old or writer.startswith(f"{old}/")) for old, new in names.items()):
            raise IncompatibleStateError(
                f"in {job_in(blobs, head)} stage '{writer}' has written a side input, which is known by its name: it "
                f"cannot be called otherwise",
                "leave it its name; or leave out the mapping and give --allow_dropped_state: then the source begins "
                "anew under its new name, and what the old one has written is given up",
            )
