"""Elements of one stage in one shard that are blocked until a side input is ready, or until they are committed.

Owns their rows and their holds of the input watermark. Must not know when they are unblocked, nor what an element is.

Elements that wait for the same window of the same side input are a *lot*. They are unblocked together, so they are one
sequence of rows and one hold, at the earliest of their times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from arcbeam.engine.rows import sequences
from arcbeam.engine.rows.keyspace import NAME_LIMIT, RowKind, after, moment, name, part, prefix, time_of
from arcbeam.engine.watermarks.holds import Holder, HolderKind, Holds, Side
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import Timestamp


@dataclass(frozen=True, slots=True)
class SideInputWindow:
    """A window of a side input that elements wait for.

    Attributes:
        side_input: the stage's name for it.
        window: the encoded window of the side input.
    """

    side_input: str
    window: bytes


@dataclass(frozen=True, slots=True)
class BlockedElement:
    """A blocked element.

    Attributes:
        time: its timestamp.
        value: its encoding, with all that is needed to process it later.
    """

    time: Timestamp
    value: bytes


class BlockedElements:
    """The blocked elements of a stage.

    Args:
        view: the view of the shard.
        stage: the stage's number.

    Attributes:
        more, size: the change of their number, and of the bytes of their values.
    """

    __slots__ = ("_holds", "_start", "_view", "more", "size")

    def __init__(self, view: StateView, stage: int) -> None:
        self._view = view
        self._start = prefix(RowKind.BLOCKED, stage)
        self._holds = Holds(view, stage, Side.INPUT)
        self.more = self.size = 0

    # A lot is a row with its name and hold, followed by a sequence.

    def add(self, lot: SideInputWindow, element: BlockedElement) -> None:
        """Block an element. The input watermark does not pass its time until it is processed."""
        row = self._row(lot)
        known = self._view.get(row)
        if known is None or element.time < time_of(known[:8]):
            self._view.put(row, moment(element.time) + sequences.framed(lot.side_input.encode()) + lot.window)
            self._holds.set(holder_of(lot), element.time)
        sequences.append(self._view, row, moment(element.time) + element.value)
        self.more += 1
        self.size += len(element.value)

    def take(self, lot: SideInputWindow) -> Iterator[BlockedElement]:
        """Take all elements of a lot, in the order in which they arrived.

        They remain stored until the last has been taken, and none may be blocked in between. If the iteration ends
        early, the micro-batch has failed.
        """
        row = self._row(lot)
        for each in sequences.read(self._view, row):
            self.more -= 1
            self.size -= len(each) - 8
            yield BlockedElement(time_of(each[:8]), each[8:])
        sequences.clear(self._view, row)
        self._view.delete(row)
        self._holds.clear(holder_of(lot))

    def lots(self) -> Iterator[tuple[SideInputWindow, Timestamp]]:
        """Yield what elements wait for, and the earliest time of the elements that do."""
        start, end = self._start, after(self._start)
        while True:
            found = next(iter(self._view.scan(start, end)), None)
            if found is None:
                return
            row, known = found
            yield lot_of(known), time_of(known[:8])
            following = after(row)
            assert following is not None
            start = following

    def _row(self, lot: SideInputWindow) -> bytes:
        return self._start + name(lot.side_input) + part(lot.window, NAME_LIMIT)


def lot_of(known: bytes) -> SideInputWindow:
    """Return the lot with this row, from the row's value. The time of its hold precedes its name."""
    side_input = next(sequences.unframed(known, 8))
    at = 8 + len(sequences.framed(side_input))
    return SideInputWindow(side_input.decode(), known[at:])


def holder_of(lot: SideInputWindow) -> Holder:
    """Return the holder of a lot's hold of the input watermark."""
    return Holder(HolderKind.BLOCKED, f"{lot.side_input}@{lot.window.hex()}")
