"""Merging files of a shard, and publishing new ones.

Owns the order of merging and when it is worth its cost (size-tiered). Must not know its callers in a micro-batch.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from arcbeam.model.files import FileKind, ShardFile
from arcbeam.sizes import threshold
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.private import make_folder
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.shards.shardfile import Block, ShardFileReader, Summary, write_shard_file

_MIN_FILES = threshold(4, 2)
"""A merge of fewer files is not worth its cost."""
_RATIO = 2


def opened(blobs: DurableBlobs, file: ShardFile) -> ShardFileReader:
    """Return the reader of a file that a manifest names."""
    return ShardFileReader(partial(blobs.get_range, file.name), file.size, file.crc, file.name, blobs)


def publish(
    blobs: DurableBlobs,
    scratch: Path,
    written: Written,
    blocks: Iterable[Block],
    *,
    first_micro_batch: int,
    last_micro_batch: int,
    keep: Path | None = None,
) -> ShardFile:
    """Write one file to the store, under its name. It counts only when a manifest names it.

    Args:
        blobs: the job's folder.
        scratch: a local folder.
        written: the content of its name; the kind is "delta" or "snapshot".
        blocks: of any size; distinct keys in ascending order.
        first_micro_batch: as in `ShardFile`.
        last_micro_batch: as in `ShardFile`.
        keep: a local name for a copy; None: no copy is kept here.

    Raises:
        StoreError: it cannot be written.
    """
    make_folder(scratch)
    path = scratch / uuid.uuid4().hex
    try:
        summary = write_shard_file(path, FileKind(written.kind), blocks)
        file = publish_file(blobs, path, summary, written, first_micro_batch, last_micro_batch)
        if keep is not None:
            path.replace(keep)
        return file
    except OSError as e:
        raise StoreError(
            f"shard file '{written_name(written)}' cannot be written in '{scratch}': {e}",
            "check that the disk has free space",
        ) from e
    finally:
        path.unlink(missing_ok=True)


def publish_file(
    blobs: DurableBlobs, path: Path, summary: Summary, written: Written, first_micro_batch: int, last_micro_batch: int
) -> ShardFile:
    """Write a complete local file to the store. See `publish`; `summary` is the content of the file.

    Raises:
        StoreError: it cannot be written.
    """
    name = written_name(written)
    blobs.put_file(name, path)
    return ShardFile(
        name=name,
        kind=FileKind(written.kind),
        size=summary.size,
        crc=summary.crc,
        entries=summary.entries,
        tombstones=summary.tombstones,
        first_key=summary.first_key,
        last_key=summary.last_key,
        first_micro_batch=first_micro_batch,
        last_micro_batch=last_micro_batch,
        owned=summary.owned,
    )


def merged(sources: Sequence[Iterable[Block]], *, bottom: bool) -> Iterator[Block]:
    """Merge several sorted sources. If several have a key, only the newest entry is kept.

    Memory: a block of each source.

    Args:
        sources: the oldest first.
        bottom: there are no older sources: deleted keys are omitted.
    """
    for keys, values in _newest(sources):
        if bottom and None in values:
            live = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
            keys, values = [key for key, _ in live], [value for _, value in live]
        if keys:
            yield keys, values


def _newest(sources: Sequence[Iterable[Block]]) -> Iterator[Block]:
    """Merge in parts, by loops in C. Each part ends at the smallest last key of the sources' current blocks: up to it,
    all sources have their entries in memory.
    """
    heads = [head for source in sources if (head := _Head(source)).keys]
    while len(heads) > 1:
        limit = min(head.keys[-1] for head in heads)
        parts = [part for head in heads if (part := head.taken(limit))[0]]
        if len(parts) == 1:
            yield parts[0]
        else:
            entries: dict[bytes, bytes | None] = {}
            for keys, values in parts:
                entries.update(zip(keys, values, strict=True))
            together = sorted(entries)
            yield together, [entries[key] for key in together]
        heads = [head for head in heads if head.keys]
    for head in heads:
        yield from head.rest()


class _Head:
    """The current block of a source, and the position in it. Empty at the source's end."""

    def __init__(self, source: Iterable[Block]) -> None:
        self._blocks = iter(source)
        self._read()

    def _read(self) -> None:
        self.keys, self._values = next(self._blocks, ([], []))
        self._at = 0

    def taken(self, limit: bytes) -> Block:
        """Return the entries of the current block up to and including a key."""
        start, keys, values = self._at, self.keys, self._values
        self._at = end = bisect_right(keys, limit, start)
        if end == len(keys):
            self._read()
        return keys[start:end], values[start:end]

    def rest(self) -> Iterator[Block]:
        """Yield all remaining blocks."""
        yield self.keys[self._at :], self._values[self._at :]
        yield from self._blocks


def scan(
    blobs: DurableBlobs, files: Sequence[ShardFile], start: bytes = b"", end: bytes | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries in the files of a shard (the oldest first) between two keys."""
    return entries([opened(blobs, file).blocks(start, end) for file in files])


def entries(sources: Sequence[Iterable[Block]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of all sources of a shard (the oldest first), which are sorted."""
    for keys, values in merged(sources, bottom=True):
        # Deleted keys are omitted, so each has a value.
        yield from zip(keys, cast("list[bytes]", values), strict=True)


class HasSize(Protocol):
    """A file, or another object with a size."""

    @property
    def size(self) -> int:
        """In bytes."""


def worth_merging(files: Sequence[HasSize], fewest: int = _MIN_FILES) -> int | None:
    """Return the first of a shard's files (the oldest first) to merge with all later ones; None: do not merge now.

    Size-tiered: from the newest on, files join while they are at most twice as large as the joined ones. They are
    merged if there are at least `fewest`. So an entry is rewritten, and files remain, a number of times logarithmic in
    the size of the shard. A large snapshot is rewritten only when the newer deltas have reached half its size.

    Args:
        files: of the shard.
        fewest: smallest number of files to merge.
    """
    first, size = len(files), 0
    while first and (not size or files[first - 1].size <= _RATIO * size):
        first -= 1
        size += files[first].size
    return first if len(files) - first >= fewest else None


def compact(
    blobs: DurableBlobs, scratch: Path, files: Sequence[ShardFile], first: int, written: Written
) -> tuple[ShardFile, ...]:
    """Merge the files from `first` on into one; return the resulting list of files.

    A merge with the oldest file gives a snapshot, without deleted keys. Any other keeps deleted keys, because an older
    file may contain what they delete.

    Args:
        blobs: the job's folder.
        scratch: a local folder.
        files: of the shard, the oldest first.
        first: see `worth_merging`.
        written: level, shard, micro-batch, epoch and attempt for the name of the new file; this function sets the kind.
    """
    run = files[first:]
    kind = FileKind.DELTA if first else FileKind.SNAPSHOT
    name = Written(written.place, written.shard, written.micro_batch, written.epoch, written.attempt, str(kind))
    blocks = merged([opened(blobs, file).blocks() for file in run], bottom=not first)
    first_micro_batch = run[0].first_micro_batch if first else 0
    new = publish(
        blobs, scratch, name, blocks, first_micro_batch=first_micro_batch, last_micro_batch=run[-1].last_micro_batch
    )
    return (*files[:first], new)
