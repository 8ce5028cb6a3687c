"""What a driver's first manifest holds: the newest one's state, or a savepoint's, or nothing yet.

Owns the decision, and every reason to refuse. Must not know how the manifest becomes real (`steplog`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import IncompatibleStateError, JobEndedError, StoreError
from arcbeam.store.log.chain import UnreadableHead, known, read_manifest
from arcbeam.store.log.jobname import job_in
from arcbeam.store.manifest.values import (
    ENDED,
    KEPT_OPENINGS,
    Abandoned,
    JobShape,
    Kind,
    Manifest,
    Opening,
    differences,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a driver wants to open; as in `CommitLog.open`."""

    shape: JobShape
    now: Timestamp
    savepoint: str = ""
    force: bool = False
    program: str = ""
    adapt: Callable[[Manifest], Manifest] = lambda origin: origin


def opening(
    blobs: DurableBlobs, newest: Manifest | UnreadableHead | None, asked: Asked, epoch: int, token: str
) -> Manifest:
    """The opening that follows the newest manifest.

    One that cannot be read is followed like any other, because its micro-batch is decided; but only from a savepoint.

    Raises:
        IncompatibleStateError: the state does not fit the pipeline.
        JobEndedError: the job has ended, and is not to go on all the same.
        StoreError: there is no such savepoint; a manifest that is needed cannot be read.
    """
    if newest is None:
        if asked.savepoint:
            raise no_savepoint(blobs, asked.savepoint, None)
        return _first(asked, epoch, token)
    if isinstance(newest, UnreadableHead) and not asked.savepoint:
        raise newest.error
    head = known(newest)
    origin = head
    if asked.savepoint:
        pin = head.pin(asked.savepoint)
        if pin is None:
            raise no_savepoint(blobs, asked.savepoint, head)
        if pin.micro_batch != head.micro_batch:
            origin = read_manifest(blobs, pin.micro_batch)
    was, origin = origin, asked.adapt(origin)
    if origin.mode in ENDED and not asked.force:
        raise JobEndedError(
            f"{job_in(blobs, origin)} has ended ({origin.mode}, micro-batch {origin.micro_batch}): "
            "there is nothing to go on with. "
            "Its sources are at their end, so nothing more is read; all its windows and timers have fired, so whatever "
            "came now would be late",
            "begin a new job in another folder; or go back to a savepoint from before; or, if you want it to go on all "
            "the same (its end was not meant, the pipeline has more to do), give --force_resume",
        )
    origin = _fitting(blobs, origin, asked)
    abandoned = origin.abandoned
    if was is not newest:
        abandoned += (Abandoned(origin.micro_batch + 1, newest.micro_batch),)
    return replace(
        held(origin, newest, Timestamp(max(asked.now, head.time)), epoch, token),
        job=head.job,
        mode=origin.mode if origin.mode == CommitMode.DRAINING else CommitMode.RUNNING,
        pins=head.pins,
        abandoned=abandoned,
        program=asked.program or origin.program,
    )


def ended(blobs: DurableBlobs, newest: Manifest | UnreadableHead | None, asked: Asked) -> Manifest | None:
    """The head of a job that has ended, as a driver uses that only publishes what the head has; nothing is written.

    Returns:
        None: there is more to do, for the job has not ended, is to go on by force, or from a savepoint.

    Raises:
        IncompatibleStateError: the state does not fit the pipeline.
    """
    if not isinstance(newest, Manifest) or newest.mode not in ENDED or asked.force or asked.savepoint:
        return None
    return _fitting(blobs, asked.adapt(newest), asked)


def _fitting(blobs: DurableBlobs, origin: Manifest, asked: Asked) -> Manifest:
    """The manifest with the pipeline's shape.

    Raises:
        IncompatibleStateError: the state does not fit that.
    """
    wrong = differences(origin.shape, asked.shape)
    if wrong:
        raise misfit(blobs, origin, wrong)
    stages = {of.stage for of in asked.shape.stages}
    return replace(origin, shape=asked.shape, watermarks=tuple(of for of in origin.watermarks if of.stage in stages))


def misfit(blobs: DurableBlobs, origin: Manifest, wrong: Sequence[str]) -> IncompatibleStateError:
    """The error for what does not fit a pipeline, each in a line."""
    return IncompatibleStateError(
        f"the state in '{blobs}' (micro-batch {origin.micro_batch}) does not fit this pipeline:\n"
        + "\n".join(f"  - {line}" for line in wrong),
        "resume with a pipeline that has the same stateful stages (--stage_mapping, if they are called otherwise), or "
        "begin a new job in another folder; with --allow_dropped_state what belongs to no stage is given up",
    )


def held(origin: Manifest, newest: Manifest | UnreadableHead, now: Timestamp, epoch: int, token: str) -> Manifest:
    """An opening behind the newest manifest that holds what another one holds, and changes nothing of it."""
    micro_batch = newest.micro_batch + 1
    return replace(
        origin,
        micro_batch=micro_batch,
        epoch=epoch,
        token=token,
        parent=newest.token if isinstance(newest, Manifest) else "",
        kind=Kind.OPENING,
        time=Timestamp(max(now, origin.time)),
        cut=b"",
        openings=(*origin.openings, Opening(micro_batch, token))[-KEPT_OPENINGS:],
    )


def no_savepoint(blobs: DurableBlobs, name: str, head: Manifest | None) -> StoreError:
    """The error for a savepoint that there is not; `head` has those that there are."""
    remedy = (
        f"there are: {', '.join(pin.name for pin in head.pins) or 'none'}"
        if head
        else (
            f"there is no job at all there. A path that ends with savepoints/{name} is read as that of a savepoint: "
            "if it was meant to be a job's folder, call that otherwise"
        )
    )
    return StoreError(f"there is no savepoint '{name}' in '{blobs}'", remedy)


def _first(asked: Asked, epoch: int, token: str) -> Manifest:
    return Manifest(
        job=token,
        micro_batch=0,
        epoch=epoch,
        token=token,
        parent="",
        kind=Kind.OPENING,
        mode=CommitMode.RUNNING,
        time=asked.now,
        cut=b"",
        shape=asked.shape,
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
        program=asked.program,
    )
