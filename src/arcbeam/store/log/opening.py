"""The content of a driver's first manifest: the state of the newest one, of a savepoint, or of a new job.

Owns the decision, and all reasons to refuse. Must not know how the manifest is committed (`commitlog`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from arcbeam.console.commandlines import command_line
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import IncompatibleStateError, JobEndedError, LaterMicroBatchesError, StoreError
from arcbeam.store.log.chain import UnreadableHead, known, read_manifest
from arcbeam.store.log.jobname import DISCARD, NOTHING_LEFT, job_in, resume_command
from arcbeam.store.manifest.values import (
    ENDED,
    KEPT_OPENINGS,
    Abandoned,
    JobShape,
    Manifest,
    ManifestKind,
    Opening,
    differences,
)


@dataclass(frozen=True, slots=True)
class OpeningArguments:
    """The arguments of a driver that opens a job; as in `CommitLog.open`."""

    shape: JobShape
    now: Timestamp
    savepoint: str = ""
    force: bool = False
    job_graph: str = ""
    adapt: Callable[[Manifest], Manifest] = lambda origin: origin
    discard: bool = False


def opening(
    blobs: DurableBlobs, newest: Manifest | UnreadableHead | None, requested: OpeningArguments, epoch: int, token: str
) -> Manifest:
    """Return the opening that follows the newest manifest.

    An unreadable newest manifest can be followed, because its micro-batch is decided; but only from a savepoint.

    Raises:
        IncompatibleStateError: the state does not fit the pipeline.
        JobEndedError: the job has ended, and is not forced to resume.
        LaterMicroBatchesError: there are micro-batches after the savepoint, and they must not be discarded.
        StoreError: there is no such savepoint, or a needed manifest cannot be read.
    """
    if newest is None:
        if requested.savepoint:
            raise no_savepoint(blobs, requested.savepoint, None)
        return _first(requested, epoch, token)
    if isinstance(newest, UnreadableHead) and not requested.savepoint:
        raise newest.error
    head = known(newest)
    origin = head
    if requested.savepoint:
        pin = head.pin(requested.savepoint)
        if pin is None:
            raise no_savepoint(blobs, requested.savepoint, head)
        if pin.micro_batch != head.micro_batch:
            origin = read_manifest(blobs, pin.micro_batch)
        if not requested.discard and (lost := later_micro_batches(newest, origin)):
            raise _discarding(blobs, newest, requested.savepoint, lost)
    was, origin = origin, requested.adapt(origin)
    if origin.mode in ENDED and not requested.force:
        raise JobEndedError(
            f"{job_in(blobs, origin)} has ended ({origin.mode}, micro-batch {origin.micro_batch}): "
            f"there is nothing to resume: {NOTHING_LEFT}",
            "begin a new job in another folder; or resume from an earlier savepoint; or, to resume it nevertheless "
            "(its end was a mistake, or the pipeline has more to do), give --force_resume",
        )
    origin = _fitting(blobs, origin, requested)
    abandoned = origin.abandoned
    if was is not newest:
        abandoned += (Abandoned(origin.micro_batch + 1, newest.micro_batch, origin.committed),)
    return replace(
        held(origin, newest, Timestamp(max(requested.now, head.time)), epoch, token),
        job=head.job,
        mode=origin.mode if origin.mode == CommitMode.DRAINING else CommitMode.RUNNING,
        pins=head.pins,
        abandoned=abandoned,
        job_graph=requested.job_graph or origin.job_graph,
    )


def ended(
    blobs: DurableBlobs, newest: Manifest | UnreadableHead | None, requested: OpeningArguments
) -> Manifest | None:
    """Return the head of an ended job, for a driver that only publishes what the head has; nothing is written.

    Returns:
        None: there is more to do: the job has not ended, or is resumed by force or from a savepoint.

    Raises:
        IncompatibleStateError: the state does not fit the pipeline.
    """
    if not isinstance(newest, Manifest) or newest.mode not in ENDED or requested.force or requested.savepoint:
        return None
    return _fitting(blobs, requested.adapt(newest), requested)


def _fitting(blobs: DurableBlobs, origin: Manifest, requested: OpeningArguments) -> Manifest:
    """Return the manifest with the pipeline's shape.

    Raises:
        IncompatibleStateError: the state does not fit it.
    """
    wrong = differences(origin.shape, requested.shape)
    if wrong:
        raise misfit(blobs, origin, wrong)
    stages = {of.stage for of in requested.shape.stages}
    return replace(
        origin, shape=requested.shape, watermarks=tuple(of for of in origin.watermarks if of.stage in stages)
    )


def misfit(blobs: DurableBlobs, origin: Manifest, wrong: Sequence[str]) -> IncompatibleStateError:
    """Return the error for state that does not fit a pipeline; one line for each difference."""
    return IncompatibleStateError(
        f"the state in '{blobs}' (micro-batch {origin.micro_batch}) does not fit this pipeline:\n"
        + "\n".join(f"  - {line}" for line in wrong),
        "resume with a pipeline that has the same stateful stages (--stage_mapping for renamed ones), or begin a new "
        "job in another folder; to discard the state of a stage, rename or remove it, and pass --allow_dropped_state",
    )


def held(origin: Manifest, newest: Manifest | UnreadableHead, now: Timestamp, epoch: int, token: str) -> Manifest:
    """Return an opening after the newest manifest with the unchanged content of another one."""
    micro_batch = newest.micro_batch + 1
    return replace(
        origin,
        micro_batch=micro_batch,
        epoch=epoch,
        token=token,
        parent=newest.token if isinstance(newest, Manifest) else "",
        kind=ManifestKind.OPENING,
        time=Timestamp(max(now, origin.time)),
        attempts_digest=b"",
        openings=(*origin.openings, Opening(micro_batch, token))[-KEPT_OPENINGS:],
    )


def later_micro_batches(newest: Manifest | UnreadableHead, origin: Manifest) -> int:
    """Return how many committed micro-batches a job discards if it goes back to a savepoint.

    Those that it has discarded before do not count. It may have discarded the savepoint's own, too: then those since it
    went back count.
    """
    head = known(newest)
    before = (each.committed for each in head.abandoned if each.first <= origin.micro_batch <= each.last)
    return newest.micro_batch - head.micro_batch + head.committed - next(before, origin.committed)


def _discarding(
    blobs: DurableBlobs, newest: Manifest | UnreadableHead, savepoint: str, lost: int
) -> LaterMicroBatchesError:
    head = known(newest)
    continues = isinstance(newest, Manifest) and newest.mode not in ENDED
    what = f"{lost} later micro-batch" + ("" if lost == 1 else "es")
    resume = resume_command(str(blobs), bool(head.job_graph))
    return LaterMicroBatchesError(
        f"to resume {job_in(blobs, head)} from savepoint '{savepoint}' would discard {what}, which "
        f"{'is' if lost == 1 else 'are'} committed",
        f"to go back nevertheless, give {DISCARD}; "
        + (f"to continue where the job stopped: {resume}; " if continues else "")
        + "to run the savepoint as a job of its own, copy it: "
        + command_line("savepoints", str(blobs), "copy", savepoint, "TARGET"),
    )


def choice_of(savepoints: Iterable[str]) -> str:
    """Return what to do about the name of a savepoint that does not exist.

    Args:
        savepoints: the names of those that exist.
    """
    existing = ", ".join(savepoints)
    return f"give one of these: {existing}" if existing else "the job has no savepoint; omit the name"


def no_savepoint(blobs: DurableBlobs, name: str, head: Manifest | None) -> StoreError:
    """Return the error for a missing savepoint; `head` has the existing ones."""
    remedy = (
        choice_of(pin.name for pin in head.pins)
        if head
        else (
            f"there is no job in the folder. A path that ends with savepoints/{name} is the path of a savepoint: if "
            "it is a job's folder, give it another name"
        )
    )
    return StoreError(f"there is no savepoint '{name}' in '{blobs}'", remedy)


def _first(requested: OpeningArguments, epoch: int, token: str) -> Manifest:
    return Manifest(
        job=token,
        micro_batch=0,
        epoch=epoch,
        token=token,
        parent="",
        kind=ManifestKind.OPENING,
        mode=CommitMode.RUNNING,
        time=requested.now,
        attempts_digest=b"",
        shape=requested.shape,
        watermarks=(),
        shards=(),
        side_files=(),
        holds=(),
        residuals=(),
        committables=(),
        progress=b"",
        pins=(),
        abandoned=(),
        openings=(Opening(0, token),),
        job_graph=requested.job_graph,
    )
