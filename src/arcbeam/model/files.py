"""The files that tasks write, as described in reports and commits.

Owns the values. Must not know the files' content, nor where they are.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from typing_extensions import override

from arcbeam.model.timestamps import Timestamp
from arcbeam.pickling import QuickPickle


class FileKind(StrEnum):
    """The content of a shard file."""

    SNAPSHOT = "snapshot"
    """All entries of the shard."""
    DELTA = "delta"
    """The entries put and the keys deleted since."""


OWNER: Final = slice(1, 3)
"""The bytes of a row's key that identify the row's owner. Keys sort by what precedes these bytes, then by the owner."""


@dataclass(frozen=True, slots=True)
class Owned(QuickPickle):
    """The rows of one owner in a file.

    Attributes:
        owner: the owner's bytes in the rows' keys; fewer than two if the rows have no owner.
        entries: number of puts.
        size: bytes of their keys and values, and of deleted keys.
    """

    owner: bytes
    entries: int
    size: int


@dataclass(frozen=True, slots=True)
class ShardFile(QuickPickle):
    """One file of a shard's state.

    Attributes:
        name: its name below the job's folder.
        size: in bytes.
        crc: of its footer, which holds the CRCs of everything else.
        entries: number of puts; of a snapshot, the number of entries of the shard.
        tombstones: number of deleted keys.
        first_key, last_key: the smallest and the greatest key; both empty if there is none.
        first_micro_batch, last_micro_batch: the range of micro-batches whose changes it contains; a snapshot's first
            micro-batch is 0.
        owned: its rows by owner; empty if its writer did not provide that.
    """

    name: str
    kind: FileKind
    size: int
    crc: int
    entries: int
    tombstones: int
    first_key: bytes
    last_key: bytes
    first_micro_batch: int
    last_micro_batch: int
    owned: tuple[Owned, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardSums:
    """What the files of a shard have together.

    Attributes:
        size: in bytes.
        entries: number of puts.
        owned: the rows of each owner.
    """

    size: int
    entries: int
    owned: tuple[Owned, ...]


@dataclass(frozen=True, slots=True)
class Shard(QuickPickle):
    """The state of a shard of a level: its files, the oldest first; only the first may be a snapshot.

    It keeps its pickle and its sums: a driver needs them of each shard in each micro-batch, and most have not changed.
    """

    level: int
    shard: int
    files: tuple[ShardFile, ...]
    _pickle: bytes | None = field(default=None, init=False, repr=False, compare=False)
    _sums: ShardSums | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def sums(self) -> ShardSums:
        """The sums of its files."""
        if self._sums is None:
            owned: dict[bytes, tuple[int, int]] = {}
            for file in self.files:
                for of in file.owned:
                    entries, size = owned.get(of.owner, (0, 0))
                    owned[of.owner] = entries + of.entries, size + of.size
            rows = tuple(Owned(owner, *of) for owner, of in owned.items())
            sums = ShardSums(sum(file.size for file in self.files), sum(file.entries for file in self.files), rows)
            object.__setattr__(self, "_sums", sums)
            return sums
        return self._sums

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        if self._pickle is None:
            object.__setattr__(self, "_pickle", pickle.dumps((self.level, self.shard, self.files), protocol=5))
        return _unpickled, (self._pickle,)


def _unpickled(data: bytes) -> Shard:
    shard = Shard(*pickle.loads(data))
    object.__setattr__(shard, "_pickle", data)
    return shard


@dataclass(frozen=True, slots=True)
class SideFile(QuickPickle):
    """An immutable file of a side input, complete and durable when it is reported.

    Attributes:
        channel: the side channel.
        shard: the shard of a multimap, or in a micro-batch; -1 if there is none.
        name: its name below the job's folder or temporary location.
        size: in bytes.
        crc: the CRC-32 of its bytes; None if its writer did not provide it.
        until: in a micro-batch: when the input watermarks of all readers of the channel have passed this, and what they
            allow has fired, no task reads it any more, and it leaves the manifest. None: it stays.
        micro_batch: in a micro-batch: the last micro-batch whose output it contains.
    """

    channel: int
    shard: int
    name: str
    size: int
    crc: int | None = None
    until: Timestamp | None = None
    micro_batch: int = 0


@dataclass(frozen=True, slots=True)
class TaskFiles(QuickPickle):
    """The files that an attempt of a task has written in a micro-batch.

    Attributes:
        shards: the shards that it has changed, with all their files.
        sides: new files of side inputs.
        joined: names of the head's side input files that some of the new ones replace.
    """

    shards: tuple[Shard, ...] = ()
    sides: tuple[SideFile, ...] = ()
    joined: tuple[str, ...] = ()


NO_FILES: Final = TaskFiles()
