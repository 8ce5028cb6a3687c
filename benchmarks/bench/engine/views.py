"""A shard's state on a local disk, as the engine finds it: the store's copy in LMDB under an overlay.

Owns a job of one shard in a folder, and its versions. Knows nothing of what its rows mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.manifest.values import ShardVersion
from arcbeam.store.shards.cache import HostCache
from arcbeam.store.shards.compaction import publish
from arcbeam.store.shards.overlay import Overlay
from arcbeam.store.shards.shardfile import in_blocks

_attempts = itertools.count()


class DiskShard:
    """One shard of a job below `folder`.

    Attributes:
        version: what is committed.
        copies: where this host's copy is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.blobs = FolderBlobs(folder / "job")
        self.copies = folder / "copies"
        self.cache = HostCache(self.copies, map_bytes=4 << 30)
        self.version = ShardVersion(f"job{next(_attempts)}", 1, 0, 0, (), ())

    def fill(self, entries: Iterator[tuple[bytes, bytes | None]]) -> None:
        """Makes `entries`, ascending, all there is."""
        step = self.version.step + 1
        written = self._written(step, "snapshot")
        file = publish(self.blobs, self._folder / "scratch", written, in_blocks(entries), first_step=0, last_step=step)
        self.version = replace(self.version, step=step, files=(file,))

    def view(self) -> Overlay:
        """For one step."""
        return self.cache.view(self.blobs, self.version)

    def commit(self, view: Overlay) -> None:
        """Writes a step's changes as a delta, closes the view, and goes on to the version with them."""
        step = self.version.step + 1
        file = self.cache.publish(self.blobs, self.version, self._written(step, "delta"), view, step)
        view.close()
        files = self.version.files if file is None else (*self.version.files, file)
        self.version = replace(self.version, step=step, files=files)

    def forget(self) -> None:
        """Removes the copy."""
        self.cache.forget(self.version.job)

    @property
    def file(self) -> Path:
        """The first file of the version."""
        return self._folder / "job" / self.version.files[0].name

    def _written(self, step: int, kind: str) -> Written:
        written = Written(1, 0, step, 1, f"a{next(_attempts)}", kind)
        written_name(written)
        return written
