"""The compatibility of a manifest with a changed pipeline: how the manifest is adapted, and what is refused.

Owns what is dropped, renamed or added so that the manifest fits; and the refusals. It writes nothing. Must not know how
a job is taken over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.fingerprint import changes, with_names
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
from arcbeam.streaming.restore.relabelling import Relabelling, has_random_labels, relabelling
from arcbeam.streaming.status.snapshot import snapshot_of

_SHOWN = 8
"""The maximum of differences between pipelines in an error."""
_VERSIONS = ("python", "beam")
"""Versions that change the bytes of code, besides the author's changes."""


def left(head: Manifest, shape: JobShape, publishers: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return what the pipeline has no owner for, each with a description: state, by stage; committables, by
    publisher.
    """
    stages = {of.stage for of in shape.stages}
    state = {
        of.stage: f"stage '{of.stage}' has state, but the pipeline has no stage of that name"
        for of in head.shape.stages
        if of.shape and of.stage not in stages
    }
    many = Counter(of.stage for of in head.committables if of.stage not in publishers)
    unpublished = {
        name: f"'{name}' has {number} perhaps unpublished committable(s), but the pipeline has no such publisher"
        for name, number in many.items()
    }
    return state, unpublished


def without(head: Manifest, removed: Collection[str], publishers: Collection[str]) -> Manifest:
    """Return the manifest without the state of some stages, and without committables of publishers that do not
    exist.
    """
    progress = _retired(progress_of(head), removed, head.micro_batch)
    return replace(
        head,
        shape=replace(head.shape, stages=tuple(of for of in head.shape.stages if of.stage not in removed)),
        holds=tuple(of for of in head.holds if of.stage not in removed),
        residuals=tuple(of for of in head.residuals if of.stage not in removed),
        committables=tuple(of for of in head.committables if of.stage in publishers),
        progress=progress.encoded() if removed else head.progress,
        snapshot=snapshot_of(head).without(removed).encoded() if removed and head.snapshot else head.snapshot,
    )


def with_side_inputs(head: Manifest, shape: JobShape, blobs: DurableBlobs) -> Manifest:
    """Return the manifest with the pipeline's side inputs for stages in which nothing waits for another one.

    A stage with side inputs has state for blocked elements, and these identify a side input by its writer. If nothing
    is blocked, side inputs may be added and removed, and a stage without other state may be removed. If restrictions
    are not done, side inputs may only be removed: an added one would be read before it exists. If no shard has a file,
    no stage has state.

    Raises:
        IncompatibleStateError: a stage has other side inputs, and cannot change them yet.
    """
    if not any(shard.files for shard in head.shards):
        return replace(head, shape=replace(head.shape, stages=()))
    wanted = {of.stage: of.shape for of in shape.stages}
    snapshot = {of.name: of for of in snapshot_of(head).stages}
    fitting: list[StageShape] = []
    removed: list[str] = []
    wrong: list[str] = []
    for of in head.shape.stages:
        base, sides = without_sides(of.shape)
        stands, new = snapshot.get(of.stage), wanted.get(of.stage)
        if of.shape and stands is not None and new != of.shape:
            new_base, new_sides = without_sides(new or "")
            blocked = stands.kept.blocked
            is_free = bool(sides) and _is_plain(base) and not stands.live and not blocked
            if new is None and is_free:
                removed.append(of.stage)
                continue
            if new is not None and blocked and (base == new_base or not new):
                wrong.append(
                    f"stage '{of.stage}' has other side inputs now, but {blocked} element(s) wait for the previous ones"
                )
            elif new is not None and base == new_base and stands.live and new_sides - sides:
                wrong.append(
                    f"stage '{of.stage}' has more side inputs now, but {stands.live} of its restriction(s) are not "
                    f"done "
                    f"and would read the new ones before they exist"
                )
            elif new is not None and (is_free or base == new_base):
                of = replace(of, shape=new)
        fitting.append(of)
    if wrong:
        raise IncompatibleStateError(
            f"the state in '{blobs}' (micro-batch {head.micro_batch}) does not fit this pipeline:\n"
            + "\n".join(f"  - {line}" for line in wrong),
            "run the job with its previous side inputs until nothing waits (its status shows what waits), and "
            "change them then; or read the new ones in another DoFn with a new name",
        )
    progress = progress_of(head)
    return replace(
        head,
        shape=replace(head.shape, stages=tuple(fitting)),
        progress=_retired(progress, removed, head.micro_batch).encoded() if removed else head.progress,
    )


def _retired(progress: Progress, removed: Collection[str], micro_batch: int) -> Progress:
    """Return the progress with the numbers of some stages retired.

    SUBTLE: rows of state contain their stage's number, and stay. So no stage may ever receive that number again, not
    even a later stage of the same name. The number is kept under a name that no stage has.
    """
    numbers = {
        f"{stage} (dropped at micro-batch {micro_batch})" if stage in removed else stage: number
        for stage, number in progress.numbers.items()
    }
    return replace(progress, numbers=numbers)


def _is_plain(base: str) -> bool:
    """Return whether a stage only stores blocked elements: its shape is their encoding and their windows."""
    return base.count("; ") == 1


def with_outputs(plan: Plan, head: Manifest) -> Manifest:
    """Return the manifest with the watermarks of the outputs of the plan's stages, and with the files of those outputs
    that are side inputs.

    An output is named after its collection, so outputs come and go with the transforms downstream of a stage. A new
    output begins at the earliest watermark of the stage's previous outputs: the stage has reported that time, and
    earlier elements from it are late. A stage that reads it now may have read another one, which was later.

    The upstream watermark that a stage has received never decreases, whatever it reads now: see `Times.upstream_of`.

    A stage that the manifest does not have begins at the beginning of time. If all its inputs are at the end of time,
    so is the stage: nothing can reach it, and a stage that reads it now may have read its inputs, and be at the end.
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
            watermarks = tuple(OutputWatermark(port.output, outputs[port]) for port in own)
            fitting.append(StageWatermarks(stage.uid, was.upstream, was.input, watermarks))
    # Without a writer, files are dropped: a later writer begins again, and its output would be there twice.
    sides = set(map(side_number, side_ports(plan)))
    return replace(
        head,
        watermarks=tuple(fitting),
        side_files=tuple(file for file in head.side_files if file.channel in sides),
    )


def refuse_another_pipeline(
    head: Manifest, shape: JobShape, job_graph: JobGraph | None, renamed: Mapping[str, str], blobs: DurableBlobs
) -> None:
    """Refuse another pipeline for a job that has ended: it runs nothing, so the submission would succeed without a run.

    Args:
        head: the head of the job, with the names of the pipeline.
        shape: what the pipeline requires of the state.
        job_graph: the submitted job graph; None: it is unknown, and stages are compared.
        renamed: the new names, by those of the job's job graph.
        blobs: the job's folder.

    Raises:
        IncompatibleStateError: the pipeline is another one.
    """
    had = jobgraphs.readable(blobs, head.job_graph)
    if job_graph is not None and had is not None and had.transforms:
        same = _have_same_versions(had, job_graph)
        differing = list(changes(had.transforms, job_graph.transforms, renamed, compares_code=same))
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


def _have_same_versions(had: JobGraph, job_graph: JobGraph) -> bool:
    return all(had.versions.get(each) == job_graph.versions.get(each) for each in _VERSIONS)


def relabelled(
    head: Manifest, job_graph: JobGraph | None, renamed: Mapping[str, str], blobs: DurableBlobs
) -> Relabelling:
    """Return which transforms of the pipeline are those of the job under labels with other random parts.

    Args:
        head: the manifest that the job resumes from.
        job_graph: the submitted job graph; None: it is unknown, and nothing is matched.
        renamed: the new names that the user gave, by those of the job's job graph.
        blobs: the job's folder.
    """
    if job_graph is None or not has_random_labels(job_graph.transforms):
        return Relabelling()
    had = jobgraphs.readable(blobs, head.job_graph)
    if had is None or not _have_same_versions(had, job_graph):
        return Relabelling()  # without the same versions, it is unknown whether the code is the same
    return relabelling(with_names(had.transforms, renamed), job_graph.transforms)


def refuse_other_shards(head: Manifest, shards: int | None, blobs: DurableBlobs) -> None:
    """Refuse another number of shards for a job that has ended: it runs nothing.

    Raises:
        IncompatibleStateError: another number is requested.
    """
    if shards not in (None, head.shape.shards):
        raise IncompatibleStateError(
            f"{job_in(blobs, head)} is {head.mode} and has {head.shape.shards} shards; --shards={shards} requests "
            f"another number",
            f"omit --shards, or pass --shards={head.shape.shards}; or, to continue the ended job with another number, "
            "add --force_resume",
        )


def refuse_exchanged_sources(plan: Plan, head: Manifest, blobs: DurableBlobs) -> None:
    """Refuse a new source if another one was removed. A new source begins in the next micro-batch. It may be the
    removed one under another name, and would be read twice.

    Raises:
        IncompatibleStateError: this is possible.
    """
    begun = frozenset(progress_of(head).begun)
    new = sorted(stage.uid for stage in plan.stages if stage.source is None and stage.uid not in begun)
    removed = sorted(begun - {stage.uid for stage in plan.stages})
    if new and removed:
        raise IncompatibleStateError(
            f"{job_in(blobs, head)} has begun with the source(s) {', '.join(map(repr, removed))}, which the pipeline "
            f"does not have, and without {', '.join(map(repr, new))}",
            "if a source was only renamed, pass --stage_mapping=old=new, and it is not read again; with "
            "--allow_dropped_state the new sources begin in place of the removed ones (a Create is a source, too)",
        )


def refuse_what_is_too_late(plan: Plan, head: Manifest, blobs: DurableBlobs) -> None:
    """Refuse new input for a stage whose input has ended: all of it would be late.

    Raises:
        IncompatibleStateError: a stage would read more, but its input has ended.
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
                    f"in {job_in(blobs, head)} the input of '{stage.uid}' has ended, but in this pipeline it also "
                    f"reads "
                    f"'{uids[id]}': all of that would be late",
                    "begin a new job in another folder; or process the new input in separate transforms",
                )


def refuse_side_inputs_of_the_past(plan: Plan, head: Manifest, fitting: Manifest, blobs: DurableBlobs) -> None:
    """Refuse a side input from an output that has ended: earlier output was only stored if it was a side input then.

    Raises:
        IncompatibleStateError: a side input would be empty forever.
    """
    had = {Port(of.stage, out.output) for of in head.watermarks for out in of.outputs}
    ended = {port for port, time in times_of(fitting).outputs.items() if time == MAX_TIMESTAMP}
    for port in sorted(side_ports(plan) & ended - had):
        raise IncompatibleStateError(
            f"in {job_in(blobs, head)} the input of stage '{port.stage}' has ended. Its {port.output!r} is a side "
            f"input in this pipeline, but was not one before: its output was not stored, and the side input would be "
            "empty",
            "rename the source: then it is read again for that side input (with --allow_dropped_state, if the old "
            "one is removed)",
        )


def refuse_renamed_writers(head: Manifest, names: Mapping[str, str], blobs: DurableBlobs) -> None:
    """Refuse to rename a stage that has written a side input: the content is identified by the writer's name.

    Raises:
        IncompatibleStateError: such a stage would be renamed.
    """
    there = {file.channel for file in head.side_files}
    writers = {
        of.stage for of in head.watermarks for out in of.outputs if side_number(Port(of.stage, out.output)) in there
    }
    for writer in sorted(writers):
        if any(new != old and (writer == old or writer.startswith(f"{old}/")) for old, new in names.items()):
            raise IncompatibleStateError(
                f"in {job_in(blobs, head)} stage '{writer}' has written a side input, which is identified by the "
                f"stage's name: it cannot be renamed",
                "keep its name; or omit the mapping and pass --allow_dropped_state: then the source begins again under "
                "its new name, and the side input of the old one is dropped",
            )
