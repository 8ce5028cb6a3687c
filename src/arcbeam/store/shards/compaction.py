"""Putting files of a shard together, and publishing new ones.

Owns the order of merging and when it pays (size-tiered). Must not know who calls it in a micro-batch.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from arcbeam.model.files import FileKind, ShardFile
from arcbeam.sizes import threshold
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.private import make_folder
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.shards.shardfile import Block, ShardFileReader, write_shard_file

_MIN_FILES = threshold(4, 2)
"""Fewer are not worth a merge."""
_RATIO = 2


def opened(blobs: DurableBlobs, file: ShardFile) -> ShardFileReader:
    """The reader of a file that a manifest names."""
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
    """Writes one file and puts it where its name says. Nothing is real before a manifest names it.

    Args:
        blobs: the job's folder.
        scratch: a local folder.
        written: what its name says; the kind is "delta" or "snapshot".
        blocks: ascending, each key once; of any size.
        first_micro_batch: as in `ShardFile`.
        last_micro_batch: as in `ShardFile`.
        keep: a local name for it; None: it is not kept here.

    Raises:
        StoreError: it cannot be written.
    """
    name, kind = written_name(written), FileKind(written.kind)
    make_folder(scratch)
    path = scratch / uuid.uuid4().hex
    try:
        summary = write_shard_file(path, kind, blocks)
        blobs.put_file(name, path)
        if keep is not None:
            path.replace(keep)
    except OSError as e:
        raise StoreError(f"shard file '{name}' cannot be written in '{scratch}': {e}", "see that it has room") from e
    finally:
        path.unlink(missing_ok=True)
    return ShardFile(
        name=name,
        kind=kind,
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
    """The entries of several sorted sources, sorted; of a key that several have, the newest alone.

    Memory: a block of each source.

    Args:
        sources: the oldest first.
        bottom: nothing lies below them: deleted keys are left out.
    """
    for keys, values in _newest(sources):
        if bottom and None in values:
            live = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
            keys, values = [key for key, _ in live], [value for _, value in live]
        if keys:
            yield keys, values


def _newest(sources: Sequence[Iterable[Block]]) -> Iterator[Block]:
    """Up to the first key at which a block ends, all sources have what they have in memory: that part is put together,
    by loops in C, and so on.
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
    """What has been read of a source, and not been taken. Nothing: it has come to its end."""

    def __init__(self, source: Iterable[Block]) -> None:
        self._blocks = iter(source)
        self._read()

    def _read(self) -> None:
        self.keys, self._values = next(self._blocks, ([], []))
        self._at = 0

    def taken(self, limit: bytes) -> Block:
        """What it has up to a key, that included, of what has been read."""
        start, keys, values = self._at, self.keys, self._values
        self._at = end = bisect_right(keys, limit, start)
        if end == len(keys):
            self._read()
        return keys[start:end], values[start:end]

    def rest(self) -> Iterator[Block]:
        """All that is left."""
        yield self.keys[self._at :], self._values[self._at :]
        yield from self._blocks


def scan(
    blobs: DurableBlobs, files: Sequence[ShardFile], start: bytes = b"", end: bytes | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """What the files of a shard, the oldest first, hold together between two keys."""
    for keys, values in merged([opened(blobs, file).blocks(start, end) for file in files], bottom=True):
        for key, value in zip(keys, values, strict=True):
            assert value is not None
            yield key, value


class HasSize(Protocol):
    """A file, or what counts as one."""

    @property
    def size(self) -> int:
        """In bytes."""


def worth_merging(files: Sequence[HasSize], fewest: int = _MIN_FILES) -> int | None:
    """From which file on a shard's files, the oldest first, should be merged into one; None: not now.

    Size-tiered: from the newest on, files join while they are at most twice as large as what has joined, and are merged
    if they are some. So an entry is rewritten a number of times that is logarithmic in the size of the shard, and so
    many files remain; a large snapshot is written again only when the deltas above it have come to half its size.

    Args:
        files: of the shard.
        fewest: so many are some.
    """
    first, size = len(files), 0
    while first and (not size or files[first - 1].size <= _RATIO * size):
        first -= 1
        size += files[first].size
    return first if len(files) - first >= fewest else None


def compact(
    blobs: DurableBlobs, scratch: Path, files: Sequence[ShardFile], first: int, written: Written
) -> tuple[ShardFile, ...]:
    """Merges the files from `first` on into one; returns what takes the place of all.

    A merge that reaches the oldest file gives a snapshot, and forgets deleted keys; any other keeps them, since an
    older file may have what they delete.

    Args:
        blobs: the job's folder.
        scratch: a local folder.
        files: of the shard, the oldest first.
        first: see `worth_merging`.
        written: level, shard, micro-batch, epoch and attempt for the name of the new file; its kind is decided here.
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
