"""The store in memory has no faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from arcbeam.store.blobs.errors import MissingFileError
from arcbeam.testing.blobs import MemoryBlobs


def test_name_is_created_once() -> None:
    blobs, data = MemoryBlobs(), b"x"
    assert blobs.create("a/b", data)
    assert not blobs.create("a/b", data)
    assert blobs.get_range("a/b", 0, 9) == b"x"


def test_list_is_sorted_and_of_one_folder(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    (tmp_path / "file").write_bytes(b"abc")
    blobs.put_file("a/2", tmp_path / "file")
    for name in ("a/3", "a/1", "ab/1"):
        blobs.put(name, b"")
    assert [(info.name, info.size) for info in blobs.list("a")] == [("a/1", 0), ("a/2", 3), ("a/3", 0)]
    assert [info.name for info in blobs.list("a", after="a/1")] == ["a/2", "a/3"]
    blobs.delete("a/2")
    blobs.delete("a/2")
    with pytest.raises(MissingFileError):
        blobs.get("a/2")
    with pytest.raises(ValueError, match=r"'\.a'"):
        blobs.put(".a", b"")
