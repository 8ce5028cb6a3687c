"""The note in a job's folder of a driver that failed or was cancelled: no commit reports that.

Owns the file. It informs people that no driver is running the job, and why; nothing that runs a job reads it.

    ended       of the driver that ended last: its epoch, its state and the reason
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace

from arcbeam import documents
from arcbeam.model.commits import CommitMode
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import MissingFileError
from arcbeam.store.manifest.names import ENDED_NOTE
from arcbeam.store.manifest.values import ENDED, Manifest

VERSION = 1
_REASON_CHARACTERS_MAX = 2000
"""Largest number of characters of the reason: an error may contain much of a user's data."""


@dataclass(frozen=True, slots=True)
class EndNote:
    """The end of a driver.

    Attributes:
        epoch: of the driver.
        state: FAILED or CANCELLED.
        why: for people; "" if the state says all.
        time: when it was written, in microseconds since 1970; 0: unknown.
    """

    epoch: int
    state: str
    why: str = ""
    time: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.state}: {self.why}" if self.why else self.state


def record_end(blobs: DurableBlobs, note: EndNote) -> None:
    """Write the note, with the time; it replaces an earlier one.

    Raises:
        StoreError: it cannot be written.
    """
    why = note.why if len(note.why) <= _REASON_CHARACTERS_MAX else note.why[:_REASON_CHARACTERS_MAX] + "…"
    written = replace(note, why=why, time=round(time.time() * 1e6))
    blobs.put(ENDED_NOTE, documents.encode(VERSION, asdict(written)))


def note_of(blobs: DurableBlobs, head: Manifest) -> EndNote | None:
    """Return how the driver of `head` ended; None if it may be running, was killed, or ended with a commit.

    A damaged note, or one of a newer version, counts as none.
    """
    if head.mode in ENDED or head.mode is CommitMode.SUSPENDED:
        return None
    try:
        record = documents.decode(blobs.get(ENDED_NOTE), VERSION, "the note of an end")
        note = EndNote(int(record["epoch"]), str(record["state"]), str(record["why"]), int(record["time"]))
    except (MissingFileError, ValueError, KeyError, TypeError):
        return None
    return note if note.epoch == head.epoch else None
