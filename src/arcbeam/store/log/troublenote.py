"""The note in a job's folder of a driver that tries a micro-batch again: no commit reports that.

Owns the file. It informs people; nothing that runs a job reads it. It is about the micro-batch after one head, and
stale once that micro-batch is committed, so it is never removed.

    trouble     of the driver that wrote last: its epoch, the micro-batch, why it fails, and since when
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from arcbeam import documents
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import MissingFileError
from arcbeam.store.manifest.names import TROUBLE_NOTE
from arcbeam.store.manifest.values import Manifest

VERSION = 1
_REASON_CHARACTERS_MAX = 2000
"""Largest number of characters of the reason."""


@dataclass(frozen=True, slots=True)
class TroubleNote:
    """The reason why a micro-batch fails and is tried again.

    Attributes:
        epoch: of the driver.
        micro_batch: being tried.
        stage: the transform in which it fails; "" if unknown.
        why: for people, in a line.
        time: when this driver's first try failed.
    """

    epoch: int
    micro_batch: int
    stage: str
    why: str
    time: Timestamp

    def is_of(self, head: Manifest) -> bool:
        """Return whether it is about the micro-batch after a head, and of the driver that made that head."""
        return (self.epoch, self.micro_batch) == (head.epoch, head.micro_batch + 1)


def record_trouble(blobs: DurableBlobs, trouble: TroubleNote) -> None:
    """Leave the note, in place of an earlier one.

    Raises:
        StoreError: it cannot be written.
    """
    why = trouble.why if len(trouble.why) <= _REASON_CHARACTERS_MAX else trouble.why[:_REASON_CHARACTERS_MAX] + "…"
    blobs.put(TROUBLE_NOTE, documents.encode(VERSION, {**asdict(trouble), "why": why}))


def trouble_of(blobs: DurableBlobs, head: Manifest) -> TroubleNote | None:
    """Return why the micro-batch after `head` is tried again; None if it is not, or the note is stale, damaged or
    newer.
    """
    try:
        record = documents.decode(blobs.get(TROUBLE_NOTE), VERSION, "the note of a failure")
        found = TroubleNote(
            int(record["epoch"]),
            int(record["micro_batch"]),
            str(record["stage"]),
            str(record["why"]),
            Timestamp(int(record["time"])),
        )
    except (MissingFileError, ValueError, KeyError, TypeError):
        return None
    return found if found.is_of(head) else None
