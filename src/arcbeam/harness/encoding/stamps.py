"""What the elements of a block share, known by the bytes that say it: so a block need not be decoded to know that.

Owns the memory of such bytes, while rows are read. The layout is that of `harness.encoding.blocks`.
"""

from __future__ import annotations

import struct
from typing import Any, Final, Generic, TypeVar

from arcbeam.harness.encoding.blocks import ONE_BYTE, TIMES, Block, BlockCoder, Each

_MOST: Final = 64
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
    """What the blocks of a coder are known to share. Where most differ, no more is kept.

    Args:
        coder: of the blocks.
    """

    __slots__ = ("_coder", "_known", "_length", "_room")

    def __init__(self, coder: BlockCoder) -> None:
        self._coder = coder
        self._known: dict[bytes, tuple[Stamp, T]] = {}
        # Of the latest. They are of one length, or only some are known again.
        self._length = 0
        self._room = _MOST

    def of(self, encoded: bytes) -> tuple[Stamp, T] | None:
        """What a block has, with what is known of it; None if it is new, or the block's bytes are of another form."""
        if encoded[0] > TIMES or encoded[1] >= ONE_BYTE:
            return None
        start = _times_end(encoded)
        return self._known.get(encoded[start : start + self._length])

    def add(self, block: Block, known: T) -> None:
        """Keeps what a block has, if its elements share windows and pane, with what is known of that."""
        if self._room and type(block.windows) is not Each and type(block.panes) is not Each:
            self._room -= 1
            shared = self._coder.shared(0, block.windows, block.panes)[_TIME:]
            self._known[shared] = Stamp(shared, self._coder, block), known
            self._length = len(shared)


def _times_end(encoded: bytes) -> int:
    return _HEAD + (_TIME * encoded[1] if encoded[0] else _TIME)
