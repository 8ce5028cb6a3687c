"""Another number of shards for a job's state: an opening whose shards are rewritten.

Owns the new files until the opening is committed: if its driver ends before, nothing has changed. Must not know the
rules of rows (`engine.rescaling`), nor why the number changes.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from arcbeam.engine.rescaling.rescaling import LevelRescaling, RescaledStage
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.errors import RequestRefusedError
from arcbeam.model.commits import CommitMode
from arcbeam.model.files import Shard
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.store.blobs.claims import work_folder
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.log.chain import UnreadableHead, read_manifest, read_newest
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.log.jobname import job_in
from arcbeam.store.log.opening import held
from arcbeam.store.manifest.values import ENDED, Manifest
from arcbeam.store.shards.rewriting import LevelWriter, ShardRows
from arcbeam.streaming.driverstate import progress_of
from arcbeam.streaming.restore.sharing import Sharing, usable
from arcbeam.streaming.status.snapshot import snapshot_of

_SHARED: Final = 64 << 20
"""Several processes rescale a level with as many bytes."""


def resumed_from(blobs: DurableBlobs, savepoint: str) -> Manifest | None:
    """Return the manifest that a job resumes from, whose number of shards it keeps unless another one is requested.

    Args:
        blobs: the job's folder.
        savepoint: the savepoint to resume from; "": none.

    Returns:
        None: there is none, or `CommitLog.open` refuses it.
    """
    newest = read_newest(blobs)
    head = newest.before if isinstance(newest, UnreadableHead) else newest
    pin = head.pin(savepoint) if head is not None and savepoint else None
    if head is None or pin is None or pin.micro_batch == head.micro_batch:
        return head
    return read_manifest(blobs, pin.micro_batch)


def stages_of(manifest: Manifest) -> dict[int, RescaledStage]:
    """Return the stages of a manifest by the numbers in their rows."""
    numbers = progress_of(manifest).numbers
    upstream = {of.stage: of.upstream for of in manifest.watermarks}
    return {
        numbers[of.stage]: RescaledStage(of.stage, _is_stateful(of.shape), upstream.get(of.stage, MIN_TIMESTAMP))
        for of in manifest.shape.stages
        if of.stage in numbers
    }


def _is_stateful(shape: str) -> bool:
    """Return whether the shape of a stage has states or timers. Its first parts are a coder and windows."""
    return any(part.startswith(("state ", "timer ")) for part in shape.split("; ")[2:])


def rescaled(
    blobs: DurableBlobs, opening: Manifest, had: int, scratch: Path, stages: Mapping[int, RescaledStage] | None = None
) -> Manifest:
    """Return an opening whose state is in the number of shards of its shape; write the files for that.

    Side inputs and committables do not depend on shards.

    Args:
        blobs: the job's folder.
        opening: the manifest to propose; its epoch has begun, and its files are of the former number of shards.
        had: the former number of shards.
        scratch: a local folder.
        stages: the stages by number; None: those of the opening's shape.

    Raises:
        ArcbeamError: a stage's state cannot be rescaled.
        StoreError: a file cannot be read or written.
    """
    shards = opening.shape.shards
    stages = stages_of(opening) if stages is None else stages
    written: list[Shard] = []
    timers: Counter[int] = Counter()
    for level in sorted({shard.level for shard in opening.shards}):
        old = {shard.shard: ShardRows(blobs, shard.files) for shard in opening.shards if shard.level == level}
        size, processes = sum(file.size for rows in old.values() for file in rows.files), usable()
        with LevelWriter(scratch, level, shards) as writer, ExitStack() as stack:
            rewriting = LevelRescaling(had, shards, stages, writer.put)
            merging = None
            if size >= _SHARED and processes > 1:
                sharing = stack.enter_context(Sharing(processes, scratch))
                sharing.move(rewriting, writer, had, shards, stages, old)
                merging = sharing.merge
            else:
                for shard, rows in old.items():
                    rewriting.take(shard, rows)
            timers.update(rewriting.end())
            written += writer.written(blobs, opening.micro_batch, opening.epoch, merging)
    return replace(opening, shards=tuple(written), snapshot=_snapshot(opening, shards, timers))


def _snapshot(opening: Manifest, shards: int, timers: Mapping[int, int]) -> bytes:
    """Return the status of the stages for another number of shards: it names shards until the next micro-batch."""
    if not opening.snapshot:
        return b""
    numbers, snapshot = progress_of(opening).numbers, snapshot_of(opening)
    return replace(
        snapshot,
        stages=tuple(
            replace(
                of,
                shards=shards,
                limits=tuple(replace(limit, shard=limit.shard % shards) for limit in of.limits),
                kept=of.kept + StateMetrics(event_timers=timers.get(numbers.get(of.name, 0), 0)),
            )
            for of in snapshot.stages
        ),
    ).encoded()


def rescale_stopped(blobs: DurableBlobs, shards: int, now: Timestamp, *, force: bool = False) -> tuple[Manifest, int]:
    """Rescale the newest state of a job without a driver. The job stays suspended; its savepoints stay as they are.

    Args:
        blobs: the job's folder.
        shards: the new number of shards.
        now: the time.
        force: also if the job may be running: its driver is fenced.

    Returns:
        The opening, and the former number of shards.

    Raises:
        StoreError: there is no such job, or a file cannot be read or written.
        RequestRefusedError: a driver may be running the job, or it has ended.
        ArcbeamError: a stage's state cannot be rescaled.
        FencedError: another driver took over the job meanwhile.
    """
    had = 0

    def following(newest: Manifest | UnreadableHead | None, job_graph: str, epoch: int, token: str) -> Manifest:
        nonlocal had
        if newest is None:
            raise StoreError(f"there is no job in '{blobs}'", "give the folder of the job (its --checkpoint_dir)")
        if isinstance(newest, UnreadableHead):
            raise newest.error
        if newest.mode in ENDED:
            raise RequestRefusedError(
                f"cannot rescale {job_in(blobs, newest)}: it has ended ({newest.mode})", "there is nothing to resume"
            )
        if not force and newest.mode != CommitMode.SUSPENDED:
            raise RequestRefusedError(
                f"cannot rescale {job_in(blobs, newest)}: it is {newest.mode}, and a driver may run it",
                "suspend the job first; if no driver runs it, use --force",
            )
        had = newest.shape.shards
        if had == shards:
            raise RequestRefusedError(f"{job_in(blobs, newest)} has {had} shards already", "there is nothing to do")
        opening = held(newest, newest, now, epoch, token)
        return replace(opening, shape=replace(opening.shape, shards=shards))

    def filled(opening: Manifest) -> Manifest:
        with work_folder("rescaled") as scratch:
            return rescaled(blobs, opening, had, scratch)

    log = CommitLog.take(blobs, following, now, driver=f"{socket.gethostname()}: arcbeam savepoints", fill=filled)
    return log.head, had
