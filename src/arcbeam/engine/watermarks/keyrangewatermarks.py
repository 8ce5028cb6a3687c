"""Where elements of some keys are late although the shard's input watermark has not passed them.

Owns the row of these times. It exists only after a job was rescaled, and until the watermark has reached them all. Must
not know how rows are moved to other shards.

A shard whose keys were in several shards begins at the earliest of their input watermarks. Otherwise timers would fire
before elements that were blocked there. But in another of these shards, windows up to a later watermark have expired.
Elements of its keys are late by that watermark, as they were before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import Final

from arcbeam.engine.rows.keyspace import RowKind, moment, prefix, time_of
from arcbeam.model.interfaces import StateView
from arcbeam.model.rows import key_hash
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp

_WATERMARK: Final = struct.Struct(">QQ8s")
_HASHES: Final = 1 << 32
"""The number of hashes of keys."""


@dataclass(frozen=True, slots=True)
class KeyRangeWatermark:
    """The former input watermark of the keys with `key_hash(key) % shards == shard`."""

    shards: int
    shard: int
    time: Timestamp

    def within(self, shards: int, shard: int) -> KeyRangeWatermark | None:
        """Return the same for those of its keys that are also in a shard of another number; None if none is."""
        common = gcd(self.shards, shards)
        if self.shard % common != shard % common:
            return None
        steps = (shard - self.shard) // common * pow(self.shards // common, -1, shards // common)
        both = self.shards // common * shards
        shard = (self.shard + self.shards * steps) % both
        if both <= _HASHES:
            return KeyRangeWatermark(both, shard, self.time)
        return KeyRangeWatermark(_HASHES, shard, self.time) if shard < _HASHES else None


class KeyRangeWatermarks:
    """The former watermarks of key ranges of one stage in one shard.

    Args:
        view: the view of the shard.
        stage: the stage's number.
    """

    __slots__ = ("_by_shards", "_row", "_view")

    def __init__(self, view: StateView, stage: int) -> None:
        self._view = view
        self._row = prefix(RowKind.KEY_RANGES, stage)
        self._by_shards: dict[int, dict[int, Timestamp]] = {}
        stored = view.get(self._row)
        for each in () if stored is None else unpacked(stored):
            of = self._by_shards.setdefault(each.shards, {})
            of[each.shard] = max(each.time, of.get(each.shard, MIN_TIMESTAMP))

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._by_shards)

    def of(self, key: bytes) -> Timestamp:
        """Return the watermark by which elements of a key are late at least."""
        hashed = key_hash(key)
        times = (of.get(hashed % shards, MIN_TIMESTAMP) for shards, of in self._by_shards.items())
        return max(times, default=MIN_TIMESTAMP)

    def passed(self, watermark: Timestamp) -> None:
        """Drop the watermarks that the input watermark has reached."""
        left = [
            KeyRangeWatermark(shards, shard, time)
            for shards, of in self._by_shards.items()
            for shard, time in of.items()
            if time > watermark
        ]
        if len(left) == sum(map(len, self._by_shards.values())):
            return
        if left:
            self._view.put(self._row, packed(left))
        else:
            self._view.delete(self._row)


def packed(ranges: Iterable[KeyRangeWatermark]) -> bytes:
    """Return the value of the row."""
    return b"".join(_WATERMARK.pack(each.shards, each.shard, moment(each.time)) for each in ranges)


def unpacked(stored: bytes) -> Iterator[KeyRangeWatermark]:
    """Yield the watermarks in the value of a row."""
    for shards, shard, time in _WATERMARK.iter_unpack(stored):
        yield KeyRangeWatermark(shards, shard, time_of(time))
