"""Savepoints: micro-batches with a name, which are kept until the name is deleted; and complete copies of them.

Owns names, their changes, and copying. `sweep` keeps a savepoint's files; `CommitLog.open` resumes from one.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from arcbeam.errors import InvalidPipelineError, RequestRefusedError
from arcbeam.model.commits import CommitMode, name_change
from arcbeam.model.files import ShardFile, SideFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.backends import below, shown
from arcbeam.store.blobs.durable import DurableBlobs, pieces
from arcbeam.store.blobs.errors import MissingFileError, StoreError
from arcbeam.store.blobs.private import make_folder
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.chain import (
    UnreadableHead,
    find_newest,
    floor_below,
    floor_data,
    known,
    newest_epoch,
    read_manifest,
)
from arcbeam.store.log.commitlog import CommitLog, new_token
from arcbeam.store.log.jobname import job_in
from arcbeam.store.log.opening import choice_of, held, no_savepoint
from arcbeam.store.log.verification import read_side_file
from arcbeam.store.manifest.manifestfile import encode
from arcbeam.store.manifest.names import floor_name, manifest_name
from arcbeam.store.manifest.values import ENDED, Manifest, ManifestKind, Pin
from arcbeam.store.shards.shardfile import ShardFileReader, local_reader

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PATH = re.compile(rf"(.+)/savepoints/({_NAME.pattern})/?", re.DOTALL)


def pinned(draft: Manifest, name: str) -> Manifest:
    """Return the draft as a savepoint: when it is committed, its micro-batch has the name.

    Raises:
        StoreError: the name is taken, or invalid.
    """
    checked_name(draft, name)
    return replace(draft, pins=(*draft.pins, Pin(name, draft.micro_batch, draft.time)))


def checked_name(head: Manifest, name: str) -> str:
    """Return a name if a savepoint after `head` can have it.

    Raises:
        StoreError: it is taken, or invalid.
    """
    if not _NAME.fullmatch(name):
        raise StoreError(
            f"'{name}' is not a valid name for a savepoint",
            "use up to 100 letters, digits, '.', '_' and '-', a letter or digit first",
        )
    taken = head.pin(name)
    if taken is not None:
        raise StoreError(
            f"savepoint '{name}' exists already, of micro-batch {taken.micro_batch}", "choose another name"
        )
    return name


def named_now(what: str) -> str:
    """Return a name for a savepoint without one: its purpose, and the time."""
    return f"{what}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:4]}"


def is_named_now(what: str, name: str) -> bool:
    """Return whether `named_now` made a name."""
    return re.fullmatch(rf"{what}-\d{{8}}T\d{{6}}-[0-9a-f]{{4}}", name) is not None


def path_of(url: str, name: str) -> str:
    """Return the path of a savepoint for people: `FOLDER/savepoints/NAME`."""
    return below(url, f"savepoints/{name}")


def split_path(path: str) -> tuple[str, str]:
    """Return the folder and the savepoint's name of such a path; for another path, the path itself and ""."""
    plain, mark, settings = path.partition("?") if "://" in path else (path, "", "")
    match = _PATH.fullmatch(plain)
    return (match[1] + mark + settings, match[2]) if match else (path, "")


def place_of(path: str, savepoint: str) -> tuple[str, str]:
    """Return a job's folder and savepoint. The path may be that of a savepoint; "": no savepoint.

    Raises:
        InvalidPipelineError: path and name are of different savepoints.
    """
    folder, of_path = split_path(path)
    if of_path and savepoint not in ("", of_path):
        raise InvalidPipelineError(
            f"'{shown(path)}' is savepoint '{of_path}', but '{savepoint}' is requested", "give only one of them"
        )
    return folder, savepoint or of_path


def unpinned(draft: Manifest, name: str) -> Manifest:
    """Return the draft without a savepoint. After its commit, the sweep may remove what only that savepoint kept.

    Raises:
        StoreError: there is no such savepoint.
    """
    if draft.pin(name) is None:
        raise StoreError(f"there is no savepoint '{name}'", choice_of(pin.name for pin in draft.pins))
    return replace(draft, pins=tuple(pin for pin in draft.pins if pin.name != name))


def renamed(draft: Manifest, name: str, new: str) -> Manifest:
    """Return the draft with another name for a savepoint.

    Raises:
        StoreError: there is no such savepoint, or the new name is taken or invalid.
    """
    unpinned(draft, name)  # raises
    checked_name(draft, new)
    return replace(draft, pins=tuple(replace(pin, name=new) if pin.name == name else pin for pin in draft.pins))


def changed(draft: Manifest, what: str) -> Manifest:
    """Return the draft with a requested change: a name for its micro-batch, or a change of a name (see `name_change`).

    Raises:
        StoreError: a name is invalid, taken, or missing.
    """
    name, new = name_change(what)
    if not name:
        return pinned(draft, new)
    return renamed(draft, name, new) if new else unpinned(draft, name)


def change_stopped(
    blobs: DurableBlobs, what: str, now: Timestamp, *, driver: str = "", force: bool = False
) -> Manifest:
    """Delete or rename a savepoint of a job without a driver, by an opening that is otherwise equal to the head.

    The job stays suspended, done or drained, and can be resumed as before. The driver that resumes it sweeps files that
    are no longer needed.

    Args:
        blobs: the job's folder.
        what: a `deletion` or `renaming`.
        now: the time.
        driver: the name of this process, for people.
        force: also if the job may be running: its driver is fenced.

    Returns:
        The opening.

    Raises:
        StoreError: there is no such job or savepoint, or the new name is invalid or taken.
        RequestRefusedError: a driver may be running the job.
        FencedError: another driver took over the job meanwhile.
    """

    def following(newest: Manifest | UnreadableHead | None, job_graph: str, epoch: int, token: str) -> Manifest:
        if newest is None:
            raise StoreError(f"there is no job in '{blobs}'", "give the folder of the job (its --checkpoint_dir)")
        if isinstance(newest, UnreadableHead):
            raise newest.error
        if not force and newest.mode not in ENDED | {CommitMode.SUSPENDED}:
            raise RequestRefusedError(
                f"cannot change the savepoints of {job_in(blobs, newest)}: it is {newest.mode}, and a driver may run "
                "it",
                "suspend the job first; if no driver runs it, use --force",
            )
        return held(changed(newest, what), newest, now, epoch, token)

    return CommitLog.take(blobs, following, now, driver=driver).head


def copy_savepoint(
    source: DurableBlobs,
    newest: Manifest | UnreadableHead,
    name: str,
    target: DurableBlobs,
    scratch: Path,
    *,
    token: Callable[[], str] = new_token,
) -> Manifest:
    """Copy a savepoint and all its files to an empty place. The copy is a job that can be resumed.

    The copy is another job with its own id: both may run. It is complete once its manifest, which comes last, exists.
    If copying is interrupted, copy again. The copy has the committables of the savepoint only if the job has perhaps
    not published them: their publishers know that two jobs may publish them.

    Args:
        source: the job's folder.
        newest: its newest manifest, which need not be readable; see `chain.read_newest`.
        name: of the savepoint.
        target: an empty place.
        scratch: a local folder with space for the largest file.
        token: returns unique tokens.

    Raises:
        StoreError: there is no such savepoint; the target is not empty; a file cannot be read, or is damaged.
    """
    head = known(newest)
    pin = head.pin(name)
    if pin is None:
        raise no_savepoint(source, name, head)
    manifest = head if pin.micro_batch == head.micro_batch else read_manifest(source, pin.micro_batch)
    # An interrupted copy has neither a manifest nor an epoch.
    if newest_epoch(target) or _first_manifest(target, manifest.micro_batch):
        raise StoreError(f"'{target}' already contains a job", "copy the savepoint to an empty place")
    make_folder(scratch)
    for shard in manifest.shards:
        for file in shard.files:
            jobgraphs.copy_through(scratch, target, file.name, partial(_fetch, source, file))
    for side in manifest.side_files:
        jobgraphs.copy_through(scratch, target, side.name, partial(_fetch_side, source, side))
    if manifest.job_graph:
        jobgraphs.copy(source, manifest.job_graph, target, scratch)
    fresh: dict[str, Any] = {
        "epoch": 0,
        "parent": "",
        "kind": ManifestKind.MICRO_BATCH,
        "abandoned": (),
        "openings": (),
    }
    if isinstance(newest, Manifest) and _is_done_with(newest, manifest):
        fresh["committables"] = ()
    copy = replace(manifest, job=token(), token=token(), pins=(pin,), **fresh)
    target.put(floor_name(0, 0), floor_data(copy.micro_batch))
    if not target.create(manifest_name(copy.micro_batch), encode(copy)):
        raise StoreError(f"'{target}' contains a job since the copy began", "copy the savepoint to an empty place")
    return copy


def _is_done_with(head: Manifest, earlier: Manifest) -> bool:
    """Return whether a job has published the committables of an earlier manifest, or discarded them on purpose.

    A driver makes its next commit after it has published, or with the same committables; so does the next driver.
    """
    if head.micro_batch <= earlier.micro_batch or not head.contains(earlier.micro_batch):
        return False
    return not {of.payload for of in earlier.committables} & {of.payload for of in head.committables}


def _first_manifest(target: DurableBlobs, micro_batch: int) -> bool:
    floor = floor_below(target, 0)
    if floor == micro_batch and not list(target.list("manifests")):
        return False
    try:
        return find_newest(target, floor) is not None
    except MissingFileError:  # an interrupted copy
        return False


def _fetch(source: DurableBlobs, file: ShardFile, copy: BinaryIO) -> None:
    for data in pieces(source, file.name, file.size):
        copy.write(data)
    copy.truncate(file.size)
    copy.flush()
    # The local copy is checked.
    for _ in ShardFileReader(local_reader(Path(copy.name)), file.size, file.crc, file.name, source).blocks():
        pass


def _fetch_side(source: DurableBlobs, side: SideFile, copy: BinaryIO) -> None:
    read_side_file(source, side, copy.write)
