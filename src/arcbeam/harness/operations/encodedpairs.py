"""Pairs that stay encoded: to group them by key, nothing has to be decoded but one key of each group.

Owns how they are grouped, in columns. Must not know who made the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from apache_beam import coders
from typing_extensions import override

from arcbeam.harness.encoding.blocks import head
from arcbeam.harness.encoding.frames import COUNT
from arcbeam.harness.operations.encodedvalues import EncodedValues, Positions

_BITS: Final = 16
"""Of a number that is sorted in one pass."""
_FIRST: Final = np.zeros(1, np.int64)
COPIES: Final = 2
OVERHEAD: Final = 44
"""Most memory in which pairs are grouped; see `by_key`."""


@dataclass(frozen=True, slots=True, eq=False)
class PairLayout:
    """How pairs are encoded.

    Attributes:
        coder: coder of pairs; each is in the nested encoding.
        keys_end: takes bytes and the places where pairs begin; returns the place after each key.
        decode: decodes a list of pairs, with their number before them.
    """

    coder: Any
    keys_end: Callable[[bytes, Positions], Positions]
    decode: Callable[[bytes], list[Any]]

    @staticmethod
    def of(coder: Any, keys_end: Callable[[bytes, Positions], Positions]) -> PairLayout:
        """Return the layout of a coder's pairs."""
        return PairLayout(coder, keys_end, coders.ListCoder(coder).get_impl().decode)


class EncodedPairs(EncodedValues):
    """A block of encoded pairs.

    Attributes:
        layout: how they are encoded.
    """

    __slots__ = ("layout",)

    def __init__(
        self, layout: PairLayout, data: bytes, ends: Positions, micros: int, windows: tuple[Any, ...], pane: Any
    ) -> None:
        super().__init__(layout.decode, data, ends, micros, windows, pane)
        self.layout = layout

    @override
    def _like(self, data: bytes, ends: Positions, micros: int) -> EncodedPairs:
        return EncodedPairs(self.layout, data, ends, micros, self.windows, self.panes)


def block_heads(shared: bytes) -> Callable[[int], bytes]:
    """Return a function that encodes the beginning of a block, before its encoded values; see `BlockCoder`.

    Args:
        shared: see `BlockCoder.shared`.

    Returns:
        Takes the number of values.
    """

    @cache
    def of(count: int) -> bytes:
        return b"".join((head(0, count), shared, COUNT.pack(count)))

    return of


def by_key(blocks: list[EncodedPairs], longest: int) -> Iterator[tuple[bytes, int, memoryview]]:
    """Group pairs by their encoded keys.

    At most `COPIES` times the pairs' bytes, and `OVERHEAD` bytes for each, are in memory.

    Args:
        blocks: of one layout; less than 2 GiB and 2**30 pairs together. The list is emptied.
        longest: maximum values that are yielded together.

    Yields:
        The key, in the nested encoding, the number of values, and these, encoded, one after the other: a key's values
        in order of arrival. A key with more of them is yielded several times, in order.
    """
    parts = _joined(blocks)
    blocks.clear()
    count = len(parts) // 2
    keys = parts.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))).dictionary_encode()
    codes, distinct = keys.indices.to_numpy(), keys.dictionary.to_pylist()
    places = _order(codes, len(distinct))
    row_of = np.concatenate((_FIRST, np.cumsum(np.bincount(codes, minlength=len(distinct)))))
    del keys, codes
    places *= 2
    places += 1
    values = parts.take(pa.array(places))
    del parts, places
    _, offsets, content = values.buffers()
    starts = np.frombuffer(offsets, np.int32, count + 1, values.offset * 4)
    view, start_of, rows = memoryview(content), starts[row_of].tolist(), row_of.tolist()
    for n, key in enumerate(distinct):
        size = rows[n + 1] - rows[n]
        if size <= longest:
            yield key, size, view[start_of[n] : start_of[n + 1]]
            continue
        for first in range(rows[n], rows[n + 1], longest):
            stop = min(first + longest, rows[n + 1])
            yield key, stop - first, view[starts[first] : starts[stop]]


def _joined(blocks: Sequence[EncodedPairs]) -> Any:
    """Return keys and values in turn, as an array of Arrow."""
    count = sum(map(len, blocks))
    # Where each key and each value ends. Arrow then reads them without a copy.
    bounds, row, base = np.zeros(2 * count + 1, np.int32), 0, 0
    for block in blocks:
        ends = block.ends
        begins = np.concatenate((_FIRST, ends[:-1]))
        bounds[2 * row + 1 : 2 * (row + len(ends)) : 2] = block.layout.keys_end(block.data, begins) + base
        bounds[2 * row + 2 : 2 * (row + len(ends)) + 1 : 2] = ends + base
        row, base = row + len(ends), base + len(block.data)
    data = b"".join(block.data for block in blocks)
    return pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def _order(codes: Any, distinct: int) -> Any:
    """Return the places of small numbers, in the order of these; equal ones stay in order.

    Args:
        codes: the numbers.
        distinct: all of them are below it.
    """
    # Numbers of 16 bits are sorted in linear time, and several times as fast as longer ones.
    order = np.argsort(codes.astype(np.uint16), kind="stable").astype(np.int32)
    for shift in range(_BITS, (distinct - 1).bit_length(), _BITS):
        order = order[np.argsort((codes[order] >> shift).astype(np.uint16), kind="stable")]
    return order
