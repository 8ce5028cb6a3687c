"""Files of frames: they are read back, damage is detected, unfinished files do not exist."""

from __future__ import annotations

import gc
import os
import struct
from pathlib import Path
from zlib import crc32

import pytest

from arcbeam.store.blobs.errors import LostFileError, StoreError
from arcbeam.store.jobtemp import framefile
from arcbeam.store.jobtemp.framefile import FrameFileWriter, read_frames
from arcbeam.store.jobtemp.location import JobLocation
from tests.store.backends import location_of


@pytest.fixture(params=["local", "hadoop", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> JobLocation:
    return location_of(request, tmp_path)


def _written(location: JobLocation, frames: list[bytes]) -> int:
    writer = FrameFileWriter(location, "rows/a")
    for frame in frames:
        writer.append(frame)
    assert not location.exists("rows/a")
    return writer.close()


@pytest.mark.parametrize(
    "frames",
    [[], [b""], [b"one", b"", b"two" * 100_000], [os.urandom(5 << 20), b"x"]],
    ids=["none", "empty", "3", "5M"],
)
def test_frames_are_read_back(location: JobLocation, frames: list[bytes]) -> None:
    size = _written(location, frames)
    assert len(location.get_bytes("rows/a")) == size
    assert list(read_frames(location, "rows/a")) == frames
    assert list(read_frames(location, "rows/a")) == frames, "a file may be read repeatedly"
    assert not list(location.scratch_file().parent.iterdir())


def test_any_buffer_is_a_frame(location: JobLocation) -> None:
    writer = FrameFileWriter(location, "rows/a")
    writer.append(memoryview(struct.pack("<3I", 1, 2, 3)).cast("I"))
    writer.close()
    assert list(read_frames(location, "rows/a")) == [struct.pack("<3I", 1, 2, 3)]


def test_dropped_writer_leaves_no_file(location: JobLocation) -> None:
    writer = FrameFileWriter(location, "rows/a")
    writer.append(b"x" * (2 << 20))
    del writer
    gc.collect()
    assert location.list() == []
    assert not list(location.scratch_file().parent.iterdir())


def test_missing_file_counts_as_lost(location: JobLocation) -> None:
    with pytest.raises(LostFileError, match="'rows/a'") as lost:
        list(read_frames(location, "rows/a"))
    assert "--arcbeam_temp" in lost.value.remedy


def test_truncated_file_is_detected(location: JobLocation) -> None:
    _written(location, [b"abc", b"defg"])
    whole = location.get_bytes("rows/a")
    for size in range(len(whole)):
        location.put_bytes("rows/cut", whole[:size])
        with pytest.raises(LostFileError, match="'rows/cut'"):
            list(read_frames(location, "rows/cut"))


def test_flipped_bit_in_any_byte_is_detected(location: JobLocation) -> None:
    _written(location, [b"abc", b"defg"])
    whole = location.get_bytes("rows/a")
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        location.put_bytes("rows/damaged", bytes(damaged))
        with pytest.raises(LostFileError, match="'rows/damaged'"):
            list(read_frames(location, "rows/damaged"))


def test_newer_format_is_refused(location: JobLocation) -> None:
    start = struct.pack("<8sI", b"arcframe", framefile.VERSION + 1)
    location.put_bytes("rows/new", start + struct.pack("<I", crc32(start)))
    with pytest.raises(StoreError, match=r"format 2, .* up to 1") as refused:
        list(read_frames(location, "rows/new"))
    assert not isinstance(refused.value, LostFileError)
