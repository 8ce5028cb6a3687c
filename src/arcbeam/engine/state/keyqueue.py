"""The next work of a stage's keys: elements in order of time, timers, ends of windows.

Owns the order between these, and the elements that wait in order of time (`@RequiresTimeSortedInput`). Must not know
how they are processed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arcbeam.engine.rows import sequences
from arcbeam.engine.rows.frontier import Frontier
from arcbeam.engine.rows.keyspace import END, NAME_LIMIT, RowKind, moment, part, prefix, time_of, unescaped
from arcbeam.engine.state.timers import Fired, Timers
from arcbeam.engine.watermarks.comparison import passed
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import MAX_TIMESTAMP, Duration, Timestamp, shifted
from arcbeam.model.windows import NO_PANE, PaneInfo

_CUT: Final = b"\0\2"
_NAMED, _PANE = 1, 2
"""The prefix of a waiting element's value in its row: its key and window, if the row's key contains them cut, and its
pane. These are bits of the first byte. If any is set, each piece is preceded by its length."""
NO_LATENESS: Final = Duration(0)


@dataclass(frozen=True, slots=True)
class Element:
    """An element that is ready in order of time.

    Attributes:
        key: the encoded user key.
        window: the encoded window.
        time: its timestamp.
        value: the value that was added.
        pane: the pane in which it arrived.
    """

    key: bytes
    window: bytes
    time: Timestamp
    value: bytes
    pane: PaneInfo = NO_PANE


@dataclass(frozen=True, slots=True)
class Late:
    """An element that is too late to be put in order: the watermark had passed its time when it arrived.

    Attributes:
        element: the element.
        watermark: the stage's input watermark at that time.
        reason: the reason, for people.
    """

    element: Element
    watermark: Timestamp
    reason: str


class SortedInput:
    """The elements of a stage that wait until all earlier ones have arrived.

    Elements of a user key leave in the order of their times; elements of the same time leave in the order of arrival.
    The output watermark is held at the first of them.

    Args:
        view: the view of the shard.
        stage: the stage's number.
        lateness: how late an element may be; so all elements wait that much longer.

    Attributes:
        more, size: the change of the number of waiting elements, and of the bytes of their rows' values.
    """

    __slots__ = ("_arrivals", "_arrived", "_front", "_lateness", "_view", "more", "size")

    def __init__(self, view: StateView, stage: int, lateness: Duration = NO_LATENESS) -> None:
        self._view = view
        self._lateness = lateness
        self._front = Frontier(view, prefix(RowKind.SORTED, stage))
        self._arrivals = prefix(RowKind.ARRIVALS, stage)
        self._arrived = int.from_bytes(view.get(self._arrivals) or b"", "big")
        self.more = self.size = 0

    def clock(self, watermark: Timestamp) -> Timestamp:
        """Return the stage's clock for elements and timers: the watermark less the allowed lateness."""
        return watermark if watermark == MAX_TIMESTAMP else shifted(watermark, Duration(-self._lateness))

    def add(self, element: Element, watermark: Timestamp) -> Late | None:
        """Add an element; or return it as late, if its time has passed.

        Args:
            element: the element.
            watermark: the stage's input watermark.
        """
        if (late := self.late(element, watermark)) is not None:
            return late
        arrived = self._arrived.to_bytes(8, "big")
        self._arrived += 1
        self._view.put(self._arrivals, self._arrived.to_bytes(8, "big"))
        owner = part(element.key) + part(element.window, NAME_LIMIT)
        kind = 0
        more: list[bytes] = []
        if _CUT in owner:
            kind |= _NAMED
            more += (element.key, element.window)
        if pane := element.pane.packed():
            kind |= _PANE
            more.append(pane)
        value = b"".join(map(sequences.framed, (*more, element.value))) if kind else element.value
        self._front.put(self._front.start + moment(element.time) + arrived + owner, bytes((kind,)) + value)
        self.more += 1
        self.size += 1 + len(value)
        return None

    def late(self, element: Element, watermark: Timestamp) -> Late | None:
        """Return an element whose time has passed as late; None if it has not."""
        if passed(self.clock(watermark), element.time):
            return Late(element, watermark, "it arrived after its time had passed, and the input is in order of time")
        return None

    def next(self) -> Timestamp | None:
        """Return the time of the first waiting element; None if there is none."""
        row = self._front.first()
        return None if row is None else time_of(row[3:11])

    def take(self, watermark: Timestamp) -> Element | None:
        """Take the first element, or None if the watermark has not passed its time."""
        row = self._front.first()
        if row is None:
            return None
        time = time_of(row[3:11])
        if not passed(self.clock(watermark), time):
            return None
        data = self._front.take(row)
        self.more -= 1
        self.size -= len(data)
        kind = data[0]
        more = list(sequences.unframed(data, 1)) if kind else [data[1:]]
        value = more.pop()
        pane = PaneInfo.unpacked(more.pop()) if kind & _PANE else NO_PANE
        key, window = more if kind & _NAMED else map(unescaped, row[19:].split(END)[:2])
        return Element(key, window, time, value, pane)


def key_of_waiting(row: bytes, data: bytes) -> bytes:
    """Return the whole user key of an element that waits in order of time, from its row."""
    if data[0] & _NAMED:
        return next(sequences.unframed(data, 1))
    return unescaped(row[19:].split(END)[0])


class KeyQueue:
    """The next work of a stage's keys, after all arrived elements were processed.

    The order is: event time first, ascending, with elements before timers and timers before expirations of the same
    moment; then processing-time timers that are due. There are two exceptions. No window expires while a
    processing-time timer is due. An expiration postponed to the end of time (`MAX_TIMESTAMP`) comes after all
    processing-time timers, due or not. Work that is added meanwhile takes its place in this order.

    A stage whose input is in order of time lags behind its watermark by the allowed lateness, with its timers. Its
    windows must be set to expire at their end, without the lateness.

    Args:
        timers: the stage's timers.
        ordered: its elements in order of time, if it requires that order.
    """

    __slots__ = ("_ordered", "_timers")

    def __init__(self, timers: Timers, ordered: SortedInput | None = None) -> None:
        self._timers = timers
        self._ordered = ordered

    def next(self, watermark: Timestamp, now: Timestamp) -> Element | Fired | None:
        """Take the next work; None if nothing is due; see `is_due`.

        Args:
            watermark: the stage's input watermark.
            now: processing time.
        """
        if self._ordered is not None:
            waiting = self._ordered.next()
            if waiting is not None:
                timer = self._timers.next_event()
                if (timer is None or waiting <= timer) and (element := self._ordered.take(watermark)) is not None:
                    return element
            watermark = self._ordered.clock(watermark)
        timers = self._timers
        taken = timers.take_event(watermark, expirations=False) or timers.take_processing(now)
        if taken is None and not self.waits_for_the_clock(timers.next_event()):
            taken = timers.take_event(watermark)
        return taken

    def is_due(self, watermark: Timestamp, now: Timestamp) -> bool:
        """Return whether `next` would take something."""
        if self._ordered is not None:
            watermark = self._ordered.clock(watermark)
            waiting = self._ordered.next()
            if waiting is not None and passed(watermark, waiting):
                return True
        event, clock = self._timers.next_event(), self._timers.next_processing()
        if clock is not None and clock <= now:
            return True
        return event is not None and passed(watermark, event) and not self.waits_for_the_clock(event)

    def waits_for_the_clock(self, event: Timestamp | None) -> bool:
        """Return whether the next event-time timer was postponed until all processing-time timers, and there are
        some.
        """
        return event == MAX_TIMESTAMP and self._timers.next_processing() is not None
