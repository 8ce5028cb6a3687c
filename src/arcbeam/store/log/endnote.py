"""What a driver leaves in the job's folder when it has failed or was cancelled: no commit says so.

Owns the file. It tells people that nobody runs the job, and why; nothing that runs a job goes by it.

    ended       of the driver that ended last: its epoch, the state and why
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from arcbeam.model.commits import CommitMode
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import MissingFileError
from arcbeam.store.manifest.names import ENDED_NOTE
from arcbeam.store.manifest.values import ENDED, Manifest

VERSION = 1
_LONGEST = 2000
"""Characters of why: an error may have a user's whole data in it."""


@dataclass(frozen=True, slots=True)
class EndNote:
    """How a driver has ended.

    Attributes:
        epoch: its own.
        state: FAILED or CANCELLED.
        why: for people; "" if that says all.
    """

    epoch: int
    state: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.why}" if self.why else self.state


def leave_note(blobs: DurableBlobs, note: EndNote) -> None:
    """Leaves it, in the place of an earlier one.

    Raises:
        StoreError: it cannot be written.
    """
    why = note.why if len(note.why) <= _LONGEST else note.why[:_LONGEST] + "…"
    blobs.put(ENDED_NOTE, json.dumps({"version": VERSION, **asdict(note), "why": why}).encode())


def note_of(blobs: DurableBlobs, head: Manifest) -> EndNote | None:
    """How the driver of `head` has ended; None if it may be running, was killed, or has ended with a commit.

    What is no note, or one of a newer version, is none.
    """
    if head.mode in ENDED or head.mode is CommitMode.SUSPENDED:
        return None
    try:
        record = json.loads(blobs.get(ENDED_NOTE))
        note = EndNote(int(record["epoch"]), str(record["state"]), str(record["why"]))
    except (MissingFileError, ValueError, KeyError, TypeError):
        return None
    return note if note.epoch == head.epoch else None
