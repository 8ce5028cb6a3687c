"""Files of frames: what is written comes back, what is damaged is told, what is not finished is not there."""

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
def test_frames_come_back(location: JobLocation, frames: list[bytes]) -> None:
    size = _written(location, frames)
    assert len(location.get_bytes("rows/a")) == size
    assert list(read_frames(location, "rows/a")) == frames
    assert list(read_frames(location, "rows/a")) == frames, "a file may be read again and again"
    assert not list(location.scratch_file().parent.iterdir())


def test_any_buffer_is_a_frame(location: JobLocation) -> None:
    writer = FrameFileWriter(location, "rows/a")
    writer.append(memoryview(struct.pack("<3I", 1, 2, 3)).cast("I"))
    writer.close()
    assert list(read_frames(location, "rows/a")) == [struct.pack("<3I", 1, 2, 3)]


def test_a_writer_that_is_dropped_leaves_nothing(location: JobLocation) -> None:
    writer = FrameFileWriter(location, "rows/a")
    writer.append(b"x" * (2 << 20))
    del writer
    gc.collect()
    assert location.list() == []
    assert not list(location.scratch_file().parent.iterdir())


def test_a_missing_file_is_lost(location: JobLocation) -> None:
    with pytest.raises(LostFileError, match="'rows/a' is missing") as lost:
        list(read_frames(location, "rows/a"))
    assert "--arcbeam_temp" in lost.value.remedy


def test_a_file_cut_off_anywhere_is_told(location: JobLocation) -> None:
    _written(location, [b"abc", b"defg"])
    whole = location.get_bytes("rows/a")
    for size in range(len(whole)):
        location.put_bytes("rows/cut", whole[:size])
        with pytest.raises(LostFileError, match="'rows/cut' is damaged"):
            list(read_frames(location, "rows/cut"))


def test_a_flipped_bit_in_any_byte_is_told(location: JobLocation) -> None:
    _written(location, [b"abc", b"defg"])
    whole = location.get_bytes("rows/a")
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        location.put_bytes("rows/damaged", bytes(damaged))
        with pytest.raises(LostFileError, match="'rows/damaged' is damaged"):
            list(read_frames(location, "rows/damaged"))


def test_a_newer_format_is_refused(location: JobLocation) -> None:
    start = struct.pack("<8sI", b"arcframe", framefile.VERSION + 1)
    location.put_bytes("rows/new", start + struct.pack("<I", crc32(start)))
    with pytest.raises(StoreError, match="format 2, this version of arcbeam reads up to 1") as refused:
        list(read_frames(location, "rows/new"))
    assert not isinstance(refused.value, LostFileError)
