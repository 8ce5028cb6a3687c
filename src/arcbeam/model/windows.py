"""Windows, and the place of a pane among the panes of its window, as values.

Owns their identity and their bytes in ordered keys. Standard library only; must not know window functions.

All are named tuples: they are keys of the tables in the hottest loops, and C code makes, hashes and compares tuples.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, Timestamp

_BYTES = 9
"""A window may begin before time does, or end after it; 64 bits cannot hold such bounds."""
_BIAS = 1 << (8 * _BYTES - 1)


class GlobalWindow(NamedTuple):
    """The window of everything."""

    kind: str = "global"

    @property
    def max_timestamp(self) -> Timestamp:
        """The last moment in it."""
        return END_OF_GLOBAL_WINDOW

    def ordered(self) -> bytes:
        """Return its bytes in a key."""
        return b""


GLOBAL_WINDOW = GlobalWindow()


class IntervalWindow(NamedTuple):
    """The moments start <= t < end."""

    start: Timestamp
    end: Timestamp

    @property
    def max_timestamp(self) -> Timestamp:
        """The last moment in it, or that of the global window if it reaches beyond."""
        return min(Timestamp(self.end - 1), END_OF_GLOBAL_WINDOW)

    def ordered(self) -> bytes:
        """Return its bytes in a key: windows sort by their end, then by their start."""
        return (self.end + _BIAS).to_bytes(_BYTES, "big") + (self.start + _BIAS).to_bytes(_BYTES, "big")

    @staticmethod
    def from_ordered(data: bytes) -> IntervalWindow:
        """Return the window of such bytes."""
        end, start = data[:_BYTES], data[_BYTES:]
        return IntervalWindow(
            Timestamp(int.from_bytes(start, "big") - _BIAS), Timestamp(int.from_bytes(end, "big") - _BIAS)
        )

    @staticmethod
    def behind(end: Timestamp) -> bytes:
        """Return the least bytes of a window that ends after that time."""
        return (end + 1 + _BIAS).to_bytes(_BYTES, "big")


class CustomWindow(NamedTuple):
    """A window that only the SDK can read.

    Attributes:
        encoded: its identity: a deterministic encoding.
        max_timestamp: the last moment in it.
    """

    encoded: bytes
    max_timestamp: Timestamp

    def ordered(self) -> bytes:
        """Return its bytes in a key: windows sort by their end."""
        return (self.max_timestamp + _BIAS).to_bytes(_BYTES, "big") + self.encoded

    @staticmethod
    def from_ordered(data: bytes) -> CustomWindow:
        """Return the window of such bytes."""
        return CustomWindow(data[_BYTES:], Timestamp(int.from_bytes(data[:_BYTES], "big") - _BIAS))


Window = GlobalWindow | IntervalWindow | CustomWindow


class Timing(Enum):
    """The watermark's position, relative to the window, when a pane fired."""

    EARLY = "early"
    """The watermark had not passed the window's end."""
    ON_TIME = "on time"
    """The watermark had passed the window's end, and this is the first pane since."""
    LATE = "late"
    """The watermark had passed the window's end; an on-time pane precedes this one, or all its elements were late."""
    UNKNOWN = "unknown"
    """The element was not made by a grouping."""


class PaneInfo(NamedTuple):
    """The place of a pane among those of its window and key.

    Attributes:
        index: from 0, in order.
        nonspeculative_index: the index among panes that are not early; -1 for an early one.
        timing: see `Timing`.
        is_first: no pane precedes it.
        is_last: no pane will follow it.
    """

    index: int  # type: ignore[assignment]  # in place of the method of a tuple, which no reader of a pane needs
    nonspeculative_index: int
    timing: Timing
    is_first: bool
    is_last: bool

    def packed(self) -> bytes:
        """Return its bytes, which are few; none for `NO_PANE`."""
        if self == NO_PANE:
            return b""
        flags = _TIMINGS.index(self.timing) | self.is_first << 2 | self.is_last << 3
        index, after = _packed(self.index), _packed(self.nonspeculative_index + 1)
        return bytes((flags, len(index))) + index + after

    @staticmethod
    def unpacked(data: bytes = b"") -> PaneInfo:
        """Return the pane of such bytes."""
        if not data:
            return NO_PANE
        flags, end = data[0], 2 + data[1]
        index, after = int.from_bytes(data[2:end], "big"), int.from_bytes(data[end:], "big")
        return PaneInfo(index, after - 1, _TIMINGS[flags & 3], bool(flags & 4), bool(flags & 8))


def _packed(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


_TIMINGS = (Timing.EARLY, Timing.ON_TIME, Timing.LATE, Timing.UNKNOWN)
"""The numbers of timings in bytes."""

NO_PANE = PaneInfo(0, 0, Timing.UNKNOWN, True, True)
"""The pane of elements that no grouping has made."""
