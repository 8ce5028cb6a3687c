"""What the keys of a stage do next: elements in order of time, timers, the end of windows.

Owns the order between these, and the elements that wait in order of time (`@RequiresTimeSortedInput`). Must not know
what is done with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arcbeam.engine.rows import sequences
from arcbeam.engine.rows.frontier import Frontier
from arcbeam.engine.rows.keyspace import END, NAME_LIMIT, Kind, moment, part, prefix, time_of, unescaped
from arcbeam.engine.state.timers import Fired, Timers
from arcbeam.engine.watermarks.comparison import passed
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import MAX_TIMESTAMP, Duration, Timestamp, shifted
from arcbeam.model.windows import NO_PANE, PaneInfo

_CUT: Final = b"\0\2"
_NAMED, _PANE = 1, 2
"""What the value of a waiting element's row has in front of the element: its key and window, if they do not stand whole
in the row's key, and its pane. Bits of the first byte. With any of them each part stands behind its length."""
NO_LATENESS: Final = Duration(0)


@dataclass(frozen=True, slots=True)
class Element:
    """An element whose turn has come.

    Attributes:
        key: encoded user key.
        window: encoded window.
        time: its timestamp.
        value: as it was added.
        pane: that it came in.
    """

    key: bytes
    window: bytes
    time: Timestamp
    value: bytes
    pane: PaneInfo = NO_PANE


@dataclass(frozen=True, slots=True)
class Late:
    """An element that comes too late to be put in order: its time was over when it came.

    Attributes:
        element: as it came.
        watermark: of the stage's input at that time.
        reason: for people.
    """

    element: Element
    watermark: Timestamp
    reason: str


class SortedInput:
    """The elements of a stage that wait until all earlier ones are there.

    Elements of a user key come out in the order of their times, and those of one time in the order in which they came.
    The output watermark is held at the first of them.

    Args:
        view: of the shard.
        stage: the stage's number.
        lateness: an element may come so much behind the watermark; so all wait so much longer.

    Attributes:
        more, size: by how many more wait than at first, and by how many bytes of their rows' values.
    """

    __slots__ = ("_arrivals", "_came", "_front", "_lateness", "_view", "more", "size")

    def __init__(self, view: StateView, stage: int, lateness: Duration = NO_LATENESS) -> None:
        self._view = view
        self._lateness = lateness
        self._front = Frontier(view, prefix(Kind.SORTED, stage))
        self._arrivals = prefix(Kind.ARRIVALS, stage)
        self._came = int.from_bytes(view.get(self._arrivals) or b"", "big")
        self.more = self.size = 0

    def clock(self, watermark: Timestamp) -> Timestamp:
        """Up to where elements and timers have their turn: the watermark, as far back as elements may be late."""
        return watermark if watermark == MAX_TIMESTAMP else shifted(watermark, Duration(-self._lateness))

    def add(self, element: Element, watermark: Timestamp) -> Late | None:
        """Puts an element in its place; or gives it back, if its turn is over.

        Args:
            element: to wait.
            watermark: of the stage's input.
        """
        if (late := self.late(element, watermark)) is not None:
            return late
        came = self._came.to_bytes(8, "big")
        self._came += 1
        self._view.put(self._arrivals, self._came.to_bytes(8, "big"))
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
        self._front.put(self._front.start + moment(element.time) + came + owner, bytes((kind,)) + value)
        self.more += 1
        self.size += 1 + len(value)
        return None

    def late(self, element: Element, watermark: Timestamp) -> Late | None:
        """What there is to say of an element whose turn is over; None if it is not."""
        if passed(self.clock(watermark), element.time):
            return Late(element, watermark, "its time was over when it came, and the input is in order of time")
        return None

    def next(self) -> Timestamp | None:
        """The time of the first element that waits; None if none does."""
        row = self._front.first()
        return None if row is None else time_of(row[3:11])

    def take(self, watermark: Timestamp) -> Element | None:
        """Takes the first element, or None if its turn has not come."""
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


class KeyQueue:
    """What is next for the keys of a stage, when all data that has come is processed.

    In this order: event time first, ascending, at each moment elements before timers, timers before the expiration of
    windows; then processing-time timers that are due. But no window expires while a processing-time timer is due; and
    what was put off to the end of time (`MAX_TIMESTAMP`) has its turn when no processing-time timer is left, due or
    not. What is done with one thing may add others: they take their places.

    A stage whose input is in order of time lives as far behind its watermark as elements may be late, with its timers:
    its windows must be set to expire at their end, without the lateness.

    Args:
        timers: of the stage.
        ordered: its elements in order of time, if it wants them so.
    """

    __slots__ = ("_ordered", "_timers")

    def __init__(self, timers: Timers, ordered: SortedInput | None = None) -> None:
        self._timers = timers
        self._ordered = ordered

    def next(self, watermark: Timestamp, now: Timestamp) -> Element | Fired | None:
        """Takes what is next; None if nothing is due; see `is_due`.

        Args:
            watermark: of the stage's input.
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
        """Whether `next` would take something."""
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
        """Whether what is next in event time was put off, and there is something that it is to be behind of."""
        return event == MAX_TIMESTAMP and self._timers.next_processing() is not None
