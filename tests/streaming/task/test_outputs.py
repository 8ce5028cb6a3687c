"""Files of side inputs are written from bytes or from a local file."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from arcbeam.model.files import SideFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.log.verification import read_side_file
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.streaming.interfaces import SideData
from arcbeam.streaming.task.outputs import TaskStore
from arcbeam.testing.blobs import MemoryBlobs
from simulator.playing.hosts import MemoryHost


def test_side_file_from_bytes_equals_one_from_path(tmp_path: Path) -> None:
    content = b"some rows" * 200_000
    path = tmp_path / "side"
    path.write_bytes(content)
    blobs = MemoryBlobs()
    store = TaskStore(blobs, MemoryHost(tmp_path), tmp_path)
    for attempt, data in (("bytes", content), ("path", path)):
        written = Written(7, 1, 3, 2, attempt, "side")
        file = store.side(written, SideData(7, 1, data, Timestamp(9)))
        assert file == SideFile(7, 1, written_name(written), len(content), crc32(content), Timestamp(9), 3)
        parts: list[bytes] = []
        read_side_file(blobs, file, parts.append)
        assert b"".join(parts) == content
