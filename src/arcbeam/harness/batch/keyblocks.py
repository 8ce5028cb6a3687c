"""The input of a stage with state or timers on a bounded input: the values of one key after the other, in blocks.

Owns how the payloads of a key become blocks, in which order, and how many are decoded together. Must not know state,
timers or bundles.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from arcbeam.harness.encoding.blocks import Block, BlockCoder
from arcbeam.harness.encoding.frames import Chunks, Spool, buckets, key_groups, records
from arcbeam.model.rows import Row
from arcbeam.sizes import threshold

_KEY_BYTES_MAX = threshold(64 * 1024)
"""A key's values up to this size (encoded) are one block."""
_BUCKET_BYTES_MAX = threshold(256 * 1024)
"""Values of a bucket up to this size (encoded) are decoded together."""

KeyBlock = tuple[bytes, Iterable[Block]]
"""An encoded key, and blocks of its values without the key."""

KeyBlocks = Callable[[Iterable[Row]], Iterator[Iterable[KeyBlock]]]
"""Yields the keys of rows, which are in ascending order of bucket. Each item has some keys, and each key occurs once.
A key's blocks must be taken before the next key."""


class KeysOfOneKind:
    """Keys whose values share time, windows and pane, and are few enough to be decoded together.

    Attributes:
        values_of: the values of each encoded key, at least one.
        like: a block with their time, windows and pane.
    """

    __slots__ = ("like", "values_of")

    def __init__(self, values_of: dict[bytes, list[Any]], like: Block) -> None:
        self.values_of, self.like = values_of, like

    def __len__(self) -> int:
        return sum(map(len, self.values_of.values()))

    def __iter__(self) -> Iterator[KeyBlock]:
        like = self.like
        return ((key, (like.with_values(values),)) for key, values in self.values_of.items())


class InOrder:
    """Yields the elements of a key in order of arrival.

    Args:
        coder: coder of blocks of values.
        memory: bytes of a bucket to hold in memory.
    """

    def __init__(self, coder: BlockCoder, memory: int) -> None:
        self._coder, self._memory = coder, memory

    def __call__(self, rows: Iterable[Row]) -> Iterator[Iterable[KeyBlock]]:
        """The keys in rows; a `KeyBlocks`."""
        for bucket in buckets(rows, min(_BUCKET_BYTES_MAX, self._memory)):
            alike = self._alike(bucket) if isinstance(bucket, list) else None
            if alike is not None:
                yield alike
            else:
                groups = key_groups(bucket, self._memory)
                yield ((encoded, self._blocks(windows[b""])) for encoded, windows in groups)

    def _alike(self, rows: list[Row]) -> KeysOfOneKind | None:
        """Return the keys of a few rows; None if not all values share time, windows and pane."""
        coder, blob = self._coder, rows[0].blob
        _, _, start, end = next(records(blob))
        first = coder.read_one(blob[start:end])
        values_of: dict[bytes, list[Any]] = {}
        for row in rows:
            blob = row.blob
            for key, _, start, end in records(blob):
                values = coder.values_alike(blob, start, end)
                if values is None:
                    return None
                found = values_of.get(key)
                if found is None:
                    values_of[key] = values
                else:
                    found += values
        return KeysOfOneKind(values_of, first)

    def _blocks(self, chunks: Chunks) -> Iterable[Block]:
        blocks = map(self._coder.read_one, chunks)
        return blocks if chunks.size > _KEY_BYTES_MAX else (Block.join(list(blocks)),)


def _micros(value: Any) -> int:
    return int(value.timestamp_micros)


class TimeSorted:
    """Yields the elements of a key by event time, and those with equal times in order of arrival.

    A key larger than the budget is sorted in runs, which are written to a local file and merged from there.
    """

    _SLICE = threshold(256)
    """Elements of a run that are decoded together while runs are merged."""

    def __init__(self, coder: BlockCoder, memory: int) -> None:
        self._coder = coder
        self._memory = memory

    def __call__(self, rows: Iterable[Row]) -> Iterator[Iterable[KeyBlock]]:
        """The keys in rows; a `KeyBlocks`."""
        yield ((encoded, self._sorted(windows[b""])) for encoded, windows in key_groups(rows, self._memory))

    def _sorted(self, chunks: Chunks) -> Iterator[Block]:
        # Decoded elements take several times the memory of their encodings.
        budget = self._memory // 8
        runs: list[Iterable[Any]] = []
        spool: Spool | None = None
        run: list[Any] = []
        held = 0
        for payload in chunks:
            run += self._coder.decode(payload)
            held += len(payload)
            if held > budget:
                spool = spool or Spool()
                runs.append(self._spilled(sorted(run, key=_micros), spool))
                run, held = [], 0
        run.sort(key=_micros)
        if not runs:
            yield Block.of(run)
            return
        batch: list[Any] = []
        for value in heapq.merge(*runs, run, key=_micros):
            batch.append(value)
            if len(batch) >= self._SLICE:
                yield Block.of(batch)
                batch = []
        if batch:
            yield Block.of(batch)

    def _spilled(self, run: list[Any], spool: Spool) -> Iterator[Any]:
        places = []
        for start in range(0, len(run), self._SLICE):
            encoded = self._coder.encode(run[start : start + self._SLICE])
            places.append((spool.append(encoded), len(encoded)))
        del run
        return (value for offset, length in places for value in self._coder.decode(spool.read(offset, length)))
