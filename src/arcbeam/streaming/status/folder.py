"""The status of the job in a folder, also when no driver runs it.

Owns which files of the folder a status is made of: manifest, end note, driver note, trouble note.
"""

from __future__ import annotations

import time
from dataclasses import replace

from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.log.chain import UnreadableHead, read_newest
from arcbeam.store.log.drivernote import driver_note_of
from arcbeam.store.log.endnote import note_of
from arcbeam.store.log.jobname import kept_name
from arcbeam.store.log.troublenote import trouble_of
from arcbeam.streaming.status.status import Status, at_moment, status_of, with_driver, with_trouble, without_rates
from arcbeam.streaming.status.words import without_driver


def status_in(blobs: DurableBlobs) -> Status:
    """Return the status of the job in a folder.

    Raises:
        StoreError: there is no job, or it is unreadable.
    """
    newest = read_newest(blobs)
    if newest is None:
        raise StoreError(f"there is no job in '{blobs}'", "give the folder of the job (its --checkpoint_dir)")
    if isinstance(newest, UnreadableHead):
        raise newest.error
    name, note = kept_name(blobs, newest), note_of(blobs, newest)
    found = replace(status_of(newest, name), folder=str(blobs), ended=note, job_graph=bool(newest.job_graph))
    status = with_trouble(at_moment(found, round(time.time() * 1e6)), None if note else trouble_of(blobs, newest))
    status = with_driver(status, None if status.is_stopped else driver_note_of(blobs, newest))
    return without_rates(status) if without_driver(status) else status
