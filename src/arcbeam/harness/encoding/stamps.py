"""Stamps: the bytes of a block that apply to all its elements. A known stamp needs no decoding.

Owns the cache of stamps while rows are read. `harness.encoding.blocks` defines the layout.
"""

from __future__ import annotations

import struct
from typing import Any, Final, Generic, TypeVar

from arcbeam.harness.encoding.blocks import ONE_BYTE, TIMES, Block, BlockCoder, Each
from arcbeam.sizes import cache_size

_STAMPS_MAX: Final = cache_size(64)
"""Maximum number of known stamps. After this number of new ones in a row, only one in this number is added."""
_HEAD: Final = 2
"""Flags, and a number of elements that fits into one byte."""
_TIME: Final = 8

T = TypeVar("T")


class Stamp:
    """Windows and pane of all elements of a block. Its elements have one time, or a time each.

    Args:
        shared: the encoded windows and pane.
        coder: coder of such blocks.
        like: a block with this stamp.
    """

    __slots__ = ("_decode", "_panes", "_windows", "shared")

    def __init__(self, shared: bytes, coder: BlockCoder, like: Block) -> None:
        self.shared = shared
        self._decode = coder.values.decode
        self._windows, self._panes = like.windows, like.panes

    def values(self, encoded: bytes) -> list[Any]:
        """Decode the values of a block with this stamp."""
        values: list[Any] = self._decode(self.listed(encoded))
        return values

    def listed(self, encoded: bytes) -> bytes:
        """Return the values of a block with this stamp as the list coder writes them: their number, and each nested."""
        return encoded[_times_end(encoded) + len(self.shared) :]

    def block(self, encoded: bytes) -> Block:
        """Decode a block with this stamp; the second byte is its number of elements."""
        micros: Any
        if encoded[0]:
            micros = Each(struct.unpack_from(f">{encoded[1]}q", encoded, _HEAD))
        else:
            micros = int.from_bytes(encoded[_HEAD : _HEAD + _TIME], "big", signed=True)
        return Block(self.values(encoded), micros, self._windows, self._panes)


class Stamps(Generic[T]):
    """The stamps of a coder's latest blocks. If most differ, few are added.

    Args:
        coder: coder of the blocks.
    """

    __slots__ = ("_coder", "_known", "_length", "_room", "_unseen")

    def __init__(self, coder: BlockCoder) -> None:
        self._coder = coder
        self._known: dict[bytes, tuple[Stamp, T]] = {}
        # Length of the latest stamp. If lengths differ, only some stamps are recognized.
        self._length = 0
        self._room, self._unseen = _STAMPS_MAX, 0

    def of(self, encoded: bytes) -> tuple[Stamp, T] | None:
        """Return a block's stamp, with its associated value; None if it is new, or the block has another form."""
        if not _is_short(encoded):
            return None
        start = _times_end(encoded)
        found = self._known.get(encoded[start : start + self._length])
        if found is not None:
            self._room = _STAMPS_MAX
        return found

    def add(self, encoded: bytes, block: Block, known: T) -> None:
        """Add a block's stamp, if its elements share windows and pane.

        Args:
            encoded: the block, for which `of` has returned None.
            block: the decoded block.
            known: the value to associate with the stamp.
        """
        if not _is_short(encoded) or type(block.windows) is Each or type(block.panes) is Each or not self._may_add():
            return
        shared = self._coder.shared(0, block.windows, block.panes)[_TIME:]
        if len(self._known) >= _STAMPS_MAX:
            del self._known[next(iter(self._known))]
        self._known[shared] = Stamp(shared, self._coder, block), known
        self._length = len(shared)

    def _may_add(self) -> bool:
        if self._room:
            self._room -= 1
            return True
        self._unseen += 1
        return self._unseen % _STAMPS_MAX == 0


def _is_short(encoded: bytes) -> bool:
    """Return whether a block can have a known stamp: it is not in bulk, and its number of elements fits in a byte."""
    return encoded[0] <= TIMES and encoded[1] < ONE_BYTE


def _times_end(encoded: bytes) -> int:
    return _HEAD + (_TIME * encoded[1] if encoded[0] else _TIME)
