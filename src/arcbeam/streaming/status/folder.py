"""The status record of the job in a folder, also when no driver runs it.

Owns which files of the folder a status is made of: manifest, end note, driver note, trouble note.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from arcbeam.model.commits import CommitMode
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.log.chain import UnreadableHead, read_newest
from arcbeam.store.log.drivernote import driver_note_of
from arcbeam.store.log.endnote import note_of
from arcbeam.store.log.jobname import kept_name
from arcbeam.store.log.troublenote import trouble_of
from arcbeam.streaming.status.status import as_record, at_moment, status_of, with_driver, with_trouble


def record_of(blobs: DurableBlobs) -> dict[str, Any]:
    """Return the record, with `folder`, `ended`: how its driver failed or was cancelled (None if it did not), and
    `job_graph`: whether the folder has a job graph.

    Raises:
        StoreError: there is no job, or it is unreadable.
    """
    newest = read_newest(blobs)
    if newest is None:
        raise StoreError(f"there is no job in '{blobs}'", "give the folder of the job (its --checkpoint_dir)")
    if isinstance(newest, UnreadableHead):
        raise newest.error
    note = note_of(blobs, newest)
    # The clock of a job without a driver stands.
    found = status_of(newest, kept_name(blobs, newest))
    if note is None:
        found = at_moment(found, round(time.time() * 1e6))
    status = with_trouble(found, None if note else trouble_of(blobs, newest))
    driver = None if note or newest.mode is CommitMode.SUSPENDED else driver_note_of(blobs, newest)
    record = as_record(with_driver(status, driver))
    return {
        **record,
        "folder": str(blobs),
        "ended": asdict(note) if note else None,
        "job_graph": bool(newest.job_graph),
    }
