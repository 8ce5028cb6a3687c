"""The file with the plan of a job, in its folder: what people see of its graph when no driver runs it.

Owns the format: a header as a manifest's, then JSON. It informs people; nothing that runs a job reads it, so an
unreadable file counts as none. Must not know what the record means.

    plan        of the driver that started last
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import MissingFileError
from arcbeam.store.manifest.framing import framed, unframed
from arcbeam.store.manifest.names import PLAN

_LOG = logging.getLogger("arcbeam.store")

VERSION = 1
_MAGIC = b"archplan"


def encode(record: Mapping[str, Any]) -> bytes:
    """Return the bytes of the file; the same for equal records."""
    payload = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
    return framed(_MAGIC, VERSION, payload)


def decode(data: bytes) -> dict[str, Any]:
    """Return the record.

    Raises:
        ValueError: it is torn or changed, or has another version; the text says which.
    """
    payload = unframed(_MAGIC, VERSION, data, "a plan")
    record = json.loads(payload)
    if not isinstance(record, dict):
        raise ValueError("its content is not a plan")
    return record


def leave_plan(blobs: DurableBlobs, record: Mapping[str, Any]) -> None:
    """Write the file; it replaces an earlier one.

    Raises:
        StoreError: it cannot be written.
    """
    blobs.put(PLAN, encode(record))


def plan_in(blobs: DurableBlobs) -> dict[str, Any] | None:
    """Return the record in a job's folder; None if there is none. An unreadable one is logged.

    Raises:
        StoreError: the store does not answer.
    """
    try:
        return decode(blobs.get(PLAN))
    except MissingFileError:
        return None
    except ValueError as e:
        _LOG.warning("'%s' in '%s' is ignored: %s", PLAN, blobs, e)
        return None
