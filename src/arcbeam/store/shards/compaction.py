"""Putting files of a shard together, and publishing new ones.

Owns the order of merging and when it pays (size-tiered). Must not know who calls it in a step.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from arcbeam.model.files import FileKind, ShardFile
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.shards.shardfile import Entry, ShardFileReader, write_shard_file

_MIN_FILES = 4
"""Fewer are not worth a merge."""
_RATIO = 2


def opened(blobs: DurableBlobs, file: ShardFile) -> ShardFileReader:
    """The reader of a file that a manifest names."""
    return ShardFileReader(partial(blobs.get_range, file.name), file.size, file.crc, file.name, blobs)


def publish(
    blobs: DurableBlobs,
    scratch: Path,
    written: Written,
    entries: Iterable[Entry],
    *,
    first_step: int,
    last_step: int,
    keep: Path | None = None,
) -> ShardFile:
    """Writes one file and puts it where its name says. Nothing is real before a manifest names it.

    Args:
        blobs: the job's folder.
        scratch: a local folder.
        written: what its name says; the kind is "delta" or "snapshot".
        entries: ascending, each key once.
        first_step: as in `ShardFile`.
        last_step: as in `ShardFile`.
        keep: a local name for it; None: it is not kept here.

    Raises:
        StoreError: it cannot be written.
    """
    name, kind = written_name(written), FileKind(written.kind)
    scratch.mkdir(parents=True, exist_ok=True)
    path = scratch / uuid.uuid4().hex
    try:
        summary = write_shard_file(path, kind, entries)
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
        first_step=first_step,
        last_step=last_step,
    )


def merged(sources: Sequence[Iterable[Entry]], *, bottom: bool) -> Iterator[Entry]:
    """The entries of several sorted sources, sorted; of a key that several have, the newest alone.

    Args:
        sources: the oldest first.
        bottom: nothing lies below them: deleted keys are left out.
    """
    if len(sources) == 1:
        newest: Iterable[Entry] = sources[0]
    else:
        newest = _first_of_each(
            heapq.merge(*(_aged(source, age) for age, source in enumerate(reversed(sources))))  # newest: age 0
        )
    return ((key, value) for key, value in newest if value is not None) if bottom else iter(newest)


def _aged(source: Iterable[Entry], age: int) -> Iterator[tuple[bytes, int, bytes | None]]:
    for key, value in source:
        yield key, age, value


def _first_of_each(entries: Iterable[tuple[bytes, int, bytes | None]]) -> Iterator[Entry]:
    last: bytes | None = None
    for key, _, value in entries:
        if key != last:
            yield key, value
            last = key


def scan(
    blobs: DurableBlobs, files: Sequence[ShardFile], start: bytes = b"", end: bytes | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """What the files of a shard, the oldest first, hold together between two keys."""
    sources = [opened(blobs, file).scan(start, end) for file in files]
    for key, value in merged(sources, bottom=True) if sources else ():
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
        written: level, shard, step, epoch and attempt for the name of the new file; its kind is decided here.
    """
    run = files[first:]
    kind = FileKind.DELTA if first else FileKind.SNAPSHOT
    name = Written(written.place, written.shard, written.step, written.epoch, written.attempt, str(kind))
    entries = merged([opened(blobs, file).scan() for file in run], bottom=not first)
    first_step = run[0].first_step if first else 0
    new = publish(blobs, scratch, name, entries, first_step=first_step, last_step=run[-1].last_step)
    return (*files[:first], new)
