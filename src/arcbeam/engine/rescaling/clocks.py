"""The input watermarks of new shards.

Owns their rows, and those of key ranges and of arrivals in order of time. Must not know the rows of keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from math import gcd

from arcbeam.engine.rescaling.sink import Put
from arcbeam.engine.rows.keyspace import RowKind, moment, prefix, time_of
from arcbeam.engine.watermarks.keyrangewatermarks import KeyRangeWatermark, packed, unpacked
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp


class RescaledClocks:
    """The watermarks of a level's stages.

    A new shard begins at the earliest watermark of the old shards whose keys it may have: it waits for what was blocked
    there. Where one of them was later, late elements of its keys stay late. Since when an output's watermark
    has not moved is known only if it was the same in all of them: else the patience with idle inputs begins again.

    Args:
        had: the number of old shards.
        shards: the number of new shards.
        upstream: the upstream watermark of each stage at the head: that of shards without a row, if nothing is pending
            there.
        put: puts the rows of new shards.
    """

    def __init__(self, had: int, shards: int, upstream: Mapping[int, Timestamp], put: Put) -> None:
        self._had, self._shards, self._upstream, self._put = had, shards, upstream, put
        self._pending: defaultdict[int, set[int]] = defaultdict(set)
        self._times: defaultdict[int, dict[int, Timestamp]] = defaultdict(dict)
        self._key_ranges: defaultdict[int, list[KeyRangeWatermark]] = defaultdict(list)
        self._arrivals: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._outputs: defaultdict[bytes, dict[int, bytes]] = defaultdict(dict)

    def take(self, source: int, stage: int, row: bytes, value: bytes) -> None:
        """Take a row of one of these kinds from an old shard."""
        match kind := RowKind(row[0]):
            case RowKind.CLOCK:
                self._times[stage][source] = time_of(value)
            case RowKind.KEY_RANGES:
                within = (each.within(self._had, source) for each in unpacked(value))
                self._key_ranges[stage] += (each for each in within if each is not None)
            case RowKind.OUTPUT:
                self._outputs[row][source] = value
            case RowKind.ARRIVALS:
                self._arrivals[stage][source] = int.from_bytes(value, "big")
            case _:
                raise ValueError(f"{kind!r} is not of a whole shard")

    def pending(self, source: int, stage: int) -> None:
        """Work of a stage is pending in an old shard."""
        self._pending[stage].add(source)

    def end(self, stateful: Collection[int]) -> None:
        """Write the rows.

        Args:
            stateful: the stages in which an element may be late; others need no key ranges.
        """
        stages = sorted({*self._times, *self._pending, *self._key_ranges})
        for shard in range(self._shards):
            before = self._before(shard)
            for stage in stages:
                upstream, known = self._upstream.get(stage, MIN_TIMESTAMP), dict[int, Timestamp]()
                for source in before:
                    # Without a row, only work without a watermark is pending.
                    missing = MIN_TIMESTAMP if source in self._pending[stage] else upstream
                    known[source] = self._times[stage].get(source, missing)
                clock = min(known.values())
                if MIN_TIMESTAMP < clock < upstream:
                    self._put(shard, prefix(RowKind.CLOCK, stage), moment(clock))
                if stage not in stateful:
                    continue
                ranges = [KeyRangeWatermark(self._had, source, time) for source, time in known.items()]
                ranges += (each for each in self._key_ranges[stage] if each.within(self._shards, shard))
                if late := [each for each in ranges if each.time > clock]:
                    self._put(shard, prefix(RowKind.KEY_RANGES, stage), packed(late))
            for row, reported in self._outputs.items():
                if len({reported.get(source, b"")[:8] for source in before}) == 1:
                    self._put(shard, row, max(reported[source] for source in before))
            for stage, arrivals in self._arrivals.items():
                if arrived := max(arrivals.get(source, 0) for source in before):
                    self._put(shard, prefix(RowKind.ARRIVALS, stage), arrived.to_bytes(8, "big"))

    def _before(self, shard: int) -> range:
        """Return the old shards that may have keys of a new one."""
        common = gcd(self._had, self._shards)
        return range(shard % common, self._had, common)
