"""The merging of side input files: which files, when, and how.

Owns these decisions. Must not know which task merges in a micro-batch.

Every task that writes to a side input in a micro-batch makes a file. A reader opens all files of the head, and if
windows do not end, none of them ever leaves it. So they are merged like those of a shard, size-tiered. The files of a
micro-batch count as one. Adjacent micro-batches are merged if their files leave the head at the same time.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from arcbeam.model.files import SideFile
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from arcbeam.sizes import threshold
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.jobtemp.chunkfile import MAGIC, ChunkFile, ChunkFileWriter
from arcbeam.store.jobtemp.keyfile import KeyFile, KeyFileWriter, window_of
from arcbeam.store.shards.compaction import worth_merging
from arcbeam.streaming.task.sidefiles import fetched, in_order

_F = TypeVar("_F")

_FILES_MIN = threshold(4, 2)
"""A merge of fewer files is not worth it."""


@dataclass(frozen=True, slots=True)
class _Together:
    """The files of a micro-batch."""

    files: tuple[SideFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def until(self) -> Timestamp | None:
        return latest(self.files)


def latest(files: Iterable[SideFile]) -> Timestamp | None:
    """Return when the last of some files leaves the manifest; None: never."""
    untils = [file.until for file in files]
    return None if None in untils else max((until for until in untils if until is not None), default=MAX_TIMESTAMP)


def worth_joining(files: Iterable[SideFile]) -> tuple[SideFile, ...]:
    """Return the files of a side input, among the head's, that should be merged now; empty if none."""
    micro_batches = [_Together(tuple(of)) for of in _by_micro_batch(files)]
    run = list(
        itertools.takewhile(lambda micro_batch: micro_batch.until == micro_batches[-1].until, reversed(micro_batches))
    )[::-1]
    first = worth_merging(run, fewest=1)
    joined = () if first is None else tuple(file for micro_batch in run[first:] for file in micro_batch.files)
    return joined if len(joined) >= _FILES_MIN else ()


def _by_micro_batch(files: Iterable[SideFile]) -> list[list[SideFile]]:
    return [list(of) for _, of in itertools.groupby(in_order(files), lambda file: file.micro_batch)]


def join(blobs: DurableBlobs, path: Path, files: Sequence[SideFile], newest: bool) -> None:
    """Merge several files of a side input into one local file.

    Args:
        blobs: the job's folder.
        path: the path of the new file; must not exist.
        files: files of the head, of adjacent micro-batches.
        newest: in each window, only the content from its newest micro-batch is taken.
    """
    micro_batches = _by_micro_batch(files)
    if blobs.get_range(files[0].name, 0, len(MAGIC)) == MAGIC:
        with _opened(ChunkFile, blobs, path, micro_batches) as chunks:
            _join_chunks(path, chunks, newest)
    else:
        with _opened(KeyFile, blobs, path, micro_batches) as keyed:
            _join_keyed(path, keyed, newest)


@contextlib.contextmanager
def _opened(  # type: ignore[no-untyped-def]
    kind: Callable[[Path, str, int], _F], blobs: DurableBlobs, path: Path, micro_batches: Sequence[Sequence[SideFile]]
):
    with contextlib.ExitStack() as stack:
        found: list[list[_F]] = []
        for files in micro_batches:
            found.append([])
            for file in files:
                with fetched(blobs, path.parent, file) as copy:
                    opened = kind(copy, file.name, file.size)
                stack.callback(opened.close)  # type: ignore[attr-defined]
                found[-1].append(opened)
        yield found


def _join_chunks(path: Path, micro_batches: Sequence[Sequence[ChunkFile]], newest: bool) -> None:
    writer = ChunkFileWriter(path)
    try:
        for window in sorted({window for files in micro_batches for file in files for window in file.windows()}):
            having = [files for files in micro_batches if any(next(file.chunks(window), None) for file in files)]
            for files in having[-1:] if newest else having:
                for file in files:
                    for chunk in file.chunks(window):
                        writer.append(window, chunk)
        writer.finish()
    finally:
        writer.close()


def _join_keyed(path: Path, micro_batches: Sequence[Sequence[KeyFile]], newest: bool) -> None:
    # By window, in the order of heads: the newest micro-batch with content there.
    last: dict[bytes, int] = {}
    if newest:
        for n, files in enumerate(micro_batches):
            last.update((window_of(head), n) for file in files for head in file.heads())
    writer = KeyFileWriter(path)
    try:
        heads = heapq.merge(*(file.heads() for files in micro_batches for file in files))
        for head, _ in itertools.groupby(heads):
            of = [micro_batches[last[window_of(head)]]] if newest else micro_batches
            writer.restore(head, [file for files in of for file in files])
        writer.finish()
    finally:
        writer.discard()
