"""Restrictions in new shards.

Owns their distribution: the name of its hold decides the shard of a restriction, because each of its rows has that name
or follows from one that has. So shards get about as many of them, and later moves of the driver even out their sizes.
Must not know what a restriction is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from arcbeam.engine.rescaling.sink import NewShard, Put
from arcbeam.engine.rows.keyspace import END, NAME_LIMIT, RowKind, moment, name, part, prefix
from arcbeam.engine.state.residuals import holder_of, restriction_of
from arcbeam.engine.state.restrictiontotals import RestrictionTotals, RestrictionTotalsRow, outputs_of
from arcbeam.model.rows import key_hash


class RescaledRestrictions:
    """The restrictions of a level.

    Args:
        shards: the number of new shards.
        put: puts the rows of new shards.
    """

    def __init__(self, shards: int, put: Put) -> None:
        self._shards, self._put = shards, put
        self._roots: Counter[tuple[int, int, str]] = Counter()
        self._reports: defaultdict[tuple[int, int], RestrictionTotals] = defaultdict(RestrictionTotals)
        # How many restrictions report which outputs, by stage and new shard.
        self._reporting: defaultdict[tuple[int, int], Counter[frozenset[str]]] = defaultdict(Counter)
        # The outputs of a stage; None if old shards do not agree.
        self._outputs: dict[int, tuple[str, ...] | None] = {}

    def shard_of(self, held: bytes) -> int:
        """Return the new shard of a restriction, from the name of its hold as a piece of `keyspace.parts`."""
        return key_hash(held) % self._shards

    def take(self, stage: int, row: bytes, value: bytes) -> None:
        """Take the row of a restriction. Its due time and its root's count follow from it."""
        id = row[_AFTER_STAGE:]
        restriction = restriction_of(id, value)
        shard = self.shard_of(name(holder_of(restriction).name).removesuffix(END))
        self._put(shard, row, value)
        self._put(shard, prefix(RowKind.DUE, stage) + moment(restriction.due) + id, b"")
        self._roots[stage, shard, restriction.root] += 1
        self._reports[stage, shard].count(restriction.remainder.size, (), 1)
        self._reporting[stage, shard][frozenset(restriction.remainder.watermarks)] += 1

    def totals(self, stage: int, value: bytes) -> None:
        """Take an old shard's row of totals, which names the stage's outputs."""
        outputs = outputs_of(value)
        self._outputs[stage] = outputs if self._outputs.get(stage, outputs) == outputs else None

    def end(self) -> None:
        """Write the counts of roots, and the totals. Where outputs are unknown, the stage counts again at its start."""
        for (stage, shard, root), live in self._roots.items():
            row = prefix(RowKind.ROOT, stage) + part(root.encode(), NAME_LIMIT)
            self._put(shard, row, live.to_bytes(4, "big") + root.encode())
        for (stage, shard), report in self._reports.items():
            outputs = self._outputs.get(stage)
            if outputs is None:
                continue
            counts = self._reporting[stage, shard].items()
            silent = {output: sum(many for known, many in counts if output not in known) for output in outputs}
            report.silent = {output: many for output, many in silent.items() if many}
            view, row = NewShard(self._put, shard), prefix(RowKind.ROOT, stage)
            RestrictionTotalsRow(view, row, outputs, lambda report=report: report).recount()  # type: ignore[misc]


_AFTER_STAGE: Final = 3
