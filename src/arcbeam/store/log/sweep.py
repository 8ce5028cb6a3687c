"""Removal of files that are certainly not needed, on the evidence of durable manifests alone.

Owns the decision. It uses no clock, and no memory of which driver wrote which file:

- A manifest counts if it is between the floor and the head, or is a savepoint of one of those. Nothing that one of
  those names is deleted. Why not only the savepoints of the head? If the head is damaged, they are found in the
  manifests before it (`chain.UnreadableHead`). So they must be complete, also if the head deleted them.
- An unreadable manifest may name anything: while one counts, no file is deleted. It may be an opening, too, so it is
  never deleted.
- A file that none of them names is an orphan if no manifest can name it later. Its name contains the micro-batch and
  epoch for which it was written, and no other micro-batch's manifest may be the first to name it. So it is an orphan if
  its micro-batch is decided (the head's or before), or if its epoch has ended (before the head's). Otherwise it may
  belong to an attempt of the running micro-batch, or to a driver that is about to open, and stays.
- A job graph, or a file of one, that none of them names is an orphan if its epoch has ended: a driver names those of
  its own epoch, and those of the manifest that it follows (`jobgraphs`). An unreadable job graph with a name may need
  any file: while there is one, no file of a job graph is deleted.
- Files with other names than tasks' are not arcbeam's, and stay.
- Unnamed files (`DurableBlobs.tidy`) are removed when their writer is dead, by the evidence of the backend.
- A file of an epoch before the one that began the job belongs to an earlier job, whose manifests are lost: a stale
  listing must have let the driver begin a new one. Then nothing is removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from arcbeam.sizes import threshold
from arcbeam.store.blobs.durable import BlobInfo, missing
from arcbeam.store.blobs.errors import DamagedFileError, MissingFileError, NewerFormatError
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.chain import lost_beginning, read_manifest
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.manifest.names import (
    JOB_GRAPHS,
    MANIFESTS,
    SHARDS,
    SIDE,
    job_graph_epoch,
    manifest_micro_batch,
    manifest_name,
    parse_written,
)
from arcbeam.store.manifest.values import Manifest, ManifestKind

KEPT_MICRO_BATCHES = threshold(10)
"""Number of micro-batches before the head that are kept for readers."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The part of a manifest that a sweep needs. An unreadable one is like an opening that names nothing."""

    kind: ManifestKind
    epoch: int = 0
    names: frozenset[str] = frozenset()
    pins: frozenset[int] = frozenset()
    job_graph: str = ""
    readable: bool = True


@dataclass(frozen=True, slots=True)
class Swept:
    """The removed files.

    Attributes:
        manifests: their names.
        files: their names.
        size: of the files, in bytes.
        unreadable: the names of unreadable manifests that count: because of them, no file was removed.
    """

    manifests: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    size: int = 0
    unreadable: tuple[str, ...] = ()


class Sweeper:
    """Sweeps the job of one driver repeatedly; it remembers the manifests that it has read.

    After a sweep that failed or was interrupted, the next one completes it.

    Args:
        log: of the driver.
        keep: number of micro-batches before the head to keep.
    """

    def __init__(self, log: CommitLog, *, keep: int = KEPT_MICRO_BATCHES) -> None:
        self._log, self._keep = log, keep
        self._seen: dict[int, _Seen] = {}  # by micro-batch; below the floor only openings and savepoints
        self._job_graphs: dict[str, frozenset[str]] = {}  # names of their files, by the job graph's name

    def committed(self) -> None:
        """Note the head: a sweep then need not read its manifest. Call it after each commit."""
        self._seen[self._log.head.micro_batch] = _seen(self._log.head)

    def sweep(self) -> Swept:
        """Remove what is not needed; nothing if another driver is taking over.

        SUBTLE: the order. First the floor is recorded: a later reader of it does not look below. Then it is checked
        whether a later epoch has begun: its driver may have read the old floor. Then manifests are deleted, upwards,
        and only then the files that they named.

        Raises:
            IndeterminateError, DeterminateError: by the store.
            MissingFileError: a manifest that counts is missing, or those of an earlier job, whose files exist.
        """
        log, head = self._log, self._log.head
        self.committed()
        was, floor = log.floor, self._new_floor()
        # Listed before the named files are known: files written later are not considered.
        files = [*log.blobs.list(SHARDS), *log.blobs.list(SIDE)]
        of_job_graphs = list(log.blobs.list(JOB_GRAPHS))
        if not was:
            self._refuse_lost(files)
        if floor > was:
            log.raise_floor(floor)
        if not log.is_newest():
            return Swept()
        pinned = self._pinned(floor)
        manifests = tuple(self._swept_manifests(was, floor, pinned))
        counts = self._counting(floor, pinned)
        unreadable = tuple(
            manifest_name(micro_batch) for micro_batch, seen in sorted(counts.items()) if not seen.readable
        )
        named = {name for seen in counts.values() for name in seen.names}
        orphans = [info for info in files if not unreadable and info.name not in named and is_over(info, head)]
        if not unreadable:
            orphans += self._orphaned_job_graphs(of_job_graphs, {seen.job_graph for seen in counts.values()})
        log.blobs.delete_each([info.name for info in orphans])
        log.blobs.tidy()
        for micro_batch in [
            micro_batch for micro_batch in self._seen if micro_batch < floor and micro_batch not in pinned
        ]:
            if self._seen[micro_batch].kind == ManifestKind.OPENING:
                self._seen[micro_batch] = _Seen(ManifestKind.OPENING)  # kept only for its name
            else:
                del self._seen[micro_batch]
        return Swept(manifests, tuple(info.name for info in orphans), sum(info.size for info in orphans), unreadable)

    def _orphaned_job_graphs(self, listed: list[BlobInfo], needed: set[str]) -> list[BlobInfo]:
        """Return the job graphs and files of job graphs that are not needed.

        Args:
            listed: all existing ones.
            needed: the job graphs of the manifests that count.
        """
        epoch = self._log.head.epoch
        ended = [info for info in listed if (of := job_graph_epoch(info.name)) is not None and of < epoch]
        if all(info.name in needed for info in ended):
            return []
        self._job_graphs = {name: files for name, files in self._job_graphs.items() if name in needed}
        try:
            for name in needed - self._job_graphs.keys() - {""}:
                self._job_graphs[name] = frozenset(file.blob for file in jobgraphs.read(self._log.blobs, name).files)
        except (MissingFileError, DamagedFileError, NewerFormatError):
            return []
        named = needed.union(*self._job_graphs.values())
        return [info for info in ended if info.name not in named]

    def _refuse_lost(self, files: list[BlobInfo]) -> None:
        """Raise if there are files of an earlier job. Its epochs have ended, so they would be orphans."""
        first = self._manifest(0)
        for info in files if first else ():
            written = parse_written(info.name)
            if first and written and written.epoch < first.epoch:
                raise lost_beginning(self._log.blobs, info.name)

    def _new_floor(self) -> int:
        """Return the new floor: the micro-batch from which manifests are kept.

        SUBTLE: its own manifest must be one that is deleted when the floor rises again: readers of an old floor detect
        that (`chain`). So it is neither an opening, nor a savepoint of its own manifest or of any later one.
        """
        head, pinned = self._log.head.micro_batch, set[int]()
        for micro_batch in range(head, self._log.floor, -1):
            seen = self._manifest(micro_batch)
            if seen is None:
                continue
            pinned |= seen.pins
            if micro_batch <= head - self._keep and seen.kind == ManifestKind.MICRO_BATCH and micro_batch not in pinned:
                return micro_batch
        return self._log.floor

    def _pinned(self, floor: int) -> set[int]:
        """Return the savepoints of all manifests from the floor on."""
        seen = (self._manifest(micro_batch) for micro_batch in range(floor, self._log.head.micro_batch + 1))
        return {pin for of in seen if of is not None for pin in of.pins}

    def _swept_manifests(self, was: int, floor: int, pinned: set[int]) -> Iterator[str]:
        listed = (manifest_micro_batch(info.name) for info in self._log.blobs.list(MANIFESTS))
        below = sorted(
            micro_batch for micro_batch in listed if micro_batch is not None and micro_batch < was
        )  # of deleted savepoints
        # From the old floor on not by the listing, which may lack it: it must be the first one to be deleted.
        for micro_batch in [*below, *range(was, floor)]:
            seen = None if micro_batch in pinned else self._manifest(micro_batch)
            if seen is not None and (seen.kind != ManifestKind.OPENING or micro_batch in (0, was)):
                name = manifest_name(micro_batch)
                self._log.blobs.delete(name)
                yield name

    def _counting(self, floor: int, pinned: set[int]) -> dict[int, _Seen]:
        """Return the manifests that count, by micro-batch."""
        counts = {}
        for micro_batch in {*range(floor, self._log.head.micro_batch + 1), *pinned}:
            seen = self._manifest(micro_batch)
            if seen is None:  # damage, which must not cause more damage
                raise missing(manifest_name(micro_batch), self._log.blobs)
            counts[micro_batch] = seen
        return counts

    def _manifest(self, micro_batch: int) -> _Seen | None:
        """Return the manifest of a micro-batch; None if it is missing."""
        seen = self._seen.get(micro_batch)
        if seen is None:
            try:
                seen = _seen(read_manifest(self._log.blobs, micro_batch))
            except MissingFileError:
                return None
            except (DamagedFileError, NewerFormatError):
                seen = _Seen(ManifestKind.OPENING, readable=False)
            self._seen[micro_batch] = seen
        return seen


def _seen(manifest: Manifest) -> _Seen:
    pins = frozenset(pin.micro_batch for pin in manifest.pins)
    return _Seen(manifest.kind, manifest.epoch, frozenset(manifest.file_names()), pins, manifest.job_graph)


def is_over(info: BlobInfo, head: Manifest) -> bool:
    """Return whether a file that no manifest names can no longer be named."""
    written = parse_written(info.name)
    return written is not None and (written.micro_batch <= head.micro_batch or written.epoch < head.epoch)
