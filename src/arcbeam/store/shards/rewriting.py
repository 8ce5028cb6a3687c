"""Rewriting the shards of a level as other shards.

Owns the new files, and the rows until they are written. Several processes can share the work: each collects some rows
and leaves them in local files, `merge` makes a new shard of them. Must not know which shard a row belongs to, nor the
processes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from arcbeam.model.files import FileKind, Shard, ShardFile
from arcbeam.sizes import threshold
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.private import make_folder, open_new
from arcbeam.store.manifest.names import Written
from arcbeam.store.shards.compaction import entries, merged, publish, publish_file, scan
from arcbeam.store.shards.shardfile import Block, ShardFileReader, Summary, local_reader, write_shard_file

ATTEMPT: Final = "rescaled"
"""The attempt in the names of such files."""
_MEMORY: Final = threshold(64 << 20, 512)
"""Rows of this many bytes are in memory, over all new shards; others are in local files."""
_COPIED_BYTES: Final = threshold(8 << 20)
_OVERHEAD: Final = 160
"""The approximate bytes of a row's objects in memory, besides its data."""


Merging = Callable[[Mapping[int, Sequence["SortedFile"]]], Iterable[tuple[int, Path, Summary]]]
"""Merges the files of each new shard; yields shard, new local file and its content. It removes the merged files."""


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


@dataclass(frozen=True, slots=True)
class LocalRows:
    """The rows of a shard in local copies of its files.

    Attributes:
        folder: has the copies.
        files: the shard's files, the oldest first.
    """

    folder: Path
    files: Sequence[ShardFile]

    @staticmethod
    def copied(rows: ShardRows, folder: Path) -> LocalRows:
        """Copy the files of a shard.

        Raises:
            StoreError: a file cannot be read or written.
        """
        copies = LocalRows(folder, rows.files)
        try:
            make_folder(folder)
            for file, path in copies._paths():
                with open_new(path, _COPIED_BYTES) as copy:
                    for start in range(0, file.size, _COPIED_BYTES):
                        copy.write(rows.blobs.get_range(file.name, start, min(_COPIED_BYTES, file.size - start)))
        except OSError as e:
            raise _unwritable(folder, e) from e
        return copies

    def _paths(self) -> Iterator[tuple[ShardFile, Path]]:
        return ((file, self.folder / str(number)) for number, file in enumerate(self.files))

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows between two keys, ascending, as `ShardRows` does."""
        readers = (
            ShardFileReader(local_reader(path), file.size, file.crc, file.name, self.folder)
            for file, path in self._paths()
        )
        return entries([reader.blocks(start, end) for reader in readers])

    def remove(self) -> None:
        """Remove the copies."""
        for _, path in self._paths():
            path.unlink(missing_ok=True)
        self.folder.rmdir()


@dataclass(frozen=True, slots=True)
class SortedFile:
    """A sorted local file with rows of a new shard: its path, and its size in bytes."""

    path: Path
    size: int

    def blocks(self) -> Iterator[Block]:
        """Yield the rows."""
        return ShardFileReader(local_reader(self.path), self.size, None, str(self.path), self.path.parent).blocks()


def merge(parts: Sequence[SortedFile], path: Path) -> Summary:
    """Merge files of a new shard into a snapshot, a new local file. Their keys are distinct.

    Raises:
        StoreError: the file cannot be written.
    """
    try:
        return write_shard_file(path, FileKind.SNAPSHOT, merged([part.blocks() for part in parts], bottom=True))
    except OSError as e:
        raise _unwritable(path, e) from e


@dataclass(slots=True)
class _New:
    """A new shard: rows in memory, and sorted local files."""

    rows: list[tuple[bytes, bytes]] = field(default_factory=list)
    parts: list[SortedFile] = field(default_factory=list)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows in memory in order, as one block."""
        if self.rows:
            # Keys are distinct: values are never compared.
            self.rows.sort()
            yield [key for key, _ in self.rows], [value for _, value in self.rows]


class LevelWriter:
    """Collects the rows of a level's new shards, which come in any order, each once. Use it as a context manager.

    Args:
        scratch: a local folder for as many bytes as the level has.
        level: the level.
        shards: the number of new shards.
    """

    def __init__(self, scratch: Path, level: int, shards: int) -> None:
        self._level = level
        self._scratch = scratch / f"rescaled-{uuid.uuid4().hex}"
        self._new = [_New() for _ in range(shards)]
        self._add = [new.rows.append for new in self._new]
        self._size = 0

    def __enter__(self) -> LevelWriter:
        """Return this."""
        return self

    def __exit__(self, *error: object) -> None:
        """Remove local files, but not those that `take_files` has returned."""
        for new in self._new:
            for part in new.parts:
                part.path.unlink(missing_ok=True)
        if self._scratch.is_dir() and not any(self._scratch.iterdir()):
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

    def take_files(self) -> list[list[SortedFile]]:
        """Return the files with all rows, for each new shard: they are the caller's."""
        self._spill()
        parts = [new.parts for new in self._new]
        for new in self._new:
            new.parts = []
        return parts

    def adopt(self, parts: Sequence[Sequence[SortedFile]]) -> None:
        """Add the files of each new shard that another writer has left."""
        for new, more in zip(self._new, parts, strict=True):
            new.parts += more

    def _spill(self) -> None:
        try:
            make_folder(self._scratch)
            for new in self._new:
                if new.rows:
                    path = self._scratch / uuid.uuid4().hex
                    new.parts.append(SortedFile(path, write_shard_file(path, FileKind.DELTA, new.blocks()).size))
                    new.rows.clear()
        except OSError as e:
            raise _unwritable(self._scratch, e) from e
        self._size = 0

    def written(
        self, blobs: DurableBlobs, micro_batch: int, epoch: int, merging: Merging | None = None
    ) -> Iterator[Shard]:
        """Write the files of the opening of a micro-batch: a snapshot for each new shard with rows.

        Args:
            blobs: the job's folder.
            micro_batch: its number.
            epoch: its epoch.
            merging: merges the files of several shards, perhaps concurrently; None: `written` does that itself.

        Raises:
            StoreError: a file cannot be written.
        """
        if merging is not None:
            for shard, path, summary in merging({shard: each for shard, each in enumerate(self.take_files()) if each}):
                named = self._named(shard, micro_batch, epoch)
                yield Shard(self._level, shard, (publish_file(blobs, path, summary, named, 0, micro_batch),))
                path.unlink()
            return
        for shard, new in enumerate(self._new):
            if not new.rows and not new.parts:
                continue
            blocks = merged([*(part.blocks() for part in new.parts), new.blocks()], bottom=True)
            name = self._named(shard, micro_batch, epoch)
            # SUBTLE: it contains the opening's micro-batch, so that no host's older copy of this shard is taken for it.
            file = publish(blobs, self._scratch, name, blocks, first_micro_batch=0, last_micro_batch=micro_batch)
            new.rows.clear()
            yield Shard(self._level, shard, (file,))

    def _named(self, shard: int, micro_batch: int, epoch: int) -> Written:
        return Written(self._level, shard, micro_batch, epoch, ATTEMPT, str(FileKind.SNAPSHOT))


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"'{path}' cannot be written: {error}", "check that the disk has free space")
