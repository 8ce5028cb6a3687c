"""Hosts: they hold the state of shards for tasks.

Owns a copy of shards in memory, by the same protocol and the same decisions as `store.shards.cache`, but without LMDB
and its files, which would cost more than all the rest of a simulated micro-batch. Must not know what entries mean.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from arcbeam.model.files import ShardFile
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.manifest.names import Written
from arcbeam.store.manifest.values import ShardVersion
from arcbeam.store.shards.cache import CopyOf, lacking
from arcbeam.store.shards.compaction import opened, publish
from arcbeam.store.shards.overlay import Base, Overlay
from arcbeam.store.shards.shardfile import in_blocks
from arcbeam.streaming import interfaces


class Host(interfaces.Host, Protocol):
    """The interface of `store.shards.cache.HostCache` for tasks, and for the fault that loses its data."""

    def forget(self, job: str) -> None:
        """Removes the copies of a job's state."""


@dataclass(slots=True)
class _Rows(Base):
    """The entries of one version; an immutable `overlay.Base`."""

    of: CopyOf
    rows: dict[bytes, bytes]
    _keys: list[bytes] = field(default_factory=list)

    @override
    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    @override
    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        if len(self._keys) != len(self.rows):
            self._keys = sorted(self.rows)
        keys, rows = self._keys, self.rows
        for at in range(bisect_left(keys, start), len(keys) if end is None else bisect_left(keys, end)):
            yield keys[at], rows[keys[at]]

    @override
    def close(self) -> None:
        pass


class MemoryHost(Host):
    """A host that keeps its copies in memory.

    Args:
        scratch: a local folder for temporary files.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._copies: dict[tuple[str, int, int], _Rows] = {}

    @override
    def view(self, blobs: DurableBlobs, version: ShardVersion) -> Overlay:
        place = version.job, version.level, version.shard
        copy = self._copies.get(place)
        files, anew = lacking(version, copy.of if copy else None)
        if copy is None or anew or files:
            rows = {} if copy is None or anew else dict(copy.rows)
            for file in files:
                for key, value in opened(blobs, file).scan():
                    if value is None:
                        rows.pop(key, None)
                    else:
                        rows[key] = value
            copy = self._copies[place] = _Rows(
                CopyOf(version.micro_batch, version.driver_of(version.micro_batch) or ""), rows
            )
        return Overlay(copy)

    @override
    def publish(
        self, blobs: DurableBlobs, version: ShardVersion, written: Written, view: Overlay, micro_batch: int
    ) -> ShardFile | None:
        changes = list(view.changes())
        if not changes:
            return None
        return publish(
            blobs,
            self._scratch,
            written,
            in_blocks(changes),
            first_micro_batch=micro_batch,
            last_micro_batch=micro_batch,
        )

    @override
    def forget(self, job: str) -> None:
        self._copies = {place: copy for place, copy in self._copies.items() if place[0] != job}
