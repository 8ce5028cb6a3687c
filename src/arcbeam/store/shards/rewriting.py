"""Rewriting the shards of a level as other shards.

Owns the new files, and the rows until they are written. Must not know which shard a row belongs to.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from arcbeam.model.files import FileKind, Shard, ShardFile
from arcbeam.sizes import threshold
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.private import make_folder
from arcbeam.store.manifest.names import Written
from arcbeam.store.shards.compaction import merged, publish, scan
from arcbeam.store.shards.shardfile import Block, ShardFileReader, local_reader, write_shard_file

ATTEMPT: Final = "rescaled"
"""The attempt in the names of such files."""
_MEMORY: Final = threshold(64 << 20, 512)
"""Rows of this many bytes are in memory, over all new shards; others are in local files."""
_OVERHEAD: Final = 160
"""The approximate bytes of a row's objects in memory, besides its data."""


@dataclass(frozen=True, slots=True)
class ShardRows:
    """The rows in the files of a shard.

    Attributes:
        blobs: the job's folder.
        files: the shard's files, the oldest first.
    """

    blobs: DurableBlobs
    files: Sequence[ShardFile]

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with start <= key < end, ascending; to the last one if `end` is None."""
        return scan(self.blobs, self.files, start, end)


@dataclass(slots=True)
class _New:
    """A new shard: rows in memory, and sorted local files."""

    rows: list[tuple[bytes, bytes]] = field(default_factory=list)
    parts: list[tuple[Path, int]] = field(default_factory=list)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows in memory in order, as one block."""
        if self.rows:
            # Keys are distinct: values are never compared.
            self.rows.sort()
            yield [key for key, _ in self.rows], [value for _, value in self.rows]


class LevelWriter:
    """Collects the rows of a level's new shards, which come in any order, each once. Use it as a context manager.

    Args:
        blobs: the job's folder.
        scratch: a local folder for as many bytes as the level has.
        level: the level.
        shards: the number of new shards.
    """

    def __init__(self, blobs: DurableBlobs, scratch: Path, level: int, shards: int) -> None:
        self._blobs, self._level = blobs, level
        self._scratch = scratch / f"rescaled-{uuid.uuid4().hex}"
        self._new = [_New() for _ in range(shards)]
        self._add = [new.rows.append for new in self._new]
        self._size = 0

    def __enter__(self) -> LevelWriter:
        """Return this."""
        return self

    def __exit__(self, *error: object) -> None:
        """Remove local files."""
        for new in self._new:
            for path, _ in new.parts:
                path.unlink(missing_ok=True)
        if self._scratch.is_dir():
            self._scratch.rmdir()

    def put(self, shard: int, key: bytes, value: bytes) -> None:
        """Put a row into a new shard.

        Raises:
            StoreError: a local file cannot be written.
        """
        self._add[shard]((key, value))
        self._size += len(key) + len(value) + _OVERHEAD
        if self._size > _MEMORY:
            self._spill()

    def _spill(self) -> None:
        try:
            make_folder(self._scratch)
            for new in self._new:
                if new.rows:
                    path = self._scratch / uuid.uuid4().hex
                    new.parts.append((path, write_shard_file(path, FileKind.DELTA, new.blocks()).size))
                    new.rows.clear()
        except OSError as e:
            raise StoreError(f"'{self._scratch}' cannot be written: {e}", "check that the disk has free space") from e
        self._size = 0

    def written(self, micro_batch: int, epoch: int) -> Iterator[Shard]:
        """Write the files of the opening of a micro-batch: a snapshot for each new shard with rows.

        Raises:
            StoreError: a file cannot be written.
        """
        for shard, new in enumerate(self._new):
            if not new.rows and not new.parts:
                continue
            readers = (
                ShardFileReader(local_reader(path), size, None, str(path), self._scratch) for path, size in new.parts
            )
            blocks = merged([*(reader.blocks() for reader in readers), new.blocks()], bottom=True)
            name = Written(self._level, shard, micro_batch, epoch, ATTEMPT, str(FileKind.SNAPSHOT))
            # SUBTLE: it contains the opening's micro-batch, so that no host's older copy of this shard is taken for it.
            file = publish(self._blobs, self._scratch, name, blocks, first_micro_batch=0, last_micro_batch=micro_batch)
            new.rows.clear()
            yield Shard(self._level, shard, (file,))
