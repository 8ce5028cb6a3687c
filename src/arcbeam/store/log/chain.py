"""Finding what is real: epochs, floors, and the newest manifest. Reading only.

Owns how the head is found whatever a store's listings say. A listing is a hint, used to jump; what is concluded is
concluded from reading names one by one, upwards, until one is missing. That is exact because the manifests from the
floor to the head have no gap:

- manifests are deleted by the driver of the newest epoch only, only below the floor that it recorded before, and after
  it saw that no later epoch had begun (`sweep`): who begins an epoch, and then reads the floor of the one before it,
  knows of all deletions by earlier drivers;
- they are deleted in ascending order, and a floor's own manifest is the first to go when the floor rises: who finds it
  still there, after all that was read, has read no gap.

A job's first driver commits its opening before any task writes. So where there is no manifest, and there never was,
there is no file of a task either; where there is one, manifests are lost.

Damage does not change what is the newest: a name that has bytes is taken, whatever they are. What is lost with a newest
manifest that cannot be read, and what is not, is `UnreadableHead`'s; with a record of a floor, `floor_below`'s.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from zlib import crc32

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
from arcbeam.store.manifest.values import Kind, Manifest

_FLOOR = struct.Struct("<8sQI")
_FLOOR_MAGIC = b"arcfloor"
_TRIES = 3


@dataclass(frozen=True, slots=True)
class UnreadableHead:
    """The newest manifest, where it is damaged or too new. Its micro-batch is decided, its name is taken: only what it
    says is not known, as by whom it is.

    SUBTLE: it may have given up a savepoint that `before` has. That one is whole all the same: a sweep keeps what any
    manifest from the floor to the head names, savepoints too.

    Attributes:
        micro_batch: its number.
        error: names the file, and says what can be done.
        before: the nearest one before it, not below the floor, that can be read; None if there is none.
    """

    micro_batch: int
    error: DamagedFileError | NewerFormatError
    before: Manifest | None


def read_manifest(blobs: DurableBlobs, micro_batch: int) -> Manifest:
    """The manifest of a micro-batch.

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
            "nothing was changed: files were renamed or copied by hand; bring back the right ones",
        )
    return manifest


def newest_epoch(blobs: DurableBlobs) -> int:
    """The newest epoch that has begun; 0 if none has. Epochs have no gaps and are never deleted."""
    listed = [epoch_number(info.name) for info in blobs.list(EPOCHS)]
    newest = max((epoch for epoch in listed if epoch is not None), default=0)
    while has_begun(blobs, newest + 1):
        newest += 1
    return newest


def has_begun(blobs: DurableBlobs, epoch: int) -> bool:
    """Whether a driver took that epoch."""
    return _data(blobs, epoch_name(epoch)) is not None


def floor_data(micro_batch: int) -> bytes:
    """The record of a floor."""
    start = _FLOOR.pack(_FLOOR_MAGIC, micro_batch, 0)[:-4]
    return start + struct.pack("<I", crc32(start))


@dataclass(frozen=True, slots=True)
class FloorRecords:
    """What the driver of an epoch recorded of its floor.

    There are two records, written in turn: where a store cannot replace at once, the other one is still there.

    Attributes:
        floor: the higher one that can be read; None if there is none.
        damaged: the names of those that cannot be read.
    """

    floor: int | None
    damaged: tuple[str, ...]


def read_floors(blobs: DurableBlobs, epoch: int) -> FloorRecords:
    """The records of an epoch."""
    found, damaged = [], []
    for name in (floor_name(epoch, 0), floor_name(epoch, 1)):
        data = _data(blobs, name)
        if data is None:
            continue
        if len(data) == _FLOOR.size and data == floor_data(micro_batch := _FLOOR.unpack(data)[1]):
            found.append(micro_batch)
        else:
            damaged.append(name)
    return FloorRecords(max(found, default=None), tuple(damaged))


def floor_below(blobs: DurableBlobs, epoch: int) -> int:
    """The floor as the driver of an epoch finds it: of the nearest epoch, this one or below, that recorded one.

    A floor whose record is damaged is found by the manifests that stand; see `_floor_that_stands`.

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
    return _floor_that_stands(blobs, floor or 0, damaged) if damaged else floor or 0


def _floor_that_stands(blobs: DurableBlobs, recorded: int, damaged: tuple[str, ...]) -> int:
    """A floor, where the latest record may be the damaged one: the newest micro-batch that can be one.

    SUBTLE: why no gap is above it. It is no lower than an earlier floor, and from that one on manifests go in ascending
    order, all but openings and savepoints. So above one that stands, and is neither, none has gone. That holds for a
    job's first manifest, too, an opening or a savepoint's copy: it is taken only if there is no other. The newest,
    because who deletes at this moment does so below a floor that is at most as high.
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
    while _data(blobs, manifest_name(above)) is not None:  # the listing may lag
        listed.insert(0, above)
        above += 1
    first: int | None = None
    for micro_batch in listed:
        try:
            manifest = read_manifest(blobs, micro_batch)
        except (MissingFileError, DamagedFileError, NewerFormatError):
            continue
        if manifest.kind == Kind.MICRO_BATCH and all(pin.micro_batch != micro_batch for pin in manifest.pins):
            return micro_batch
        if not micro_batch or not manifest.epoch:
            first = micro_batch
    if first is None:
        raise DamagedFileError(
            f"'{damaged[0]}' in '{blobs}' is damaged, and no manifest that can be read says what it said",
            "nothing was changed: bring the file back from a copy, or begin a new job in another folder",
        )
    return first


def find_newest(blobs: DurableBlobs, floor: int) -> Manifest | UnreadableHead | None:
    """The newest manifest, readable or not; None if there is none, and never was.

    Raises:
        IndeterminateError: the manifest at the floor is missing: a driver has moved on meanwhile.
        MissingFileError: there is none, but there must have been, since a task has written.
    """
    listed = [manifest_micro_batch(info.name) for info in blobs.list(MANIFESTS, after=_before(floor))]
    micro_batch = max(
        (micro_batch for micro_batch in listed if micro_batch is not None and micro_batch >= floor), default=floor
    )
    data = _data(blobs, manifest_name(micro_batch))
    if data is None and micro_batch > floor:  # what was listed is gone
        micro_batch, data = floor, _data(blobs, manifest_name(floor))
    if data is None and not floor:
        file = _written_by_a_task(blobs)
        if file is None:
            return None
        # SUBTLE: the order. Whose task wrote the file had committed an opening. If the first manifest is missing now,
        # it was deleted; if that was a sweep's doing, after a floor above it was recorded.
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
            "if another driver runs this job, look again; else files were deleted by hand: bring them back",
        )
    return found


def _written_by_a_task(blobs: DurableBlobs) -> str | None:
    """The name of some file that a task wrote; None if there is none. A listing may have names that are gone."""
    listed = (info.name for info in blobs.list("") if parse_written(info.name))
    return next((name for name in listed if _data(blobs, name) is not None), None)


def lost_beginning(blobs: DurableBlobs, file: str) -> MissingFileError:
    """The error for a file of a task, where no manifest tells of a job that had it written."""
    return MissingFileError(
        f"'{file}' in '{blobs}' was written for a job whose manifests are missing, from '{manifest_name(0)}' on",
        "nothing was changed: files were deleted or moved by hand, bring them back; if this is a copy of a savepoint "
        "that was cut off, copy it again; else begin a new job in an empty folder",
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
            break  # a driver has moved on, which whoever called notices
    names = ", ".join(f"'{pin.name}' (micro-batch {pin.micro_batch})" for pin in before.pins) if before else ""
    first = (
        "go on with the version of arcbeam that wrote it, or a newer one"
        if isinstance(error, NewerFormatError)
        else "bring the file back from a copy"
    )
    then = (
        f"or resume from a savepoint; there are: {names}"
        if names
        else "no savepoint before it is left here: resume a copy of one, or begin a new job in another folder"
    )
    told = type(error)(error.message, f"nothing was changed: {first}, {then}")
    told.__cause__ = error
    return UnreadableHead(micro_batch, told, before)


def known(newest: Manifest | UnreadableHead) -> Manifest:
    """The manifest whose savepoints count: the newest one, or the nearest before it that can be read.

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
    """The newest manifest, for who only looks: drivers may come and go meanwhile. None if there is none."""
    for attempt in range(_TRIES):
        epoch = newest_epoch(blobs)
        try:
            return find_newest(blobs, floor_below(blobs, epoch))
        except IndeterminateError:
            if attempt == _TRIES - 1:
                raise
    return None
