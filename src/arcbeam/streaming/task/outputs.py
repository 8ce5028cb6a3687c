"""The files that a task writes: deltas of its shards, merged files, files of side inputs.

Owns how they are written. Must not know when: that is `task`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from typing_extensions import override

from arcbeam.model.files import ShardFile, SideFile
from arcbeam.sizes import threshold
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.manifest.values import ShardVersion
from arcbeam.store.shards.compaction import compact
from arcbeam.store.shards.overlay import Overlay
from arcbeam.streaming.interfaces import Files, Host, SideData
from arcbeam.streaming.task.sidemerging import join, latest

F = TypeVar("F")
T = TypeVar("T")

_PART_BYTES = threshold(1 << 20, 64)


@dataclass(frozen=True, slots=True)
class TaskStore(Files):
    """The files of a task; see `interfaces.Files`.

    Attributes:
        blobs: the job's folder.
        host: the copies of shards on the task's host.
        scratch: a local folder for temporary files.
        writers: how many files are written at the same time. Each waits for the store, or for the disk's sync.
    """

    blobs: DurableBlobs
    host: Host
    scratch: Path
    writers: int = 1

    @override
    def each(self, write: Callable[[F], T], things: Sequence[F]) -> list[T]:
        if self.writers == 1 or len(things) < 2:
            return [write(each) for each in things]
        with ThreadPoolExecutor(min(self.writers, len(things)), "write") as pool:
            return list(pool.map(write, things))

    @override
    def view(self, version: ShardVersion) -> Overlay:
        return self.host.view(self.blobs, version)

    @override
    def delta(self, version: ShardVersion, written: Written, view: Overlay, micro_batch: int) -> ShardFile | None:
        return self.host.publish(self.blobs, version, written, view, micro_batch)

    @override
    def merged(self, files: Sequence[ShardFile], first: int, written: Written) -> tuple[ShardFile, ...]:
        return compact(self.blobs, self.scratch, files, first, written)

    @override
    def side(self, written: Written, data: SideData) -> SideFile:
        name, content = written_name(written), data.data
        if isinstance(content, bytes):
            self.blobs.put(name, content)
            size, crc = len(content), crc32(content)
        else:
            self.blobs.put_file(name, content)
            size, crc = _measured(content)
            content.unlink(missing_ok=True)
        return SideFile(data.channel, data.shard, name, size, crc, data.until, written.micro_batch)

    @override
    def joined(self, written: Written, files: Sequence[SideFile], newest: bool) -> SideFile:
        path = self.scratch / f"side-{uuid.uuid4().hex}"
        try:
            join(self.blobs, path, files, newest)
            whole = self.side(written, SideData(written.place, written.shard, path, latest(files)))
        finally:
            path.unlink(missing_ok=True)
        return replace(whole, micro_batch=max(file.micro_batch for file in files))


def _measured(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a file."""
    size = crc = 0
    with open(path, "rb") as file:
        while part := file.read(_PART_BYTES):
            size, crc = size + len(part), crc32(part, crc)
    return size, crc
