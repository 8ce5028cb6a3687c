"""Plausible mistakes in the store; see `mutations`.

Owns the patches. Must not know how a mistake is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import MissingFileError, StoreError
from arcbeam.store.log import commitlog, opening, relocating
from arcbeam.store.log.commitlog import Committed, Conflict, Outcome
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest.names import manifest_name
from arcbeam.store.manifest.values import Manifest, ShardVersion
from arcbeam.store.shards import cache, compaction, overlay
from simulator.playing import hosts

Mutation = Callable[[], AbstractContextManager[object]]


def _manifest_created_twice() -> AbstractContextManager[object]:
    create = commitlog._create

    def again(blobs: DurableBlobs, manifest: Manifest, data: bytes, unclear: Any = None) -> Outcome:
        outcome = create(blobs, manifest, data, unclear)
        if not isinstance(outcome, Conflict):
            return outcome
        with suppress(StoreError):
            blobs.put(manifest_name(manifest.micro_batch), data)
        return Committed(manifest)

    return patch.object(commitlog, "_create", again)


def _tombstone_lost() -> AbstractContextManager[object]:
    merged = compaction.merged
    return patch.object(compaction, "merged", lambda sources, bottom: merged(sources, bottom=True))


def _savepoint_swept() -> AbstractContextManager[object]:
    counting = Sweeper._counting
    return patch.object(Sweeper, "_counting", lambda self, floor, pinned: counting(self, floor, set()))


@contextmanager
def _fence_unchecked() -> Iterator[None]:
    """An existing manifest of that name is treated as the driver's own."""
    create = commitlog._create

    def always_own(blobs: DurableBlobs, manifest: Manifest, data: bytes, unclear: Any = None) -> Outcome:
        try:
            blobs.get(manifest_name(manifest.micro_batch))
        except MissingFileError:
            return create(blobs, manifest, data, unclear)
        return Committed(manifest)

    with ExitStack() as stack:
        stack.enter_context(patch.object(commitlog, "_create", always_own))
        stack.enter_context(patch.object(commitlog, "has_begun", lambda blobs, epoch: False))
        yield


def _block_ends_scan() -> AbstractContextManager[object]:
    def of_a_block(self: overlay._SortedKeys, start: bytes, end: bytes | None) -> Iterator[bytes]:
        blocks = ([key for key in block if start <= key and (end is None or key < end)] for block in self._blocks)
        return iter(next(filter(None, blocks), ()))

    return patch.object(overlay._SortedKeys, "between", of_a_block)


def _pins_of_the_origin() -> AbstractContextManager[object]:
    real = opening.opening

    def as_they_were(blobs: DurableBlobs, newest: Any, requested: Any, *more: Any) -> Manifest:
        made = real(blobs, newest, requested, *more)
        last = made.abandoned[-1].first if requested.savepoint and made.abandoned else made.micro_batch
        return replace(made, pins=tuple(pin for pin in made.pins if pin.micro_batch < last))

    return patch.object(commitlog, "opening", as_they_were)


def _moved_stays() -> AbstractContextManager[object]:
    """State that moves to another level also stays at the old one."""
    changes = relocating._changes

    def puts(blobs: DurableBlobs, before: Any, place: tuple[int, int], requested: Any) -> Iterator[Any]:
        for keys, values in changes(blobs, before, place, requested):
            left = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
            if left:
                yield [key for key, _ in left], [value for _, value in left]

    return patch.object(relocating, "_changes", puts)


def _moves_forgotten() -> AbstractContextManager[object]:
    return patch.object(relocating, "relocated", lambda blobs, opening, requested, scratch: opening)


@contextmanager
def _old_copy_built_upon() -> Iterator[None]:
    """A copy of a shard is reused, though the shard had no files in the meantime."""
    real = cache.lacking

    def lacking(version: ShardVersion, at: cache.CopyOf | None) -> Any:
        files, whole = real(version, at)
        if (
            at
            and whole
            and version.contains(at.micro_batch)
            and all(f.first_micro_batch > at.micro_batch for f in version.files)
        ):
            return version.files, False
        return files, whole

    with patch.object(cache, "lacking", lacking), patch.object(hosts, "lacking", lacking):
        yield


OF_THE_STORE: Mapping[str, Mutation] = {
    "a manifest created twice": _manifest_created_twice,
    "a compaction that loses a tombstone": _tombstone_lost,
    "a savepoint that references a deleted file": _savepoint_swept,
    "a fence not checked": _fence_unchecked,
    "a scan that ends with a block of the overlay": _block_ends_scan,
    "savepoints lost by resuming from an older one": _pins_of_the_origin,
    "state not moved to the new level of its stage": _moved_stays,
    "state left at the old level of its stage": _moves_forgotten,
    "a copy reused from before its level was removed": _old_copy_built_upon,
}
"""The mistakes by name."""
