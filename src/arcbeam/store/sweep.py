"""Removing what nobody can need any more, on the evidence of durable manifests alone.

Owns the decision. No clock and no memory of who wrote what take part in it:

- A manifest counts if it lies between the floor and the head, or is a savepoint of the head. Nothing that one of those
  names is deleted.
- A file that none of them names is an orphan if no manifest can come to name it. Its name says for which step and
  epoch it was written, and no other step's manifest may be the first to name it. So it is an orphan if its step is
  decided (the head's or before), or if its epoch is over (before the head's). Else it may be an attempt's of the step
  that is running, or of a driver that is about to open, and stays.
- Files whose names no task gives are not ours, and stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from arcbeam.store.chain import read_manifest
from arcbeam.store.durable import BlobInfo, missing
from arcbeam.store.errors import MissingFileError
from arcbeam.store.manifest import Kind, Manifest
from arcbeam.store.names import MANIFESTS, SHARDS, SIDE, manifest_name, manifest_step, parse_written
from arcbeam.store.steplog import StepLog

KEEP = 10
"""So many steps before the head are kept, for whoever still looks at them."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a sweep needs of a manifest."""

    kind: Kind
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Swept:
    """What was removed: manifests and files by name, and the files' bytes."""

    manifests: tuple[str, ...]
    files: tuple[str, ...]
    size: int


class Sweeper:
    """Sweeps the job of one driver, again and again; it remembers the manifests it has read.

    A sweep that fails, or is cut off anywhere, is made good by the next one.

    Args:
        log: of the driver.
        keep: number of steps before the head that are kept.
    """

    def __init__(self, log: StepLog, *, keep: int = KEEP) -> None:
        self._log, self._keep = log, keep
        self._seen: dict[int, _Seen] = {}  # by step; below the floor only openings and savepoints

    def sweep(self) -> Swept:
        """Removes what can go; nothing if another driver is taking over.

        SUBTLE: the order. The floor is recorded first: who reads it later will not look below. Then it is seen whether
        a later epoch has begun: its driver may have read the floor before. Then manifests go, upwards, and only then
        the files that they named.

        Raises:
            IndeterminateError, DeterminateError: by the store.
        """
        log, head = self._log, self._log.head
        self._seen[head.step] = _Seen(head.kind, frozenset(head.file_names()))
        was, floor = log.floor, self._new_floor()
        # Listed before it is known what is named: what is written from now on is not looked at.
        files = [*log.blobs.list(SHARDS), *log.blobs.list(SIDE)]
        if floor > was:
            log.raise_floor(floor)
        if not log.is_newest():
            return Swept((), (), 0)
        manifests = tuple(self._swept_manifests(was, floor))
        named = self._named(floor, head)
        orphans = [info for info in files if info.name not in named and is_over(info, head)]
        for info in orphans:
            log.blobs.delete(info.name)
        pinned = {pin.step for pin in head.pins}
        for step in [step for step in self._seen if step < floor and step not in pinned]:
            if self._seen[step].kind == Kind.OPENING:
                self._seen[step] = _Seen(Kind.OPENING, frozenset())  # kept for its name alone
            else:
                del self._seen[step]
        return Swept(manifests, tuple(info.name for info in orphans), sum(info.size for info in orphans))

    def _new_floor(self) -> int:
        """The step down to which manifests are kept from now on.

        SUBTLE: its own manifest must be one that is deleted when the floor rises again: by that, who has read an old
        floor notices (`chain`). So neither an opening, nor a savepoint's.
        """
        pinned = {pin.step for pin in self._log.head.pins}
        for step in range(self._log.head.step - self._keep, self._log.floor, -1):
            seen = self._manifest(step)
            if seen is not None and seen.kind == Kind.STEP and step not in pinned:
                return step
        return self._log.floor

    def _swept_manifests(self, was: int, floor: int) -> Iterator[str]:
        pinned = {pin.step for pin in self._log.head.pins}
        listed = (manifest_step(info.name) for info in self._log.blobs.list(MANIFESTS))
        below = sorted(step for step in listed if step is not None and step < was)  # of savepoints that were given up
        # From the old floor on not by what is listed, which may lack it: it must be the first of them to go.
        for step in [*below, *range(was, floor)]:
            seen = None if step in pinned else self._manifest(step)
            if seen is not None and (seen.kind != Kind.OPENING or not step):
                name = manifest_name(step)
                self._log.blobs.delete(name)
                yield name

    def _named(self, floor: int, head: Manifest) -> set[str]:
        named = set(head.file_names())
        for step in {*range(floor, head.step), *(pin.step for pin in head.pins if pin.step != head.step)}:
            seen = self._manifest(step)
            if seen is None:  # damage; it must not end in more of it
                raise missing(manifest_name(step), self._log.blobs)
            named |= seen.names
        return named

    def _manifest(self, step: int) -> _Seen | None:
        """The manifest of a step; None if it is missing."""
        seen = self._seen.get(step)
        if seen is None:
            try:
                manifest = read_manifest(self._log.blobs, step)
            except MissingFileError:
                return None
            seen = self._seen[step] = _Seen(manifest.kind, frozenset(manifest.file_names()))
        return seen


def is_over(info: BlobInfo, head: Manifest) -> bool:
    """Whether a file that no manifest names yet will never be named."""
    written = parse_written(info.name)
    return written is not None and (written.step <= head.step or written.epoch < head.epoch)
