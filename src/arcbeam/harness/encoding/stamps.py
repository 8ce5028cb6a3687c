"""What the elements of a block share, known by the bytes that say it: so a block need not be decoded to know that.

Owns the memory of such bytes, while rows are read. The layout is that of `harness.encoding.blocks`.
"""

from __future__ import annotations

import struct
from typing import Any, Final, Generic, TypeVar

from arcbeam.harness.encoding.blocks import ONE_BYTE, TIMES, Block, BlockCoder, Each
from arcbeam.sizes import cache_size

_MOST: Final = cache_size(64)
"""Stamps that are known at once; and so many in a row may be new before only one in as many is looked at."""
_HEAD: Final = 2
"""Flags, and a number of elements that is one byte."""
_TIME: Final = 8

T = TypeVar("T")


class Stamp:
    """Windows and pane of all elements of a block; of times it has one, or one each.

    Args:
        shared: the bytes that say it.
        coder: of such blocks.
        like: a block that has it.
    """

    __slots__ = ("_decode", "_panes", "_windows", "shared")

    def __init__(self, shared: bytes, coder: BlockCoder, like: Block) -> None:
        self.shared = shared
        self._decode = coder.values.decode
        self._windows, self._panes = like.windows, like.panes

    def values(self, encoded: bytes) -> list[Any]:
        """The values of a block that has it, of its bytes."""
        values: list[Any] = self._decode(encoded[_times_end(encoded) + len(self.shared) :])
        return values

    def block(self, encoded: bytes) -> Block:
        """The block that has it, of its bytes; its number of elements is their second one."""
        micros: Any
        if encoded[0]:
            micros = Each(struct.unpack_from(f">{encoded[1]}q", encoded, _HEAD))
        else:
            micros = int.from_bytes(encoded[_HEAD : _HEAD + _TIME], "big", signed=True)
        return Block(self.values(encoded), micros, self._windows, self._panes)


class Stamps(Generic[T]):
    """What the latest blocks of a coder are known to share. Where most differ, few are looked at.

    Args:
        coder: of the blocks.
    """

    __slots__ = ("_coder", "_known", "_length", "_room", "_unseen")

    def __init__(self, coder: BlockCoder) -> None:
        self._coder = coder
        self._known: dict[bytes, tuple[Stamp, T]] = {}
        # Of the latest. They are of one length, or only some are known again.
        self._length = 0
        self._room, self._unseen = _MOST, 0

    def of(self, encoded: bytes) -> tuple[Stamp, T] | None:
        """What a block has, with what is known of it; None if it is new, or the block's bytes are of another form."""
        if not _is_short(encoded):
            return None
        start = _times_end(encoded)
        found = self._known.get(encoded[start : start + self._length])
        if found is not None:
            self._room = _MOST
        return found

    def add(self, encoded: bytes, block: Block, known: T) -> None:
        """Keeps what a block has, if its elements share windows and pane, with what is known of that.

        Args:
            encoded: the block, of which `of` knew nothing.
            block: the same.
            known: is kept with it.
        """
        if not _is_short(encoded) or type(block.windows) is Each or type(block.panes) is Each or not self._may_add():
            return
        shared = self._coder.shared(0, block.windows, block.panes)[_TIME:]
        if len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[shared] = Stamp(shared, self._coder, block), known
        self._length = len(shared)

    def _may_add(self) -> bool:
        if self._room:
            self._room -= 1
            return True
        self._unseen += 1
        return self._unseen % _MOST == 0


def _is_short(encoded: bytes) -> bool:
    """Whether a block has a stamp that can be known: it is not in bulk, and its number of elements is a byte."""
    return encoded[0] <= TIMES and encoded[1] < ONE_BYTE


def _times_end(encoded: bytes) -> int:
    return _HEAD + (_TIME * encoded[1] if encoded[0] else _TIME)
