"""The timers of one stage in one shard, over the view.

Owns timers' rows and the order in which they fire. Must not know what a timer does, nor what time it is: both clocks
are arguments.

A timer is known by its user key, window, family and tag; setting it again replaces it. It is two rows: where it stands
(by what it is known by), and an entry in an index by time. A timer that holds the output watermark has a third one, in
the index of holds, unless it holds at the very time at which it fires: its entry serves as the hold. What fires next is
read from the rows, some hundred ahead. Timers that are expected to have fired when the micro-batch ends have none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from arcbeam.engine.rows import sequences
from arcbeam.engine.rows.frontier import Frontier
from arcbeam.engine.rows.keyspace import (
    END,
    NAME_LIMIT,
    OFFSET,
    Kind,
    Section,
    after,
    moment,
    name,
    part,
    parts,
    prefix,
    time_of,
    unescaped,
)
from arcbeam.engine.state.inmemorytimers import InMemoryTimers
from arcbeam.engine.watermarks.holds import entry_of
from arcbeam.model.interfaces import StateView
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp

EXPIRATION: Final = ""
"""The family of window expirations: event time, behind all timers of their moment."""

_NO_HOLD: Final = b"\xff" * 8
_CUT: Final = b"\0\2"
_WHOLE: Final = b"\0"
_ORIGINALS: Final = b"\1"


class Fired(NamedTuple):
    """A timer that is pending no more. A tuple, because it is made for every timer.

    Attributes:
        key: encoded user key.
        window: encoded window.
        family: as declared; `EXPIRATION` for the end of the window.
        tag: dynamic tag.
        fire_at: when it was to fire.
        hold: the output timestamp; None if it holds nothing back.
        payload: what it was set with.
    """

    key: bytes
    window: bytes
    family: str
    tag: str
    fire_at: Timestamp
    hold: Timestamp | None
    payload: bytes


def within(fire_at: Timestamp, expires: Timestamp, origin: Timestamp | None) -> Timestamp | None:
    """When an event-time timer fires that user code sets.

    A timer for after the end of its window fires at the end: its window's state is gone later. What the end itself
    sets for later never fires: it would set itself for ever. So what fires depends on times only, not on where the
    watermark is.

    Args:
        fire_at: what user code asked for.
        expires: when the window expires.
        origin: the time of the timer whose callback asks for it; None if it is not a timer's.

    Returns:
        When it fires; None if it never does.
    """
    if fire_at <= expires:
        return fire_at
    return None if origin is not None and origin >= expires else expires


class Timers:
    """The timers of a stage.

    Event-time timers fire when the watermark has passed their time, in the order of their times; those of one time in
    an order that depends only on what they are known by, expirations last. Processing-time timers fire when the clock
    has come to their time. What a callback sets takes its place in that order.

    Nobody else may write timers' rows while this object is in use.

    Args:
        view: of the shard.
        stage: the stage's number.
        families: the time domain of each family.

    Attributes:
        more_event, more_clock, more_ends: by how many more than at first there are that have rows: timers of event
            time, of processing time, and expirations.
    """

    __slots__ = (
        "_clock",
        "_ended",
        "_ended_as",
        "_ending",
        "_families",
        "_free",
        "_fronts",
        "_held",
        "_holds",
        "_imminent",
        "_key",
        "_keyed",
        "_limit",
        "_soon",
        "_stage",
        "_start",
        "_tails",
        "_view",
        "_watermark",
        "_window",
        "more_clock",
        "more_ends",
        "more_event",
    )

    def __init__(self, view: StateView, stage: int, families: Mapping[str, TimeDomain]) -> None:
        self._view = view
        self._stage = stage
        self._families = {**families, EXPIRATION: TimeDomain.EVENT}
        self._keyed = prefix(Kind.KEYED, stage)
        self._holds = entry_of(stage, b"", b"")
        self._held, self._free, self._clock = (Frontier(view, prefix(kind, stage)) for kind in _INDEXES)
        self._fronts: dict[int, Frontier] = dict(zip(_INDEXES, (self._held, self._free, self._clock), strict=True))
        self._tails = {family: _SECTION + name(family) for family in self._families}
        self._key: bytes | None = None
        self._window: bytes | None = None
        self._start = self._ending = b""
        self._ended = _NO_END
        self._ended_as = (b"", "", "")
        self._watermark: Timestamp | None = None
        self._limit = b""
        self._imminent: InMemoryTimers[Fired] = InMemoryTimers()
        self._soon = b""
        self.more_event = self.more_clock = self.more_ends = 0

    # What needs no rows.

    def expect(self, watermark: Timestamp) -> None:
        """The watermark will be there, and what it lets fire be taken.

        What is set for before that has no rows, and holds nothing, until `settle`.
        """
        self._soon = _limit(watermark)

    def settle(self) -> None:
        """Makes rows of what was expected to fire, and has not."""
        self._soon = b""
        if self._imminent:
            for key, window, family, tag, fire_at, hold, payload in self._imminent.take_all():
                self.set(key, window, family, fire_at, hold, tag, payload)

    # Setting and clearing.

    def set(
        self,
        key: bytes,
        window: bytes,
        family: str,
        fire_at: Timestamp,
        hold: Timestamp | None,
        tag: str = "",
        payload: bytes = b"",
    ) -> None:
        """Sets a timer, in place of what it was set to.

        Args:
            key: encoded user key.
            window: encoded window.
            family: a declared one, or `EXPIRATION`.
            fire_at: event or processing time, by the family's domain.
            hold: the output timestamp: the output watermark does not pass it while the timer is pending; None for a
                timer that holds nothing back.
            tag: dynamic tag.
            payload: kept for who is called.

        Raises:
            ValueError: there is no such family; a time has more than 64 bits.
        """
        slot = self._slot(key, window, family, tag)
        view = self._view
        try:
            at = (fire_at + OFFSET).to_bytes(8, "big")
            held = at if hold == fire_at else _NO_HOLD if hold is None else moment(hold)
        except OverflowError:
            raise ValueError(
                f"a timer {family!r} of stage {self._stage} is set to {fire_at} µs and holds at {hold}: "
                "no time has more than 64 bits"
            ) from None
        if self._families[family] is TimeDomain.PROCESSING:
            front = self._clock
        elif held == at:
            front = self._held
        else:
            front = self._free
        row = self._keyed + slot
        old = view.get(row)
        if at < self._soon and family and front is not self._clock:
            if old is not None:
                view.delete(row)
                self._forget(slot, old)
            # Before what a row would need: most timers that are set at all are of these.
            timer = _new(Fired, (key, window, family, tag, fire_at, hold, payload))
            self._imminent.put(at + b"\0" + slot, timer)
            return
        head = at + (b"\0" if family else b"\1")
        place = front.start[:1] + head
        if front is not self._held and hold is not None and hold < MAX_TIMESTAMP:
            place += held
        if _CUT in slot:
            originals = (key, window, family.encode(), tag.encode(), payload)
            value = held + _ORIGINALS + b"".join(map(sequences.framed, originals))
        else:
            value = held + _WHOLE + payload
        self._imminent.remove(slot)
        entry = front.start + head + slot
        if old is not None:
            if old == place and view.get(entry) == value:
                return
            self._forget(slot, old)
        view.put(row, place)
        front.put(entry, value)
        if front is self._clock:
            self.more_clock += 1
        elif family:
            self.more_event += 1
        else:
            self.more_ends += 1
        if len(place) > _PLACE:
            view.put(self._holds + held + _KEYED + slot, b"")

    def clear(self, key: bytes, window: bytes, family: str, tag: str = "") -> None:
        """Makes a timer pending no more; nothing happens if it is not.

        Raises:
            ValueError: there is no such family.
        """
        slot = self._slot(key, window, family, tag)
        self._imminent.remove(slot)
        old = self._view.get(self._keyed + slot)
        if old is not None:
            self._view.delete(self._keyed + slot)
            self._forget(slot, old)

    def get(self, key: bytes, window: bytes, family: str, tag: str = "") -> Timestamp | None:
        """When a timer is to fire; None if it is not pending."""
        slot = self._slot(key, window, family, tag)
        if (timer := self._imminent.get(slot)) is not None:
            return timer.fire_at
        old = self._view.get(self._keyed + slot)
        return None if old is None else time_of(old[1:9])

    def drop(self, key: bytes, window: bytes) -> int:
        """Clears all timers of a user key in a window, its expiration too; how many those were."""
        start = self._keyed + part(key) + part(window, NAME_LIMIT) + _SECTION
        gone = [timer for timer in self._imminent if timer[:2] == (key, window)]
        for timer in gone:
            self._imminent.remove(self._slot(*timer[:4]))
        dropped = len(gone)
        for row, place in self._view.scan(start, after(start)):
            self.drop_row(row, place)
            dropped += 1
        return dropped

    def drop_row(self, row: bytes, place: bytes) -> None:
        """Clears the timer that stands in a row of a user key and window."""
        self._view.delete(row)
        self._forget(row[3:], place)

    # Firing.

    def next_event(self) -> Timestamp | None:
        """The time of the event-time timer that fires first; None if there is none."""
        entry = self._first_event()
        order = None if entry is None else entry[3:]
        if self._imminent:
            soon = self._imminent.first()
            order = soon if order is None or soon is None else min(order, soon)
        return None if order is None else time_of(order[:8])

    def next_processing(self) -> Timestamp | None:
        """The time of the processing-time timer that fires first; None if there is none."""
        entry = self._clock.first()
        return None if entry is None else time_of(entry[3:11])

    def awaits_clock(self, key: bytes, window: bytes) -> bool:
        """Whether a user key has a processing-time timer in a window."""
        if self._clock.first() is None:
            return False
        start = self._keyed + part(key) + part(window, NAME_LIMIT) + _SECTION
        return any(place[0] == _BY_CLOCK for _, place in self._view.scan(start, after(start)))

    def take_event(self, watermark: Timestamp, expirations: bool = True) -> Fired | None:
        """Takes the event-time timer that fires first, or None if the watermark has passed none.

        Args:
            watermark: the stage's input watermark.
            expirations: if not, and an expiration is first, nothing is taken.
        """
        if watermark != self._watermark:
            # `moments.passed`, on encodings: below the watermark, or any if it is the last one.
            self._watermark = watermark
            self._limit = _limit(watermark)
        entry = self._first_event()
        if self._imminent:
            soon = self._imminent.first()
            if soon is not None and (entry is None or soon < entry[3:]):
                return self._imminent.take(soon) if soon[:8] < self._limit else None
        if entry is None or entry[3:11] >= self._limit or (entry[11] and not expirations):
            return None
        return self._take(entry)

    def take_imminent(self, watermark: Timestamp) -> Iterator[Fired]:
        """Takes timers without rows, one after another, as `take_event` would; perhaps not all that it would take.

        Args:
            watermark: the stage's input watermark.
        """
        if self._imminent:
            # Rows that are set meanwhile are behind all of these: what is due before has none.
            entry, limit = self._first_event(), _limit(watermark)
            yield from self._imminent.below(limit if entry is None else min(limit, entry[3:]))

    def take_processing(self, now: Timestamp) -> Fired | None:
        """Takes the processing-time timer that is due first, or None if none is due."""
        entry = self._clock.first()
        return None if entry is None or entry[3:11] > moment(now) else self._take(entry)

    def unknown(self, family: str) -> ValueError:
        """What is said of a family that the stage does not have."""
        known = ", ".join(repr(each) for each in self._families if each) or "none"
        return ValueError(f"stage {self._stage} has no timer family {family!r}; it has {known}")

    def pending(self) -> Iterator[Fired]:
        """All pending timers: those without rows, then the others as they would fire, event time first. They stay."""
        yield from self._imminent
        event = [prefix(kind, self._stage) for kind in (Kind.EVENT_HELD, Kind.EVENT)]
        rows = [row for start in event for row in self._view.scan(start, after(start))]
        rows.sort(key=lambda row: row[0][3:])
        start = prefix(Kind.PROCESSING, self._stage)
        for entry, value in (*rows, *self._view.scan(start, after(start))):
            yield _fired(entry, value)

    def validate(self) -> None:
        """Checks that rows and entries agree; AssertionError if not."""
        slots = set()
        holds = 0
        for index, front in self._fronts.items():
            kind = Kind(index)
            start = prefix(kind, self._stage)
            rows = list(self._view.scan(start, after(start)))
            assert front.first() == (rows[0][0] if rows else None), f"{kind.name}: not the first row is read next"
            for entry, value in rows:
                slot = entry[12:]
                place = self._view.get(self._keyed + slot)
                assert place is not None, f"{_fired(entry, value)} is in the index alone"
                assert place[:_PLACE] == entry[:1] + entry[3:12], f"{_fired(entry, value)} stands elsewhere"
                hold = place[_PLACE:]
                assert not hold or hold == value[:8], f"{_fired(entry, value)} holds elsewhere"
                assert not hold or self._view.get(self._holds + hold + _KEYED + slot) is not None, "a hold is lost"
                holds += bool(hold)
                slots.add(slot)
        owners = [row[len(self._holds) + 8 :] for row, _ in self._view.scan(self._holds, after(self._holds))]
        kept = [owner[1:] for owner in owners if owner[:1] == _KEYED and parts(owner[1:])[2][:1] == _SECTION]
        assert len(kept) == holds, "a hold of a timer that is not pending"
        assert slots.issuperset(kept), "a hold of a timer that is not pending"

    def _first_event(self) -> bytes | None:
        held, free = self._held.first(), self._free.first()
        if held is None or free is None:
            return free if held is None else held
        return held if held[3:] < free[3:] else free

    def _take(self, entry: bytes) -> Fired:
        value = self._fronts[entry[0]].take(entry)
        slot = entry[12:]
        self._view.delete(self._keyed + slot)
        self._less(entry[0], entry[11])
        at, held = entry[3:11], value[:8]
        if entry[0] != Kind.EVENT_HELD and held != _NO_HOLD:
            self._view.delete(self._holds + held + _KEYED + slot)
        if value[8] or not slot.endswith(self._ended):
            fired = _fired(entry, value)
            if not value[8]:
                self._ended, self._ended_as = slot[slot.index(END) :], fired[1:4]
            return fired
        # Most that fire are of the same window and family as the one before.
        window, family, tag = self._ended_as
        key = slot[: -len(self._ended)]
        if b"\0" in key:
            key = unescaped(key)
        fire_at = Timestamp(_MOMENT(entry, 3)[0] - OFFSET)
        hold = fire_at if held == at else None if held == _NO_HOLD else time_of(held)
        return _new(Fired, (key, window, family, tag, fire_at, hold, value[9:]))

    def _forget(self, slot: bytes, place: bytes) -> None:
        """Removes a timer's entry and hold."""
        self._less(place[0], place[9])
        self._fronts[place[0]].delete(place[:1] + self._keyed[1:] + place[1:_PLACE] + slot)
        if len(place) > _PLACE:
            self._view.delete(self._holds + place[_PLACE:] + _KEYED + slot)

    def _less(self, index: int, rank: int) -> None:
        """An entry goes."""
        if rank:
            self.more_ends -= 1
        elif index == _BY_CLOCK:
            self.more_clock -= 1
        else:
            self.more_event -= 1

    def _slot(self, key: bytes, window: bytes, family: str, tag: str) -> bytes:
        # Most calls are about the same window, many about the same key as the one before.
        if window != self._window:
            self._window, self._key = window, None
            self._ending = part(window, NAME_LIMIT)
        if key != self._key:
            self._key = key
            self._start = part(key) + self._ending
        tail = self._tails.get(family)
        if tail is None:
            raise self.unknown(family)
        return self._start + tail + (part(tag.encode()) if tag else END)


_INDEXES: Final = (Kind.EVENT_HELD, Kind.EVENT, Kind.PROCESSING)
_BY_CLOCK: Final = int(Kind.PROCESSING)
_NO_END: Final = b"\xff"
"""What no slot ends with."""
_PLACE: Final = 10
"""Bytes that say where a timer's entry is: kind, moment, rank."""
_SECTION: Final = bytes((Section.TIMER,))
_KEYED: Final = bytes((Kind.KEYED,))


def _limit(watermark: Timestamp) -> bytes:
    """What the moments of timers that it lets fire are less than."""
    return _NO_HOLD if watermark == MAX_TIMESTAMP else moment(watermark)


def _fired(entry: bytes, value: bytes) -> Fired:
    # Done for every timer: calls of one line are written out, and a tuple is made at half the price of Fired(…).
    at, held = entry[3:11], value[:8]
    fire_at = Timestamp(_MOMENT(entry, 3)[0] - OFFSET)
    hold = fire_at if held == at else None if held == _NO_HOLD else time_of(held)
    if value[8]:
        key, window, family, tag, payload = sequences.unframed(value, 9)
        return Fired(key, window, family.decode(), tag.decode(), fire_at, hold, payload)
    key, window, family, tag, _ = entry[12:].split(END)
    if b"\0\xff" in entry:
        key, window = key.replace(b"\0\xff", b"\0"), window.replace(b"\0\xff", b"\0")
        tag = tag and tag.replace(b"\0\xff", b"\0")
    return _new(Fired, (key, window, family[1:].decode(), tag.decode() if tag else "", fire_at, hold, value[9:]))


_new: Final = tuple.__new__
_MOMENT: Final = struct.Struct(">Q").unpack_from
