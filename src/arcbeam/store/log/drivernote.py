"""What a running driver leaves in the job's folder now and then: that it lives, and what it is doing.

Owns the file. It is for people; nothing that runs a job decides by it.

    driver      of the driver that wrote last: its epoch, who it is, and what it was doing
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import MissingFileError
from arcbeam.store.manifest.names import DRIVER_NOTE
from arcbeam.store.manifest.values import ENDED, Manifest

VERSION = 1
_LONGEST = 500
"""Characters of a text: an error may have a user's whole data in it."""


@dataclass(frozen=True, slots=True)
class DriverNote:
    """What a driver was doing.

    Attributes:
        epoch: its own.
        driver: its host and the id of its run.
        pid: of its process, on its host.
        since: when it took the job over.
        time: when this was written, by the clock of its host.
        every: seconds after which it writes the next note, at the latest.
        doing: what it was doing then, for people.
        trouble: what keeps it from that, for people; "" if nothing is known to.
        frees: what would end the trouble.
    """

    epoch: int
    driver: str
    pid: int
    since: Timestamp
    time: Timestamp
    every: float
    doing: str
    trouble: str = ""
    frees: str = ""


def leave_driver_note(blobs: DurableBlobs, note: DriverNote) -> None:
    """Leaves it, in the place of an earlier one.

    Raises:
        StoreError: it cannot be written.
    """
    texts = {name: getattr(note, name)[:_LONGEST] for name in ("doing", "trouble", "frees")}
    blobs.put(DRIVER_NOTE, json.dumps({"version": VERSION, **asdict(note), **texts}).encode())


def driver_note_of(blobs: DurableBlobs, head: Manifest) -> DriverNote | None:
    """What the driver of `head` was doing; None if the job has ended by a commit, or that driver left no note.

    What is no note, or one of a newer version, is none.
    """
    if head.mode in ENDED:
        return None
    try:
        record = json.loads(blobs.get(DRIVER_NOTE))
        note = DriverNote(
            int(record["epoch"]),
            str(record["driver"]),
            int(record["pid"]),
            Timestamp(int(record["since"])),
            Timestamp(int(record["time"])),
            float(record["every"]),
            str(record["doing"]),
            str(record["trouble"]),
            str(record["frees"]),
        )
    except (MissingFileError, ValueError, KeyError, TypeError):
        return None
    return note if note.epoch == head.epoch else None
