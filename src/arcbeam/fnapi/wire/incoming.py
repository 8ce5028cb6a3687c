"""Whole elements from a stream of messages, in which an element may begin in one message and end in another.

Owns what is left of a message until the next one. Must not know how elements are decoded.
"""

from __future__ import annotations

from arcbeam.fnapi.wire.skipping import CutShortError, Skip


class WholeElements:
    """Cuts a stream between its elements.

    Args:
        skip: skips an element.

    Attributes:
        count: the number of elements so far.
    """

    def __init__(self, skip: Skip) -> None:
        self._skip = skip
        self._rest = b""
        self.count = 0

    def of(self, message: bytes) -> bytes:
        """Return all elements that are complete with this message; may be empty."""
        data = self._rest + message if self._rest else message
        skip, at, end, count = self._skip, 0, len(data), 0
        try:
            while at < end:
                at = skip(data, at)
                count += 1
        except CutShortError:
            pass
        self.count += count
        if at == end:
            self._rest = b""
            return data
        self._rest = data[at:]
        return data[:at]

    def end(self) -> None:
        """End the stream.

        Raises:
            CutShortError: it ends inside of an element.
        """
        if self._rest:
            raise CutShortError(f"the stream ends {len(self._rest)} bytes after the beginning of an element")
