"""The note in a job's folder of a running driver: that it is alive, and what it is doing.

Owns the file. It informs people; nothing that runs a job reads it.

    driver      of the driver that wrote last: its epoch, its name, and what it was doing
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from arcbeam import documents
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import MissingFileError
from arcbeam.store.manifest.names import DRIVER_NOTE
from arcbeam.store.manifest.values import ENDED, Manifest

VERSION = 1
_TEXT_CHARACTERS_MAX = 500
"""Largest number of characters of a text: an error may contain much of a user's data."""


@dataclass(frozen=True, slots=True)
class DriverNote:
    """The activity of a driver.

    Attributes:
        epoch: of the driver.
        driver: its host and the id of its run.
        pid: of its process, on its host.
        since: when it took over the job.
        time: when the note was written, by the clock of its host.
        every: seconds after which it writes the next note, at the latest.
        doing: its activity, for people.
        trouble: what prevents progress, for people; "" if nothing is known.
        released_when: what would end the trouble.
        samples: whether it takes samples of stages.
        failures: the number of tries of any kind that failed since it began.
    """

    epoch: int
    driver: str
    pid: int
    since: Timestamp
    time: Timestamp
    every: float
    doing: str
    trouble: str = ""
    released_when: str = ""
    samples: bool = True
    failures: int = 0


def record_driver(blobs: DurableBlobs, note: DriverNote) -> None:
    """Write the note; it replaces an earlier one.

    Raises:
        StoreError: it cannot be written.
    """
    texts = {name: getattr(note, name)[:_TEXT_CHARACTERS_MAX] for name in ("doing", "trouble", "released_when")}
    blobs.put(DRIVER_NOTE, documents.encode(VERSION, {**asdict(note), **texts}))


def driver_note_of(blobs: DurableBlobs, head: Manifest) -> DriverNote | None:
    """Return the activity of the driver of `head`; None if a commit ended the job, or that driver left no note.

    A damaged note, or one of a newer version, counts as none.
    """
    if head.mode in ENDED:
        return None
    try:
        record = documents.decode(blobs.get(DRIVER_NOTE), VERSION, "the note of a driver")
        note = DriverNote(
            int(record["epoch"]),
            str(record["driver"]),
            int(record["pid"]),
            Timestamp(int(record["since"])),
            Timestamp(int(record["time"])),
            float(record["every"]),
            str(record["doing"]),
            str(record["trouble"]),
            str(record["released_when"]),
            bool(record["samples"]),
            int(record["failures"]),
        )
    except (MissingFileError, ValueError, KeyError, TypeError):
        return None
    return note if note.epoch == head.epoch else None
