"""The files that tasks write, as what is reported and committed says of them.

Owns the values. Must not know what is in the files, nor where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from arcbeam.model.timestamps import Timestamp


class FileKind(StrEnum):
    """What a shard file holds."""

    SNAPSHOT = "snapshot"
    """All entries of the shard."""
    DELTA = "delta"
    """Entries put and keys deleted since."""


OWNER: Final = slice(1, 3)
"""Of a row's key: whose the row is. Keys are in the order of what is before that, and then of it."""


@dataclass(frozen=True, slots=True)
class Owned:
    """What a file has of one owner.

    Attributes:
        owner: the bytes of the rows' keys that say it; fewer than two where a row is nobody's.
        entries: number of puts.
        size: bytes of their keys and values, and of deleted keys.
    """

    owner: bytes
    entries: int
    size: int


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One file of a shard's state.

    Attributes:
        name: below the job's folder.
        size: in bytes.
        crc: of its footer, which holds the CRCs of everything else.
        entries: number of puts; of a snapshot, the number of entries of the shard.
        tombstones: number of deleted keys.
        first_key, last_key: the smallest and the greatest key; both empty if there is none.
        first_micro_batch, last_micro_batch: it says what these micro-batches, and those between, changed; a snapshot's
        first micro-batch is 0.
        owned: whose its rows are, by owner; empty if whoever wrote it did not say.
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
class Shard:
    """The state of a shard of a level: its files, the oldest first; only the first may be a snapshot."""

    level: int
    shard: int
    files: tuple[ShardFile, ...]


@dataclass(frozen=True, slots=True)
class SideFile:
    """An immutable file of a side input, complete and durable when it is reported.

    Attributes:
        channel: the side channel.
        shard: for a multimap, or in a micro-batch, the shard that it is of; -1 where it is of none.
        name: where it is, below the job's folder or temporary location.
        size: in bytes.
        crc: the CRC-32 of its bytes; None where whoever wrote it gave none.
        until: of a micro-batch: when the input watermark of all that read the channel has passed that, and what it lets
            fire has fired, nobody reads it any more, and it leaves the manifest. None: it stays.
        micro_batch: of a micro-batch: the last one of which it has what was put in.
    """

    channel: int
    shard: int
    name: str
    size: int
    crc: int | None = None
    until: Timestamp | None = None
    micro_batch: int = 0


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """What an attempt of a task has written in a micro-batch.

    Attributes:
        shards: those that it has changed, as they are with it: all their files.
        sides: new files of side inputs.
        joined: names of the head's files of side inputs in whose place some of those are.
    """

    shards: tuple[Shard, ...] = ()
    sides: tuple[SideFile, ...] = ()
    joined: tuple[str, ...] = ()


NO_FILES: Final = TaskFiles()
