"""Plausible mistakes in rescaling state to another number of shards; see `mutations`.

Owns the patches. Must not know how a mistake is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from arcbeam.engine.rescaling import clocks
from arcbeam.engine.rescaling.blocked import RescaledLots
from arcbeam.engine.rescaling.clocks import RescaledClocks
from arcbeam.engine.rescaling.windows import RescaledWindows
from arcbeam.engine.rows.keyspace import RowKind
from arcbeam.model.timestamps import MAX_TIMESTAMP
from simulator.mistakes_of_the_store import Mutation


def _runs_joined() -> AbstractContextManager[object]:
    return patch.object(RescaledWindows, "end_shard", lambda self: None)


class _Once(dict[Any, Any]):
    """Gives each value once."""

    def __getitem__(self, key: Any) -> Any:
        return self.pop(key, {})


def _end_in_one_shard() -> AbstractContextManager[object]:
    end = RescaledWindows.end

    def once(self: RescaledWindows) -> None:
        self._timers = _Once(self._timers)
        end(self)

    return patch.object(RescaledWindows, "end", once)


def _latest_watermark() -> AbstractContextManager[object]:
    return patch.object(clocks, "min", max, create=True)


def _without_key_ranges() -> AbstractContextManager[object]:
    init = RescaledClocks.__init__

    def forgetting(self: RescaledClocks, had: int, shards: int, upstream: Any, put: Any) -> None:
        def put_others(shard: int, row: bytes, value: bytes) -> None:
            if row[0] != RowKind.KEY_RANGES:
                put(shard, row, value)

        init(self, had, shards, upstream, put_others)

    return patch.object(RescaledClocks, "__init__", forgetting)


def _watermarks_lost() -> AbstractContextManager[object]:
    take = RescaledClocks.take

    def ignoring(self: RescaledClocks, source: int, stage: int, row: bytes, value: bytes) -> None:
        if row[0] != RowKind.CLOCK:
            take(self, source, stage, row, value)

    return patch.object(RescaledClocks, "take", ignoring)


class _Last(list[Any]):
    """Its item is later than every time."""

    def __getitem__(self, index: Any) -> Any:
        return MAX_TIMESTAMP


class _Written(dict[Any, Any]):
    """The lots of new shards, each with the time of the element that was added last."""

    def __setitem__(self, at: Any, lot: Any) -> None:
        super().__setitem__(at, (lot[0], _Last(lot[1])))


def _held_by_the_last() -> AbstractContextManager[object]:
    """A divided lot holds the watermark at its last element, not at its earliest."""
    init = RescaledLots.__init__

    def with_last(self: RescaledLots, *of: Any) -> None:
        init(self, *of)
        self._written = _Written()

    return patch.object(RescaledLots, "__init__", with_last)


OF_RESCALING: Mapping[str, Mutation] = {
    "runs of a window from two shards joined": _runs_joined,
    "the end of a window in only one of its new shards": _end_in_one_shard,
    "the latest watermark of the old shards": _latest_watermark,
    "key ranges not written": _without_key_ranges,
    "watermarks of the old shards lost": _watermarks_lost,
    "a divided lot of blocked elements held at its last element": _held_by_the_last,
}
"""The mistakes by name."""
