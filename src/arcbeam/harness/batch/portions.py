"""A stage's input in portions, so that a task can take some of it and leave the rest to other tasks.

Owns where an input may be divided: elements at any place, keys only as a whole. Must not know why a task stops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator

from apache_beam.coders.coder_impl import create_OutputStream
from typing_extensions import override

from arcbeam.harness.encoding.blocks import Block, BlockCoder
from arcbeam.model.rows import Row


class Portions(ABC):
    """The rows of one input. Iteration yields what a task takes, until `rest` is called.

    Attributes:
        taken: the rows that were yielded.
    """

    def __init__(self) -> None:
        self.taken: list[Row] = []

    def __iter__(self) -> Iterator[Row]:
        while (row := self._next()) is not None:
            self.taken.append(row)
            yield row

    @abstractmethod
    def _next(self) -> Row | None:
        """Return the next row; None at the end."""

    @abstractmethod
    def rest(self, shards: int) -> list[Row]:
        """Return the rows that iteration will not yield any more, for that number of shards. Call it once."""

    @abstractmethod
    def coming(self) -> list[Row]:
        """Return the rows that iteration will still yield."""


class KeyPortions(Portions):
    """Rows in which a bucket has all values of its keys: a bucket is not divided.

    Args:
        rows: in ascending order of bucket.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        super().__init__()
        self._rows = deque(rows)

    @override
    def _next(self) -> Row | None:
        return self._rows.popleft() if self._rows else None

    @override
    def rest(self, shards: int) -> list[Row]:
        begun = self.taken[-1].bucket if self.taken else None
        rest = [row for row in self._rows if row.bucket != begun]
        self._rows = deque(row for row in self._rows if row.bucket == begun)
        return rest

    @override
    def coming(self) -> list[Row]:
        return list(self._rows)


class ElementPortions(Portions):
    """Rows of elements in blocks. The first portion has one element, and each has twice as many as the one before.

    A user function may need a minute for an element, or a microsecond: only its first elements show which.

    Args:
        rows: of one channel.
        coder: of their blocks.
    """

    def __init__(self, rows: Iterable[Row], coder: BlockCoder) -> None:
        super().__init__()
        self._rows, self._coder, self._size = deque(rows), coder, 1
        self._blocks: deque[Block] = deque()
        self._channel = self._rows[0].channel if self._rows else 0

    @override
    def _next(self) -> Row | None:
        while not self._blocks and self._rows:
            self._blocks.extend(self._coder.read(self._rows.popleft().blob))
        if not self._blocks:
            return None
        block = self._blocks.popleft()
        if len(block) > self._size:
            self._blocks.appendleft(block.slice(self._size, None))
            block = block.slice(0, self._size)
        self._size *= 2
        return self._row(0, block)

    @override
    def rest(self, shards: int) -> list[Row]:
        """See `Portions`; the elements are distributed over the shards in turn."""
        while self._rows:
            self._blocks.extend(self._coder.read(self._rows.popleft().blob))
        rows, first = list[Row](), 0
        for block in self._blocks:
            for i in range(min(shards, len(block))):
                rows.append(self._row((first + i) % shards, block.slice(i, None, shards)))
            first += len(block)
        self._blocks.clear()
        return rows

    @override
    def coming(self) -> list[Row]:
        return [*(self._row(0, block) for block in self._blocks), *self._rows]

    def _row(self, shard: int, block: Block) -> Row:
        stream = create_OutputStream()
        self._coder.write(block, stream)
        return Row(self._channel, shard, 0, stream.get())
