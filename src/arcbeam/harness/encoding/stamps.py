"""What the elements of a block share, known by the bytes that say it: so a block need not be decoded to know that.

Owns the memory of such bytes, while rows are read. The layout is that of `harness.encoding.blocks`.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from arcbeam.harness.encoding.blocks import ONE_BYTE, Block, BlockCoder

_MOST: Final = 64
_HEAD: Final = 2
"""Flags, and a number of elements that is one byte."""

T = TypeVar("T")


class Stamp:
    """Time, windows and pane of all elements of a block.

    Args:
        shared: the bytes that say it.
        coder: of such blocks.
        like: a block that has it.
    """

    __slots__ = ("_decode", "_micros", "_panes", "_start", "_windows", "shared")

    def __init__(self, shared: bytes, coder: BlockCoder, like: Block) -> None:
        self.shared = shared
        self._decode, self._start = coder.values.decode, _HEAD + len(shared)
        self._micros, self._windows, self._panes = like.micros, like.windows, like.panes

    def block(self, encoded: bytes) -> Block:
        """The block that has it, of its bytes; its number of elements is their second one."""
        return Block(self._decode(encoded[self._start :]), self._micros, self._windows, self._panes)


class Stamps(Generic[T]):
    """What the blocks of a coder are known to share. Where most differ, no more is kept.

    Args:
        coder: of the blocks.
    """

    __slots__ = ("_coder", "_end", "_known", "_room")

    def __init__(self, coder: BlockCoder) -> None:
        self._coder = coder
        self._known: dict[bytes, tuple[Stamp, T]] = {}
        # Where the bytes of the latest end. They are of one length, or only some are known again.
        self._end = 0
        self._room = _MOST

    def of(self, encoded: bytes) -> tuple[Stamp, T] | None:
        """What a block has, with what is known of it; None if it is new, or the block's bytes are of another form."""
        if encoded[0] or encoded[1] >= ONE_BYTE:
            return None
        return self._known.get(encoded[_HEAD : self._end])

    def add(self, block: Block, known: T) -> None:
        """Keeps what a block has, if its elements share it all, with what is known of that."""
        if self._room and block.uniform:
            self._room -= 1
            shared = self._coder.shared(block.micros, block.windows, block.panes)
            self._known[shared] = Stamp(shared, self._coder, block), known
            self._end = _HEAD + len(shared)
