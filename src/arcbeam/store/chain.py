"""Finding what is real: epochs, floors, and the newest manifest. Reading only.

Owns how the head is found whatever a store's listings say. A listing is a hint, used to jump; what is concluded is
concluded from reading names one by one, upwards, until one is missing. That is exact because the manifests from the
floor to the head have no gap:

- manifests are deleted by the driver of the newest epoch only, only below the floor that it recorded before, and after
  it saw that no later epoch had begun (`sweep`): who begins an epoch, and then reads the floor of the one before it,
  knows of all deletions by earlier drivers;
- they are deleted in ascending order, and a floor's own manifest is the first to go when the floor rises: who finds it
  still there, after all that was read, has read no gap.
"""

from __future__ import annotations

import struct
from zlib import crc32

from arcbeam.store.durable import DurableBlobs
from arcbeam.store.errors import DamagedFileError, IndeterminateError, MissingFileError
from arcbeam.store.manifest import Manifest
from arcbeam.store.manifestfile import decode
from arcbeam.store.names import (
    EPOCHS,
    MANIFESTS,
    epoch_name,
    epoch_number,
    floor_name,
    manifest_name,
    manifest_step,
)

_FLOOR = struct.Struct("<8sQI")
_FLOOR_MAGIC = b"arcfloor"
_TRIES = 3


def read_manifest(blobs: DurableBlobs, step: int) -> Manifest:
    """The manifest of a step.

    Raises:
        MissingFileError, DamagedFileError, NewerFormatError, IndeterminateError.
    """
    name = manifest_name(step)
    manifest = decode(blobs.get(name), name, blobs)
    if manifest.step != step:
        raise DamagedFileError(
            f"manifest '{name}' in '{blobs}' is of step {manifest.step}",
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
    try:
        blobs.get(epoch_name(epoch))
    except MissingFileError:
        return False
    return True


def floor_data(step: int) -> bytes:
    """The record of a floor."""
    start = _FLOOR.pack(_FLOOR_MAGIC, step, 0)[:-4]
    return start + struct.pack("<I", crc32(start))


def read_floor(blobs: DurableBlobs, epoch: int) -> int | None:
    """The floor that the driver of an epoch recorded; None if it recorded none.

    There are two records, written in turn: where a store cannot replace at once, the other one is still there.
    """
    found = []
    for slot in (0, 1):
        name = floor_name(epoch, slot)
        try:
            data = blobs.get(name)
        except MissingFileError:
            continue
        if len(data) != _FLOOR.size or data != floor_data(step := _FLOOR.unpack(data)[1]):
            raise DamagedFileError(f"'{name}' in '{blobs}' is damaged", "bring the file back from a copy")
        found.append(step)
    return max(found, default=None)


def floor_below(blobs: DurableBlobs, epoch: int) -> int:
    """The floor as the driver of an epoch finds it: of the nearest epoch, this one or below, that recorded one."""
    for below in range(epoch, -1, -1):
        floor = read_floor(blobs, below)
        if floor is not None:
            return floor
    return 0


def find_head(blobs: DurableBlobs, floor: int) -> Manifest | None:
    """The newest manifest; None if there is none, and never was.

    Raises:
        IndeterminateError: the manifest at the floor is missing: a driver has moved on meanwhile.
    """
    listed = [manifest_step(info.name) for info in blobs.list(MANIFESTS, after=_before(floor))]
    start = max((step for step in listed if step is not None and step >= floor), default=floor)
    head = _manifest_or_none(blobs, start)
    if head is None and start > floor:  # what was listed is gone
        head = _manifest_or_none(blobs, floor)
    if head is None and not floor:
        return None
    while head is not None:
        following = _manifest_or_none(blobs, head.step + 1)
        if following is None:
            break
        head = following
    if head is None or (head.step > floor and _manifest_or_none(blobs, floor) is None):
        raise IndeterminateError(
            f"'{manifest_name(floor)}' is missing in '{blobs}'",
            "if another driver runs this job, look again; else files were deleted by hand: bring them back",
        )
    return head


def _manifest_or_none(blobs: DurableBlobs, step: int) -> Manifest | None:
    try:
        return read_manifest(blobs, step)
    except MissingFileError:
        return None


def _before(step: int) -> str:
    return manifest_name(step - 1) if step else ""


def read_head(blobs: DurableBlobs) -> Manifest | None:
    """The newest manifest, for who only looks: drivers may come and go meanwhile. None if there is none."""
    for attempt in range(_TRIES):
        epoch = newest_epoch(blobs)
        try:
            return find_head(blobs, floor_below(blobs, epoch))
        except IndeterminateError:
            if attempt == _TRIES - 1:
                raise
    return None
