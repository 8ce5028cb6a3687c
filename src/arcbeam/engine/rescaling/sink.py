"""Where rescaled rows go: the new shards.

Owns nothing but the view of a new shard for code that writes rows through a view. Must not know rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

Put = Callable[[int, bytes, bytes], None]
"""Puts a row into a new shard. Rows come in any order, each once."""


class NewShard:
    """A `StateView` of a new shard to which rows are only added: it contains none, as far as readers see.

    Args:
        put: puts the rows.
        shard: the shard's number.
    """

    __slots__ = ("empty", "put", "written")

    def __init__(self, put: Put, shard: int) -> None:
        self.put: Callable[[bytes, bytes], None] = partial(put, shard)
        self.written = 0
        self.empty = True

    def get(self, key: bytes) -> bytes | None:
        """Return None."""
        return None

    def delete(self, key: bytes) -> None:
        """Do nothing: there is no such row."""

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield nothing."""
        return iter(())
