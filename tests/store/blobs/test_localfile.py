"""Ranges of local files, from a kernel that returns less than requested."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from arcbeam.model.files import FileKind
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.blobs.localfile import read_range
from arcbeam.store.shards.shardfile import ShardFileReader, in_blocks, local_reader, write_shard_file

pytestmark = pytest.mark.contract("STORE-07")

_LIMIT = 1 << 16


@pytest.fixture
def little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit one read to 64 KB; Linux's limit is 2 GB."""
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, start: pread(fd, min(length, _LIMIT), start))


@pytest.mark.usefixtures("little_at_once")
def test_range_is_read_in_several_reads(tmp_path: Path) -> None:
    data = os.urandom(3 * _LIMIT + 7)
    blobs = FolderBlobs(tmp_path, sync=False)
    blobs.put("a/b", data)
    with open(tmp_path / "a/b", "rb") as file:
        for start, length in ((0, len(data)), (5, 2 * _LIMIT), (9, 10 * _LIMIT), (len(data), 1), (0, 0), (1, _LIMIT)):
            assert read_range(file.fileno(), start, length) == data[start : start + length]
            assert blobs.get_range("a/b", start, length) == data[start : start + length]


@pytest.mark.usefixtures("little_at_once")
def test_value_larger_than_one_read_is_read(tmp_path: Path) -> None:
    entries = [(b"k", os.urandom(2 * _LIMIT)), (b"l", b"v")]
    summary = write_shard_file(tmp_path / "f", FileKind.DELTA, in_blocks(entries))
    reader = ShardFileReader(local_reader(tmp_path / "f"), summary.size, summary.crc, "f", tmp_path)
    assert list(reader.scan()) == entries
