"""A shard's state on a local disk, as the engine uses it: the store's copy in LMDB under an overlay.

Owns a job of one shard in a folder, and its versions. Must not know what its rows mean.
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
        version: the committed version.
        copies: the folder of this host's copy.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.blobs = FolderBlobs(folder / "job")
        self.copies = folder / "copies"
        self.cache = HostCache(self.copies, map_bytes=4 << 30)
        self.version = ShardVersion(f"job{next(_attempts)}", 1, 0, 0, (), ())

    def fill(self, entries: Iterator[tuple[bytes, bytes | None]]) -> None:
        """Replace the content by `entries`, ascending."""
        micro_batch = self.version.micro_batch + 1
        written = self._written(micro_batch, "snapshot")
        file = publish(
            self.blobs,
            self._folder / "scratch",
            written,
            in_blocks(entries),
            first_micro_batch=0,
            last_micro_batch=micro_batch,
        )
        self.version = replace(self.version, micro_batch=micro_batch, files=(file,))

    def view(self) -> Overlay:
        """Return a view for one micro-batch."""
        return self.cache.view(self.blobs, self.version)

    def commit(self, view: Overlay) -> None:
        """Write a micro-batch's changes as a delta, close the view, and use the version with the changes."""
        micro_batch = self.version.micro_batch + 1
        file = self.cache.publish(self.blobs, self.version, self._written(micro_batch, "delta"), view, micro_batch)
        view.close()
        files = self.version.files if file is None else (*self.version.files, file)
        self.version = replace(self.version, micro_batch=micro_batch, files=files)

    def forget(self) -> None:
        """Remove the copy."""
        self.cache.forget(self.version.job)

    @property
    def file(self) -> Path:
        """The first file of the version."""
        return self._folder / "job" / self.version.files[0].name

    def _written(self, micro_batch: int, kind: str) -> Written:
        written = Written(1, 0, micro_batch, 1, f"a{next(_attempts)}", kind)
        written_name(written)
        return written
