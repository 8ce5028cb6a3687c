"""The file with a job's figures over time, in its folder.

Owns the format: a header as a manifest's, then an Avro container with one record. It informs people; nothing that runs
a job reads it, so an unreadable file counts as none. Must not know what the figures mean.

    history     of the driver that wrote last: figures in three resolutions, and events
"""

from __future__ import annotations

import io
import logging
from dataclasses import asdict, dataclass
from typing import Any, cast

import fastavro

from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import MissingFileError
from arcbeam.store.manifest.framing import framed, unframed
from arcbeam.store.manifest.names import HISTORY

_LOG = logging.getLogger("arcbeam.store")

VERSION = 1
_MAGIC = b"archisto"
_MARKER = b"arcbeam history."
_STRINGS = {"type": "array", "items": "string"}
_CHUNK = {
    "type": "record",
    "name": "Chunk",
    "fields": [
        {"name": "points", "type": "long"},
        {"name": "job_columns", "type": _STRINGS},
        {"name": "stage_columns", "type": _STRINGS},
        {"name": "stages", "type": _STRINGS},
        {"name": "texts", "type": _STRINGS},
        {"name": "data", "type": "bytes"},
    ],
}
_RING = {
    "type": "record",
    "name": "Ring",
    "fields": [{"name": "width", "type": "long"}, {"name": "chunks", "type": {"type": "array", "items": _CHUNK}}],
}
_EVENT = {
    "type": "record",
    "name": "HistoryEvent",
    "fields": [
        {"name": "time", "type": "long"},
        {"name": "kind", "type": "string"},
        {"name": "text", "type": "string"},
    ],
}
_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "arcbeam.History",
        "fields": [
            {"name": "rings", "type": {"type": "array", "items": _RING}},
            {"name": "events", "type": {"type": "array", "items": _EVENT}},
        ],
    }
)
"""A new field needs a default. Figures are known by the names of their columns, so new ones need no new version."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive points of one resolution.

    Attributes:
        points: their number.
        job_columns, stage_columns: the names of the figures.
        stages: the stages.
        texts: the texts to which figures refer by number.
        data: compressed (zlib) 64-bit floats, little-endian: the times of all points; then for each point the job's
            figures; then for each point and stage the stage's figures.
    """

    points: int
    job_columns: tuple[str, ...]
    stage_columns: tuple[str, ...]
    stages: tuple[str, ...]
    texts: tuple[str, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event of a job: its time in microseconds since 1970, its kind, and a text for people."""

    time: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """The content of the file: for each resolution (microseconds a point) its chunks, and the events."""

    rings: tuple[tuple[int, tuple[Chunk, ...]], ...] = ()
    events: tuple[HistoryEvent, ...] = ()


def encode(history: StoredHistory) -> bytes:
    """Return the bytes of the file; the same for equal histories."""
    record = {
        "rings": [{"width": width, "chunks": [asdict(chunk) for chunk in chunks]} for width, chunks in history.rings],
        "events": [asdict(event) for event in history.events],
    }
    body = io.BytesIO()
    # The chunks are compressed already.
    fastavro.writer(body, _SCHEMA, [record], codec="null", sync_marker=_MARKER)
    payload = body.getvalue()
    return framed(_MAGIC, VERSION, payload)


def decode(data: bytes) -> StoredHistory:
    """Return the content of the file.

    Raises:
        ValueError: it is torn or changed, or has another version; the text says which.
    """
    payload = unframed(_MAGIC, VERSION, data, "a history")
    try:
        (found,) = fastavro.reader(io.BytesIO(payload), reader_schema=_SCHEMA)
        record = cast("dict[str, Any]", found)
        return StoredHistory(
            tuple((ring["width"], tuple(map(_chunk, ring["chunks"]))) for ring in record["rings"]),
            tuple(HistoryEvent(**event) for event in record["events"]),
        )
    except Exception as e:  # fastavro raises various errors
        raise ValueError(f"its content is not a history: {type(e).__name__}: {e}") from e


def _chunk(record: dict[str, Any]) -> Chunk:
    columns = tuple(record["job_columns"]), tuple(record["stage_columns"])
    return Chunk(record["points"], *columns, tuple(record["stages"]), tuple(record["texts"]), record["data"])


def record_history(blobs: DurableBlobs, history: StoredHistory) -> None:
    """Write the file; it replaces an earlier one.

    Raises:
        StoreError: it cannot be written.
    """
    blobs.put(HISTORY, encode(history))


def history_in(blobs: DurableBlobs) -> StoredHistory:
    """Return the history in a job's folder; an empty one if there is none. An unreadable one is logged.

    Raises:
        StoreError: the store does not answer.
    """
    try:
        return decode(blobs.get(HISTORY))
    except MissingFileError:
        return StoredHistory()
    except ValueError as e:
        _LOG.warning("'%s' in '%s' is ignored, and figures over time begin again: %s", HISTORY, blobs, e)
        return StoredHistory()
