"""Bytes that stay in the rows of a view while a reader uses them, because they may be larger than memory.

Owns how long the rows stay. Must not know what the bytes mean, nor where a copy of them is kept.

A pane of a large window is lent to user code: it is read from the view in each iteration. When the call with the pane
has returned, the rows are removed. If user code still has the pane then, its bytes are copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Protocol

from arcbeam.sizes import threshold

STORED_PANE_BYTES_MIN: Final = threshold(4 << 20)
"""What has fewer bytes is read into memory at once, which is quicker."""

_GONE: Final = object()


class PieceSource(Protocol):
    """Something that yields the same bytes at each iteration."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes, piece by piece."""


class StoredPane:
    """Pieces of bytes in rows of a view; may be iterated any number of times.

    Args:
        source: reads the pieces from their rows.
        size: the number of bytes; may be an estimate.
        last: the last piece.
        remove: removes the rows.

    Attributes:
        size: see there.
        last: see there.
    """

    __slots__ = ("_copy", "_in_use", "_remove", "_source", "last", "size")

    def __init__(self, source: PieceSource, size: int, last: bytes, remove: Callable[[], None]) -> None:
        self._source: Iterable[bytes] = source
        self._remove: Callable[[], None] | None = remove
        self._in_use: Callable[[], bool] | None = None
        self._copy: Callable[[Iterable[bytes]], Iterable[bytes]] = tuple
        self.size, self.last = size, last

    def __iter__(self) -> Iterator[bytes]:
        # SUBTLE: an iteration continues in the copy if the rows are removed meanwhile.
        position, source = 0, self._source
        pieces = iter(source)
        while True:
            if source is not self._source:
                source = self._source
                pieces = islice(source, position, None)
            piece: Any = next(pieces, _GONE)
            if piece is _GONE:
                return
            position += 1
            yield piece

    @property
    def is_released(self) -> bool:
        """Whether the rows were removed."""
        return self._remove is None

    def keep_if(self, in_use: Callable[[], bool], copy: Callable[[Iterable[bytes]], Iterable[bytes]]) -> None:
        """Copy the pieces when they are released, if they are in use then.

        Args:
            in_use: returns whether they are in use.
            copy: copies all pieces to another place.
        """
        self._in_use, self._copy = in_use, copy

    def held(self) -> list[bytes]:
        """Read all pieces into memory and release the rows."""
        pieces = list(self)
        self._in_use = None
        self.release()
        self._source = pieces
        return pieces

    def also(self, remove: Callable[[], None]) -> None:
        """Remove more rows when these are released."""
        before = self._remove
        assert before is not None

        def both() -> None:
            before()
            remove()

        self._remove = both

    def release(self) -> None:
        """Remove the rows; their reader has returned. Idempotent."""
        remove, self._remove = self._remove, None
        if remove is None:
            return
        used = self._in_use is not None and self._in_use()
        self._source = self._copy(self._source) if used else ()
        self._in_use = None
        remove()
