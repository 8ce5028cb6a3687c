"""Blocked elements in new shards.

Owns their distribution. Elements of stages with state follow their keys; those of other stages are dealt in turn. Must
not know why they are blocked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from arcbeam.engine.rescaling.sink import NewShard, Put
from arcbeam.engine.rows import sequences
from arcbeam.engine.rows.keyspace import END, moment, time_of
from arcbeam.engine.rows.sequences import SequenceWriter
from arcbeam.engine.state.blocked import holder_of, lot_of
from arcbeam.engine.watermarks.holds import Holds, Side
from arcbeam.model.rows import key_hash
from arcbeam.model.timestamps import Timestamp


class RescaledLots:
    """The lots of a level.

    Args:
        shards: the number of new shards.
        stateful: the stages whose elements have a key that decides their shard.
        put: puts the rows of new shards.
    """

    def __init__(self, shards: int, stateful: Collection[int], put: Put) -> None:
        self._shards, self._stateful, self._put = shards, stateful, put
        self._values: dict[bytes, bytes] = {}
        self._written: dict[tuple[bytes, int], tuple[SequenceWriter, list[Timestamp]]] = {}
        self._dealt: Counter[int] = Counter()

    def take(self, stage: int, row: bytes, value: bytes) -> None:
        """Take a row of this kind. The rows of an old shard come in order."""
        end = row.index(END, row.index(END, 3) + len(END)) + len(END)
        lot, rest = row[:end], row[end:]
        if not rest:
            self._values[lot] = value
            return
        for element in sequences.of_row(rest, value):
            shard = self._shard_of(stage, element)
            known = self._written.get((lot, shard))
            time = time_of(element[:8])
            if known is None:
                writer = SequenceWriter(NewShard(self._put, shard).put, lot)
                known = self._written[lot, shard] = (writer, [time])
            known[0].add(element)
            if time < known[1][0]:
                known[1][0] = time

    def _shard_of(self, stage: int, element: bytes) -> int:
        if stage in self._stateful:
            return key_hash(next(sequences.unframed(element, 8))) % self._shards
        self._dealt[stage] += 1
        return self._dealt[stage] % self._shards

    def end(self) -> None:
        """Write the rest."""
        for (row, shard), (writer, (first,)) in self._written.items():
            writer.end()
            value, view = self._values[row], NewShard(self._put, shard)
            view.put(row, moment(first) + value[8:])
            Holds(view, int.from_bytes(row[1:3], "big"), Side.INPUT).set(holder_of(lot_of(value)), first)
