"""Manifests as bytes: all versions are read; damaged or too new ones are refused."""

from __future__ import annotations

import io
import struct
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch
from zlib import crc32

import fastavro
import pytest

from arcbeam.model.commits import CommitMode, Committable
from arcbeam.model.files import FileKind, Owned, Shard, ShardFile, SideFile
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import DamagedFileError, NewerFormatError
from arcbeam.store.manifest.manifestfile import VERSION, ManifestWriter, decode, encode
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
from tests.store.samples import read_head

GOLDEN = Path(__file__).parent / "golden" / "manifest-1"
"""Written by `encode(MANIFEST)` when the format had version 1. After its release it must never be written again."""

MANIFEST = Manifest(
    job="3e6f",
    micro_batch=42,
    epoch=3,
    token="t42",
    parent="t41",
    kind=ManifestKind.MICRO_BATCH,
    mode=CommitMode.DRAINING,
    time=Timestamp(1_700_000_000_123_456),
    attempts_digest=b"\x00\xff",
    shape=JobShape("digest", 16, (StageShape("words/count", 1, "cells-7"), StageShape("read", 0, ""))),
    watermarks=(
        StageWatermarks("read", MAX_TIMESTAMP, Timestamp(-1), (OutputWatermark("", MIN_TIMESTAMP),)),
        StageWatermarks("words/count", Timestamp(1), Timestamp(0), ()),
    ),
    shards=(
        Shard(
            1,
            7,
            (
                ShardFile("shards/1/7/a", FileKind.SNAPSHOT, 1 << 40, (1 << 32) - 1, 5, 0, b"a", b"\xff" * 600, 0, 40),
                ShardFile("shards/1/7/b", FileKind.DELTA, 9, 0, 0, 3, b"", b"", 41, 42),
            ),
        ),
    ),
    side_files=(
        SideFile(4, 2, "side/4/2/x", 99, (1 << 32) - 1, None, 41),
        SideFile(5, 0, "y", 1, 0, Timestamp(-1), 42),
    ),
    holds=(HoldSummary("words/count", 12, Timestamp(-5), "state 'buffer' of a key"),),
    residuals=(ResidualSummary("read", 2, 0.5, Timestamp(7)),),
    committables=(Committable("write", b"\x00part"),),
    progress=b"opaque",
    pins=(Pin("before the change", 40, Timestamp(3)),),
    abandoned=(Abandoned(11, 20),),
    openings=(Opening(0, "first"), Opening(21, "second")),
    job_graph="job_graphs/00000003-ab",
    snapshot=b"stages",
)


def test_manifest_is_read_back() -> None:
    assert decode(encode(MANIFEST), "m", "here") == MANIFEST
    file = ShardFile(
        "shards/1/7/b", FileKind.DELTA, 9, 0, 3, 1, b"", b"", 41, 42, (Owned(b"\0\1", 3, 9), Owned(b"", 0, 1))
    )
    owned = replace(MANIFEST, shards=(Shard(1, 7, (file,)),))
    assert decode(encode(owned), "m", "here") == owned
    counted = replace(MANIFEST, committed=30, abandoned=(Abandoned(11, 20, 9),))
    assert decode(encode(counted), "m", "here") == counted


def test_shards_that_have_not_changed_are_not_encoded_again() -> None:
    writer, shard = ManifestWriter(), MANIFEST.shards[0]
    assert writer.encode(MANIFEST) == encode(MANIFEST)
    other = replace(MANIFEST, micro_batch=7, shards=(*MANIFEST.shards, replace(shard, level=99, files=())))
    whole = encode(other)
    assert writer.encode(other) == whole
    with patch("arcbeam.store.manifest.manifestfile._file_to_record", side_effect=AssertionError):
        assert writer.encode(other) == whole
    changed = replace(other, shards=(replace(shard, files=()), *other.shards[1:]))
    assert decode(writer.encode(changed), "m", "here") == changed


@pytest.mark.contract("STORE-05")
def test_version_1_is_read() -> None:
    assert decode(GOLDEN.read_bytes(), "m", "here") == MANIFEST


def test_manifest_is_avro_after_its_header() -> None:
    (record,) = fastavro.reader(io.BytesIO(encode(MANIFEST)[28:]))
    assert record["shards"][0]["files"][1]["tombstones"] == 3  # type: ignore[index,call-overload]


def test_truncated_file_is_detected() -> None:
    whole = encode(MANIFEST)
    for size in range(0, len(whole), 7):
        with pytest.raises(DamagedFileError, match="'m/1' in 's3://x'"):
            decode(whole[:size], "m/1", "s3://x")


def test_flipped_bit_is_detected() -> None:
    whole = encode(MANIFEST)
    for at in [*range(8 * 28), *range(8 * 28, 8 * len(whole), 61)]:
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << (at % 8)
        with pytest.raises(DamagedFileError, match="'m' in 'here'") as damage:
            decode(bytes(damaged), "m", "here")
        assert damage.value.remedy


def test_newer_format_is_refused() -> None:
    start = struct.pack("<8sIQI", b"arcmanif", VERSION + 1, 0, 0)
    with pytest.raises(NewerFormatError, match=r"'m' in 'here' .* 2; .* 1\n"):
        decode(start + struct.pack("<I", crc32(start)), "m", "here")


def test_valid_header_with_other_content_is_damage() -> None:
    for payload in (b"", b"Obj\x01", b"not avro"):
        start = struct.pack("<8sIQI", b"arcmanif", VERSION, len(payload), crc32(payload))
        with pytest.raises(DamagedFileError, match=r"'m' in 'here'.*Error"):
            decode(start + struct.pack("<I", crc32(start)) + payload, "m", "here")


def test_manifest_of_another_micro_batch_is_damage(memory: DurableBlobs) -> None:
    memory.put("manifests/000000000000", encode(replace(MANIFEST, micro_batch=1)))
    with pytest.raises(DamagedFileError, match=r"'manifests/000000000000' in 'memory://' .* 1\n"):
        read_head(memory)
