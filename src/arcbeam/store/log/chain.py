"""Finding what is committed: epochs, floors, and the newest manifest. Reading only.

Owns how to find the head with unreliable listings. A listing is only a hint, used to jump. Conclusions come from
reading names one by one, upwards, until one is missing. That is exact because the manifests from the floor to the head
have no gap:

- Only the driver of the newest epoch deletes manifests. It deletes only below the floor that it recorded before, and
  after it saw that no later epoch had begun (`sweep`). So a driver that begins an epoch, and then reads the floor of
  the previous one, knows of all deletions by earlier drivers.
- Manifests are deleted in ascending order, and the floor's own manifest is the first to be deleted when the floor
  rises. So if it still exists after all other reads, these reads have missed no gap.

A job's first driver commits its opening before any task writes. So if there is no manifest, and never was, there is no
file of a task either. If there is such a file, manifests are lost.

Damage does not change which manifest is the newest: a name with any bytes is taken. `UnreadableHead` says what an
unreadable newest manifest hides; `floor_below` handles damaged records of a floor.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from arcbeam import documents
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import DamagedFileError, IndeterminateError, MissingFileError, NewerFormatError
from arcbeam.store.manifest.manifestfile import decode
from arcbeam.store.manifest.names import (
    EPOCHS,
    MANIFESTS,
    epoch_name,
    epoch_number,
    floor_name,
    manifest_micro_batch,
    manifest_name,
    parse_written,
)
from arcbeam.store.manifest.values import Manifest, ManifestKind

EPOCH_VERSION: Final = 1
"""Of the record of an epoch: the token, name and time of its driver."""
FLOOR_VERSION: Final = 1
"""Of the record of a floor: magic, this version, the micro-batch, and a CRC of these."""
_FLOOR = struct.Struct("<8sIQI")
_FLOOR_MAGIC = b"arcfloor"
_TRIES = 3


@dataclass(frozen=True, slots=True)
class UnreadableHead:
    """The newest manifest, if it is damaged or too new. Its micro-batch is decided and its name is taken; only its
    content, also its driver, is unknown.

    SUBTLE: it may have deleted a savepoint that `before` has. That savepoint is complete nevertheless: a sweep keeps
    what any manifest from the floor to the head names, also savepoints.

    Attributes:
        micro_batch: its number.
        error: names the file and the remedies.
        before: the nearest readable manifest before it, not below the floor; None if there is none.
    """

    micro_batch: int
    error: DamagedFileError | NewerFormatError
    before: Manifest | None


def read_manifest(blobs: DurableBlobs, micro_batch: int) -> Manifest:
    """Return the manifest of a micro-batch.

    Raises:
        MissingFileError, DamagedFileError, NewerFormatError, IndeterminateError.
    """
    return _decoded(blobs, micro_batch, blobs.get(manifest_name(micro_batch)))


def _decoded(blobs: DurableBlobs, micro_batch: int, data: bytes) -> Manifest:
    name = manifest_name(micro_batch)
    manifest = decode(data, name, blobs)
    if manifest.micro_batch != micro_batch:
        raise DamagedFileError(
            f"manifest '{name}' in '{blobs}' is of micro-batch {manifest.micro_batch}",
            "nothing was changed; files were renamed or copied by hand: restore the right ones",
        )
    return manifest


def newest_epoch(blobs: DurableBlobs) -> int:
    """Return the newest epoch that has begun; 0 if none has. Epochs have no gaps and are never deleted."""
    listed = [epoch_number(info.name) for info in blobs.list(EPOCHS)]
    newest = max((epoch for epoch in listed if epoch is not None), default=0)
    while has_begun(blobs, newest + 1):
        newest += 1
    return newest


def has_begun(blobs: DurableBlobs, epoch: int) -> bool:
    """Return whether a driver has begun that epoch."""
    return _data(blobs, epoch_name(epoch)) is not None


def epoch_data(token: str, driver: str, time: Timestamp) -> bytes:
    """Return the record of an epoch."""
    return documents.encode(EPOCH_VERSION, {"token": token, "driver": driver, "time": time})


def read_epoch(blobs: DurableBlobs, epoch: int) -> dict[str, Any]:
    """Return the record of an epoch: `token`, `driver` and `time`.

    Raises:
        StoreError: it cannot be read.
        ValueError: it is damaged, or of a newer version.
    """
    return documents.decode(blobs.get(epoch_name(epoch)), EPOCH_VERSION, "the record of an epoch")


def floor_data(micro_batch: int) -> bytes:
    """Return the record of a floor."""
    start = _FLOOR.pack(_FLOOR_MAGIC, FLOOR_VERSION, micro_batch, 0)[:-4]
    return start + struct.pack("<I", crc32(start))


@dataclass(frozen=True, slots=True)
class FloorRecords:
    """The records of a floor by the driver of an epoch.

    There are two records, written alternately: if a store cannot replace a file atomically, the other one still exists.

    Attributes:
        floor: the higher one that can be read; None if there is none.
        damaged: the names of those that cannot be read.
    """

    floor: int | None
    damaged: tuple[str, ...]


def read_floors(blobs: DurableBlobs, epoch: int) -> FloorRecords:
    """Return the records of an epoch."""
    found, damaged = [], []
    for name in (floor_name(epoch, 0), floor_name(epoch, 1)):
        data = _data(blobs, name)
        if data is None:
            continue
        if len(data) == _FLOOR.size and data == floor_data(micro_batch := _FLOOR.unpack(data)[2]):
            found.append(micro_batch)
        else:
            damaged.append(name)
    return FloorRecords(max(found, default=None), tuple(damaged))


def floor_below(blobs: DurableBlobs, epoch: int) -> int:
    """Return the floor for the driver of an epoch: that of the nearest epoch, this one or below, that recorded one.

    If a record is damaged, the floor comes from the existing manifests; see `_floor_from_manifests`.

    Raises:
        DamagedFileError: a record is damaged, and so much else that this is not possible.
    """
    damaged: tuple[str, ...] = ()
    floor: int | None = None
    for below in range(epoch, -1, -1):
        records = read_floors(blobs, below)
        damaged += records.damaged
        floor = records.floor
        if floor is not None:
            break
    return _floor_from_manifests(blobs, floor or 0, damaged) if damaged else floor or 0


def _floor_from_manifests(blobs: DurableBlobs, recorded: int, damaged: tuple[str, ...]) -> int:
    """Return a floor if the latest record may be a damaged one: the newest micro-batch that can be a floor.

    SUBTLE: why no gap is above it. It is not below any earlier floor, and from such a floor on manifests are deleted in
    ascending order, except openings and savepoints. So above an existing manifest that is neither, none was deleted.
    That also holds for a job's first manifest, an opening or a savepoint's copy, which is used only if there is no
    other. The newest one, because a concurrent sweep deletes below a floor that is at most as high.
    """
    listed = sorted(
        (
            micro_batch
            for info in blobs.list(MANIFESTS)
            if (micro_batch := manifest_micro_batch(info.name)) is not None and micro_batch >= recorded
        ),
        reverse=True,
    )
    above = listed[0] + 1 if listed else recorded
    while _data(blobs, manifest_name(above)) is not None:  # the listing may be stale
        listed.insert(0, above)
        above += 1
    first: int | None = None
    for micro_batch in listed:
        try:
            manifest = read_manifest(blobs, micro_batch)
        except (MissingFileError, DamagedFileError, NewerFormatError):
            continue
        if manifest.kind == ManifestKind.MICRO_BATCH and all(pin.micro_batch != micro_batch for pin in manifest.pins):
            return micro_batch
        if not micro_batch or not manifest.epoch:
            first = micro_batch
    if first is None:
        raise DamagedFileError(
            f"'{damaged[0]}' in '{blobs}' is damaged, and no readable manifest replaces it",
            "nothing was changed: restore the file from a backup, or begin a new job in another folder",
        )
    return first


def find_newest(blobs: DurableBlobs, floor: int) -> Manifest | UnreadableHead | None:
    """Return the newest manifest, readable or not; None if there is none, and never was.

    Raises:
        IndeterminateError: the manifest at the floor is missing: a driver has swept meanwhile.
        MissingFileError: there is none, but a task has written a file, so there must have been one.
    """
    listed = [manifest_micro_batch(info.name) for info in blobs.list(MANIFESTS, after=_before(floor))]
    micro_batch = max(
        (micro_batch for micro_batch in listed if micro_batch is not None and micro_batch >= floor), default=floor
    )
    data = _data(blobs, manifest_name(micro_batch))
    if data is None and micro_batch > floor:  # the listed manifest was deleted
        micro_batch, data = floor, _data(blobs, manifest_name(floor))
    if data is None and not floor:
        file = _written_by_a_task(blobs)
        if file is None:
            return None
        # SUBTLE: the order. The driver of the task that wrote the file had committed an opening. If the first manifest
        # is missing now, it was deleted; a sweep does that only after it recorded a higher floor.
        data = _data(blobs, manifest_name(0))
        if data is None and not floor_below(blobs, newest_epoch(blobs)):
            raise lost_beginning(blobs, file)
    while data is not None and (following := _data(blobs, manifest_name(micro_batch + 1))) is not None:
        micro_batch, data = micro_batch + 1, following
    found: Manifest | UnreadableHead | None = None
    if data is not None:
        try:
            found = _decoded(blobs, micro_batch, data)
        except (DamagedFileError, NewerFormatError) as e:
            found = _unreadable(blobs, micro_batch, floor, e)
    if found is None or (micro_batch > floor and _data(blobs, manifest_name(floor)) is None):
        raise IndeterminateError(
            f"'{manifest_name(floor)}' is missing in '{blobs}'",
            "if another driver runs this job, try again; else files were deleted by hand: restore them",
        )
    return found


def _written_by_a_task(blobs: DurableBlobs) -> str | None:
    """Return the name of a file that a task wrote; None if there is none. A listing may contain deleted names."""
    listed = (info.name for info in blobs.list("") if parse_written(info.name))
    return next((name for name in listed if _data(blobs, name) is not None), None)


def lost_beginning(blobs: DurableBlobs, file: str) -> MissingFileError:
    """Return the error for a file of a task in a folder without manifests."""
    return MissingFileError(
        f"'{file}' in '{blobs}' was written for a job whose manifests are missing, from '{manifest_name(0)}' on",
        "nothing was changed; if files were deleted or moved by hand, restore them; if this is an interrupted copy of "
        "a savepoint, copy it again; else begin a new job in an empty folder",
    )


def _unreadable(
    blobs: DurableBlobs, micro_batch: int, floor: int, error: DamagedFileError | NewerFormatError
) -> UnreadableHead:
    before: Manifest | None = None
    for earlier in range(micro_batch - 1, floor - 1, -1):
        try:
            before = read_manifest(blobs, earlier)
            break
        except (DamagedFileError, NewerFormatError):
            continue
        except MissingFileError:
            break  # a driver has swept meanwhile, which the caller detects
    names = ", ".join(f"'{pin.name}' (micro-batch {pin.micro_batch})" for pin in before.pins) if before else ""
    first = (
        "use the version of arcbeam that wrote it, or a newer one"
        if isinstance(error, NewerFormatError)
        else "restore the file from a backup"
    )
    then = (
        f"or resume from a savepoint: {names}"
        if names
        else "or resume a savepoint that you copied to another folder, or begin a new job there (this folder has no "
        "earlier savepoint)"
    )
    with_remedy = type(error)(error.message, f"nothing was changed: {first}, {then}")
    with_remedy.__cause__ = error
    return UnreadableHead(micro_batch, with_remedy, before)


def known(newest: Manifest | UnreadableHead) -> Manifest:
    """Return the manifest whose savepoints count: the newest one, or the nearest readable one before it.

    Raises:
        DamagedFileError, NewerFormatError: there is none.
    """
    if isinstance(newest, Manifest):
        return newest
    if newest.before is None:
        raise newest.error
    return newest.before


def _data(blobs: DurableBlobs, name: str) -> bytes | None:
    try:
        return blobs.get(name)
    except MissingFileError:
        return None


def _before(micro_batch: int) -> str:
    return manifest_name(micro_batch - 1) if micro_batch else ""


def read_newest(blobs: DurableBlobs) -> Manifest | UnreadableHead | None:
    """Return the newest manifest, for readers while a driver runs. None if there is none."""
    for attempt in range(_TRIES):
        epoch = newest_epoch(blobs)
        try:
            return find_newest(blobs, floor_below(blobs, epoch))
        except IndeterminateError:
            if attempt == _TRIES - 1:
                raise
    return None
