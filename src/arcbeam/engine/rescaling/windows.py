"""Buffered windows in new shards.

Owns the division of runs: each run of an old shard leaves one run in each new shard that has any of its keys. So the
payloads of a key stay in order. Must not know payloads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from arcbeam.engine.grouping.sortedruns import RunWriter, directory, records
from arcbeam.engine.rescaling.sink import NewShard, Put
from arcbeam.engine.rows.keyspace import END
from arcbeam.model.rows import key_hash


@dataclass(slots=True)
class _Runs:
    """The runs of a window in a new shard: complete ones with their sizes, and the last one."""

    sizes: dict[int, int] = field(default_factory=dict)
    writer: RunWriter | None = None

    def close(self) -> None:
        if self.writer is not None:
            self.writer.end()
            self.sizes[len(self.sizes) + 1] = self.writer.size
            self.writer = None


@dataclass(frozen=True, slots=True)
class WindowTimers:
    """The timers of windows' ends: their rows, by stage and the window as a piece of `keyspace.parts`, and how many
    there are by stage, as a negative number.
    """

    rows: Mapping[tuple[bytes, bytes], Mapping[bytes, bytes]]
    change: Mapping[int, int]


class RescaledWindows:
    """The buffered windows of a level.

    Args:
        shards: the number of new shards.
        put: puts the rows of new shards.

    Attributes:
        timers: by stage, the change of the number of timers for windows' ends: one for each shard with the window.
    """

    def __init__(self, shards: int, put: Put) -> None:
        self._shards, self._put = shards, put
        self._run = b""
        self._runs: dict[tuple[bytes, int], _Runs] = {}
        self._open: list[_Runs] = []
        # The rows of a window's timer, by stage and the window as a piece of `keyspace.parts`.
        self._timers: dict[tuple[bytes, bytes], dict[bytes, bytes]] = {}
        self.timers: Counter[int] = Counter()

    def take_timer(self, window: bytes, row: bytes, value: bytes, *, entry: bool) -> None:
        """Take a row of the timer of a window's end.

        Args:
            window: the window, as a piece of `keyspace.parts`.
            row: its key.
            value: its value.
            entry: whether it is the timer's entry in the index.
        """
        self._timers.setdefault((row[1:3], window), {})[row] = value
        self.timers[int.from_bytes(row[1:3], "big")] -= entry

    def taken(self) -> WindowTimers:
        """Return the timers that were taken, for another one."""
        return WindowTimers(self._timers, self.timers)

    def adopt(self, timers: WindowTimers) -> None:
        """Add timers that another one has taken."""
        for window, rows in timers.rows.items():
            self._timers.setdefault(window, {}).update(rows)
        self.timers.update(timers.change)

    def take(self, row: bytes, value: bytes) -> None:
        """Take a row of a buffered window. The rows of an old shard come in order."""
        end = row.index(END, 4) + len(END)
        place, run = row[:end], row[: end + 4]
        if end == len(row):
            return  # the directory follows from the runs
        if run != self._run:
            self.end_shard()
            self._run = run
        for key, record in records(value):
            shard = key_hash(key) % self._shards
            runs = self._runs.get((place, shard))
            if runs is None:
                runs = self._runs[place, shard] = _Runs()
            if runs.writer is None:
                runs.writer = RunWriter(NewShard(self._put, shard).put, place, len(runs.sizes) + 1)
                self._open.append(runs)
            runs.writer.add(record)

    def end_shard(self) -> None:
        """End the runs of an old shard: the next one has its own."""
        for runs in self._open:
            runs.close()
        self._open.clear()
        self._run = b""

    def end(self) -> None:
        """Write directories and timers."""
        for (place, shard), runs in self._runs.items():
            self._put(shard, place, directory(runs.sizes))
            timer = self._timers[place[1:3], place[4:].removesuffix(END)]
            for row, value in timer.items():
                self._put(shard, row, value)
            self.timers[int.from_bytes(place[1:3], "big")] += 1
