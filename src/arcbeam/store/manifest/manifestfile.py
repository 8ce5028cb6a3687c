"""A manifest as bytes, and back.

Owns the format. A header of 28 bytes, little-endian: magic, version of the format (u32), length (u64) and CRC (u32) of
the rest, CRC of the header (u32). Then an Avro container with one record and its schema. Any Avro tool reads the
container, and a later version of arcbeam reads it by Avro's rules for extended schemas. Why Avro:
docs/developers/decisions/2026-11-21-avro-manifests.md.
"""

from __future__ import annotations

import hashlib
import io
import struct
from dataclasses import asdict
from typing import Any, NamedTuple, cast
from zlib import crc32

import fastavro

from arcbeam.model.commits import CommitMode, Committable
from arcbeam.model.files import FileKind, Owned, Shard, ShardFile, SideFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.errors import DamagedFileError, NewerFormatError
from arcbeam.store.manifest.values import (
    Abandoned,
    HoldSummary,
    JobShape,
    Manifest,
    ManifestKind,
    Opening,
    OutputWatermark,
    Pin,
    ResidualSummary,
    StageShape,
    StageWatermarks,
)

VERSION = 1
_MAGIC = b"arcmanif"
_HEADER = struct.Struct("<8sIQII")
_CRC_BYTES = 4


def _record(name: str, /, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


_STAGE_WATERMARKS = _record(
    "StageWatermarks",
    stage="string",
    upstream="long",
    input="long",
    outputs=_array(_record("OutputWatermark", output="string", watermark="long")),
)
_SHARD_FILE = _record(
    "ShardFile",
    name="string",
    kind="string",
    size="long",
    crc="long",
    entries="long",
    tombstones="long",
    first_key="bytes",
    last_key="bytes",
    first_micro_batch="long",
    last_micro_batch="long",
    owned=_array(_record("Owned", owner="bytes", entries="long", size="long")),
)
_SHARD = _record("Shard", level="long", shard="long", files=_array(_SHARD_FILE))
_SIDE_FILE = _record(
    "SideFile",
    channel="long",
    shard="long",
    name="string",
    size="long",
    crc="long",
    until=["null", "long"],
    micro_batch="long",
)
_SHAPE = _record(
    "JobShape",
    plan="string",
    shards="long",
    stages=_array(_record("StageShape", stage="string", level="long", shape="string")),
)
_MANIFEST = _record(
    "arcbeam.Manifest",
    job="string",
    micro_batch="long",
    epoch="long",
    token="string",
    parent="string",
    kind="string",
    mode="string",
    time="long",
    attempts_digest="bytes",
    shape=_SHAPE,
    watermarks=_array(_STAGE_WATERMARKS),
    shards=_array(_SHARD),
    side_files=_array(_SIDE_FILE),
    holds=_array(_record("HoldSummary", stage="string", count="long", earliest="long", what="string")),
    residuals=_array(_record("ResidualSummary", stage="string", live="long", size="double", next_due="long")),
    committables=_array(_record("Committable", stage="string", payload="bytes")),
    progress="bytes",
    pins=_array(_record("Pin", name="string", micro_batch="long", time="long")),
    abandoned=_array(_record("Abandoned", first="long", last="long", committed="long")),
    openings=_array(_record("Opening", micro_batch="long", token="string")),
    job_graph="string",
    snapshot="bytes",
    committed="long",
)
_SCHEMA = fastavro.parse_schema(_MANIFEST)
"""Times are microseconds since 1970. A field that is added after a release needs a default here. A new `VERSION` is
needed if the meaning of a field changes, or if an old reader must not ignore a new one."""

# A record's bytes are those of its fields, one after the other.
_AT = [of["name"] for of in _MANIFEST["fields"]].index("shards")
_BEFORE, _AFTER = (
    fastavro.parse_schema({**_MANIFEST, "fields": some})
    for some in (_MANIFEST["fields"][:_AT], _MANIFEST["fields"][_AT + 1 :])
)
_OF_A_SHARD = fastavro.parse_schema(_SHARD)
_OF_A_NUMBER = fastavro.parse_schema("long")


class ManifestWriter:
    """Encodes the manifests of a job one after the other. Shards that have not changed are not encoded again."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Shard, bytes]] = {}

    def encode(self, manifest: Manifest) -> bytes:
        """Return the bytes of a manifest; the same for equal manifests."""
        record, content = _to_record(manifest), io.BytesIO()
        fastavro.schemaless_writer(content, _BEFORE, record)
        if manifest.shards:
            fastavro.schemaless_writer(content, _OF_A_NUMBER, len(manifest.shards))
            content.writelines(map(self._shard, manifest.shards))
        fastavro.schemaless_writer(content, _OF_A_NUMBER, 0)
        fastavro.schemaless_writer(content, _AFTER, record)
        body = io.BytesIO()
        marker = hashlib.md5(f"{manifest.job}/{manifest.micro_batch}".encode(), usedforsecurity=False).digest()
        writer: Any = fastavro.write.Writer(body, _SCHEMA, codec="deflate", compression_level=1, sync_marker=marker)
        writer.write_block(_Block(1, content))
        writer.flush()
        payload = body.getvalue()
        start = _HEADER.pack(_MAGIC, VERSION, len(payload), crc32(payload), 0)[:-_CRC_BYTES]
        return start + struct.pack("<I", crc32(start)) + payload

    def _shard(self, shard: Shard) -> bytes:
        place = shard.level, shard.shard
        known = self._known.get(place)
        if known is None or known[0] is not shard:
            content = io.BytesIO()
            record = {"level": shard.level, "shard": shard.shard, "files": [_file_to_record(f) for f in shard.files]}
            fastavro.schemaless_writer(content, _OF_A_SHARD, record)
            known = self._known[place] = shard, content.getvalue()
        return known[1]


class _Block(NamedTuple):
    """What `fastavro` compresses and writes: a number of records, and their bytes."""

    num_records: int
    bytes_: io.BytesIO


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of a single manifest; see `ManifestWriter`."""
    return ManifestWriter().encode(manifest)


def decode(data: bytes, name: str, where: object) -> Manifest:
    """Return the manifest in bytes.

    Args:
        data: all bytes of a file.
        name: of the file, for errors.
        where: its store.

    Raises:
        DamagedFileError: cut off, changed, or not a manifest.
        NewerFormatError: written by a newer version.
    """
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise _damaged(name, where, "it does not begin as a manifest")
    _, version, length, crc, header_crc = _HEADER.unpack_from(data)
    if header_crc != crc32(data[: _HEADER.size - _CRC_BYTES]):
        raise _damaged(name, where, "its header was changed")
    if version > VERSION:
        raise NewerFormatError(
            f"manifest '{name}' in '{where}' has format {version}; this version of arcbeam reads up to {VERSION}",
            "nothing was changed: use the version of arcbeam that wrote it, or a newer one",
        )
    payload = data[_HEADER.size :]
    if len(payload) != length:
        raise _damaged(name, where, f"it has {len(payload)} of {length} bytes")
    if crc32(payload) != crc:
        raise _damaged(name, where, "its content was changed")
    try:
        (record,) = fastavro.reader(io.BytesIO(payload), reader_schema=_SCHEMA)
        return _from_record(cast("dict[str, Any]", record))
    except Exception as e:  # fastavro raises various errors: EOFError, ValueError, KeyError, SchemaResolutionError, …
        raise _damaged(name, where, f"its content is not a manifest: {type(e).__name__}: {e}") from e


def _damaged(name: str, where: object, what: str) -> DamagedFileError:
    return DamagedFileError(
        f"manifest '{name}' in '{where}' is damaged: {what}",
        "nothing was changed: restore the file from a backup, or resume from a savepoint of the job",
    )


def _to_record(manifest: Manifest) -> dict[str, Any]:
    """Return the fields of the record without those of shards."""
    return {
        "job": manifest.job,
        "micro_batch": manifest.micro_batch,
        "epoch": manifest.epoch,
        "token": manifest.token,
        "parent": manifest.parent,
        "kind": str(manifest.kind),
        "mode": str(manifest.mode),
        "time": manifest.time,
        "attempts_digest": manifest.attempts_digest,
        "shape": {
            "plan": manifest.shape.plan,
            "shards": manifest.shape.shards,
            "stages": [{"stage": s.stage, "level": s.level, "shape": s.shape} for s in manifest.shape.stages],
        },
        "watermarks": [
            {
                "stage": w.stage,
                "upstream": w.upstream,
                "input": w.input,
                "outputs": [{"output": o.output, "watermark": o.watermark} for o in w.outputs],
            }
            for w in manifest.watermarks
        ],
        "side_files": [asdict(f) for f in manifest.side_files],
        "holds": [{"stage": h.stage, "count": h.count, "earliest": h.earliest, "what": h.what} for h in manifest.holds],
        "residuals": [
            {"stage": r.stage, "live": r.live, "size": r.size, "next_due": r.next_due} for r in manifest.residuals
        ],
        "committables": [{"stage": c.stage, "payload": c.payload} for c in manifest.committables],
        "progress": manifest.progress,
        "pins": [{"name": p.name, "micro_batch": p.micro_batch, "time": p.time} for p in manifest.pins],
        "abandoned": [{"first": a.first, "last": a.last, "committed": a.committed} for a in manifest.abandoned],
        "openings": [{"micro_batch": o.micro_batch, "token": o.token} for o in manifest.openings],
        "job_graph": manifest.job_graph,
        "snapshot": manifest.snapshot,
        "committed": manifest.committed,
    }


def _file_to_record(file: ShardFile) -> dict[str, Any]:
    return {
        "name": file.name,
        "kind": str(file.kind),
        "size": file.size,
        "crc": file.crc,
        "entries": file.entries,
        "tombstones": file.tombstones,
        "first_key": file.first_key,
        "last_key": file.last_key,
        "first_micro_batch": file.first_micro_batch,
        "last_micro_batch": file.last_micro_batch,
        "owned": [{"owner": of.owner, "entries": of.entries, "size": of.size} for of in file.owned],
    }


def _from_record(record: dict[str, Any]) -> Manifest:
    shape = record["shape"]
    return Manifest(
        job=record["job"],
        micro_batch=record["micro_batch"],
        epoch=record["epoch"],
        token=record["token"],
        parent=record["parent"],
        kind=ManifestKind(record["kind"]),
        mode=CommitMode(record["mode"]),
        time=Timestamp(record["time"]),
        attempts_digest=record["attempts_digest"],
        shape=JobShape(shape["plan"], shape["shards"], tuple(StageShape(**s) for s in shape["stages"])),
        watermarks=tuple(
            StageWatermarks(
                w["stage"], w["upstream"], w["input"], tuple(OutputWatermark(**output) for output in w["outputs"])
            )
            for w in record["watermarks"]
        ),
        shards=tuple(
            Shard(s["level"], s["shard"], tuple(_file_from_record(f) for f in s["files"])) for s in record["shards"]
        ),
        side_files=tuple(SideFile(**f) for f in record["side_files"]),
        holds=tuple(HoldSummary(**h) for h in record["holds"]),
        residuals=tuple(ResidualSummary(**r) for r in record["residuals"]),
        committables=tuple(Committable(**c) for c in record["committables"]),
        progress=record["progress"],
        pins=tuple(Pin(**p) for p in record["pins"]),
        abandoned=tuple(Abandoned(**a) for a in record["abandoned"]),
        openings=tuple(Opening(**o) for o in record["openings"]),
        job_graph=record["job_graph"],
        snapshot=record["snapshot"],
        committed=record["committed"],
    )


def _file_from_record(record: dict[str, Any]) -> ShardFile:
    owned = tuple(Owned(**of) for of in record["owned"])
    return ShardFile(**{**record, "kind": FileKind(record["kind"]), "owned": owned})
