"""What comes to a stage of state or timers on a bounded input: the values of one key after the other, in blocks.

Owns how the payloads of a key become blocks, in which order, and how much of them is decoded at a time. Must not know
state, timers or bundles.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from arcbeam.harness.encoding.blocks import Block, BlockCoder
from arcbeam.harness.encoding.frames import Chunks, Spool, buckets, key_groups, records
from arcbeam.model.rows import Row
from arcbeam.sizes import threshold

_FEW_BYTES = threshold(64 * 1024)
"""A key's values up to this size (encoded) are one block."""
_BUCKET_BYTES = threshold(256 * 1024)
"""All values of a bucket up to this size (encoded) are decoded at once."""

KeyBlock = tuple[bytes, Iterable[Block]]
"""An encoded key and blocks of its values, which are without it."""

KeyBlocks = Callable[[Iterable[Row]], Iterator[Iterable[KeyBlock]]]
"""The keys in rows, which come in ascending order of bucket; some keys at a time, each of them once. Blocks of a key
are taken before the next one is."""


class Alike:
    """Keys whose values share time, windows and pane; few enough to be all decoded.

    Attributes:
        values_of: each encoded key's values, at least one.
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
    """Elements of a key as they came.

    Args:
        coder: of blocks of values.
        memory: bytes of a bucket to hold.
    """

    def __init__(self, coder: BlockCoder, memory: int) -> None:
        self._coder, self._memory = coder, memory

    def __call__(self, rows: Iterable[Row]) -> Iterator[Iterable[KeyBlock]]:
        """See `KeyBlocks`."""
        for bucket in buckets(rows, min(_BUCKET_BYTES, self._memory)):
            alike = self._alike(bucket) if isinstance(bucket, list) else None
            if alike is not None:
                yield alike
            else:
                groups = key_groups(bucket, self._memory)
                yield ((encoded, self._blocks(windows[b""])) for encoded, windows in groups)

    def _alike(self, rows: list[Row]) -> Alike | None:
        """The same for a few rows; None if not all values share time, windows and pane."""
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
        return Alike(values_of, first)

    def _blocks(self, chunks: Chunks) -> Iterable[Block]:
        blocks = map(self._coder.read_one, chunks)
        return blocks if chunks.size > _FEW_BYTES else (Block.join(list(blocks)),)


def _micros(value: Any) -> int:
    return int(value.timestamp_micros)


class TimeSorted:
    """Elements of a key by event time, those of one time as they came.

    A key larger than the budget is sorted in runs that go to a local file, and merged from there.
    """

    _SLICE = threshold(256)
    """Elements of a run that are decoded at a time while runs are merged."""

    def __init__(self, coder: BlockCoder, memory: int) -> None:
        self._coder = coder
        self._memory = memory

    def __call__(self, rows: Iterable[Row]) -> Iterator[Iterable[KeyBlock]]:
        """See `KeyBlocks`."""
        yield ((encoded, self._sorted(windows[b""])) for encoded, windows in key_groups(rows, self._memory))

    def _sorted(self, chunks: Chunks) -> Iterator[Block]:
        # Decoded elements take several times the space of their encodings.
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
