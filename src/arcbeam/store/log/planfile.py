"""The files with a job's plan, its tasks' figures and log, metrics and messages, in its folder, for people.

Owns the format: a header as a manifest's, then JSON. They inform people; nothing that runs a job reads them, so an
unreadable file counts as none. Must not know what the records mean.

    plan        of the driver that started last
    tasks       of a recent micro-batch
    details     user metrics, messages and log of the tasks of the driver that started last
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import MissingFileError
from arcbeam.store.manifest.framing import framed, unframed
from arcbeam.store.manifest.names import DETAILS, PLAN, TASKS

_LOG = logging.getLogger("arcbeam.store")

VERSION = 1
_MAGICS = {PLAN: b"archplan", TASKS: b"archtask", DETAILS: b"archdeta"}


def encode(record: Mapping[str, Any], name: str = PLAN) -> bytes:
    """Return the bytes of the file of that name; the same for equal records."""
    payload = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
    return framed(_MAGICS[name], VERSION, payload)


def decode(data: bytes, name: str = PLAN) -> dict[str, Any]:
    """Return the record.

    Raises:
        ValueError: it is torn or changed, or has another version; the text says which.
    """
    payload = unframed(_MAGICS[name], VERSION, data, f"a file '{name}'")
    record = json.loads(payload)
    if not isinstance(record, dict):
        raise ValueError(f"its content is not that of a file '{name}'")
    return record


def record_plan(blobs: DurableBlobs, record: Mapping[str, Any]) -> None:
    """Write the plan; it replaces an earlier one.

    Raises:
        StoreError: it cannot be written.
    """
    blobs.put(PLAN, encode(record))


def plan_in(blobs: DurableBlobs) -> dict[str, Any] | None:
    """Return the plan in a job's folder; None if there is none. An unreadable one is logged.

    Raises:
        StoreError: the store does not answer.
    """
    return _found(blobs, PLAN)


def record_tasks(blobs: DurableBlobs, record: Mapping[str, Any]) -> None:
    """Write the figures of tasks; they replace earlier ones.

    Raises:
        StoreError: they cannot be written.
    """
    blobs.put(TASKS, encode(record, TASKS))


def tasks_in(blobs: DurableBlobs) -> dict[str, Any] | None:
    """Return the figures of tasks in a job's folder; as `plan_in`."""
    return _found(blobs, TASKS)


def record_details(blobs: DurableBlobs, record: Mapping[str, Any]) -> None:
    """Write user metrics and messages; they replace earlier ones.

    Raises:
        StoreError: they cannot be written.
    """
    blobs.put(DETAILS, encode(record, DETAILS))


def details_in(blobs: DurableBlobs) -> dict[str, Any] | None:
    """Return the user metrics and messages in a job's folder; as `plan_in`."""
    return _found(blobs, DETAILS)


def _found(blobs: DurableBlobs, name: str) -> dict[str, Any] | None:
    try:
        return decode(blobs.get(name), name)
    except MissingFileError:
        return None
    except ValueError as e:
        _LOG.warning("'%s' in '%s' is ignored: %s", name, blobs, e)
        return None
