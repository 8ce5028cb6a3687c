"""The timers of one stage in one shard, in the view.

Owns timers' rows and the order in which they fire. Must not know what a timer does, nor the time: both clocks are
arguments.

A timer is identified by its user key, window, family and tag; setting it again replaces it. It has two rows: its place
(by its identity), and an entry in an index by time. A timer that holds the output watermark has a third one, in the
index of holds, unless it holds at its firing time: then its entry serves as the hold. The next timers are read from the
rows, some hundred ahead. Timers that are expected to fire before the micro-batch ends have no rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Final, NamedTuple

from arcbeam.engine.rows import sequences
from arcbeam.engine.rows.frontier import Frontier
from arcbeam.engine.rows.keyspace import (
    END,
    NAME_LIMIT,
    OFFSET,
    RowKind,
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
"""The family of window expirations: event time, after all timers of their moment."""

_NO_HOLD: Final = b"\xff" * 8
_CUT: Final = b"\0\2"
_WHOLE: Final = b"\0"
_ORIGINALS: Final = b"\1"


class Fired(NamedTuple):
    """A timer that was taken and is no longer pending. A tuple, because one is created for every timer.

    Attributes:
        key: the encoded user key.
        window: the encoded window.
        family: as declared; `EXPIRATION` for the end of the window.
        tag: the dynamic tag.
        fire_at: its firing time.
        hold: the output timestamp; None if it holds nothing.
        payload: the payload that it was set with.
    """

    key: bytes
    window: bytes
    family: str
    tag: str
    fire_at: Timestamp
    hold: Timestamp | None
    payload: bytes


def within(fire_at: Timestamp, expires: Timestamp, origin: Timestamp | None) -> Timestamp | None:
    """Return when an event-time timer fires that user code sets.

    A timer after the end of its window fires at the end, because its window's state is deleted later. If the end's own
    callback sets a timer for later, that never fires: it would set itself forever. So firing depends only on times,
    not on the watermark.

    Args:
        fire_at: the time that user code requested.
        expires: when the window expires.
        origin: the time of the timer whose callback sets this one; None if no timer's callback sets it.

    Returns:
        When it fires; None if it never does.
    """
    if fire_at <= expires:
        return fire_at
    return None if origin is not None and origin >= expires else expires


# The order of a timer without a row is the key of the row that it would have in the index, after the stage: moment,
# rank, slot.
_slot_of: Final = itemgetter(slice(9, None))


class Timers:
    """The timers of a stage.

    Event-time timers fire when the watermark has passed their time, in the order of their times. Timers of the same
    time have an order that depends only on their identities, with expirations last. Processing-time timers fire when
    the clock has reached their time. A timer set by a callback takes its place in that order.

    No other code may write timers' rows while this object is in use.

    Args:
        view: the view of the shard.
        stage: the stage's number.
        families: the time domain of each family.

    Attributes:
        more_event, more_clock, more_ends: the change of the number of timers with rows: of event time, of processing
            time, and of expirations.
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
        self._keyed = prefix(RowKind.KEYED, stage)
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
        self._imminent: InMemoryTimers[bytes, bytes, Fired] = InMemoryTimers(_slot_of)
        self._soon = b""
        self.more_event = self.more_clock = self.more_ends = 0

    # Timers without rows.

    def expect(self, watermark: Timestamp) -> None:
        """Announce where the watermark will be, and that the caller will take all timers that it lets fire.

        Until `settle`, timers set for before that have no rows, and hold nothing.
        """
        self._soon = _limit(watermark)

    def settle(self) -> None:
        """Write rows for timers that were expected to fire, but have not."""
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
        """Set a timer, in place of its previous setting.

        Args:
            key: the encoded user key.
            window: the encoded window.
            family: a declared one, or `EXPIRATION`.
            fire_at: event or processing time, by the family's domain.
            hold: the output timestamp: the output watermark does not pass it while the timer is pending; None for a
                timer that holds nothing.
            tag: the dynamic tag.
            payload: stored for the callback.

        Raises:
            ValueError: there is no such family, or a time has more than 64 bits.
        """
        slot = self._slot(key, window, family, tag)
        view = self._view
        try:
            at = (fire_at + OFFSET).to_bytes(8, "big")
            held = at if hold == fire_at else _NO_HOLD if hold is None else moment(hold)
        except OverflowError:
            raise ValueError(
                f"a timer {family!r} of stage {self._stage} is set to {fire_at} µs and holds at {hold}: "
                "a time must fit into 64 bits"
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
            # Before the preparations for a row, because most timers are set here.
            timer = _new(Fired, (key, window, family, tag, fire_at, hold, payload))
            self._imminent.put(slot, at + b"\0" + slot, timer)
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

    def put_back(self, fired: Fired) -> None:
        """Set a timer again that was taken, as it was."""
        key, window, family, tag, fire_at, hold, payload = fired
        self.set(key, window, family, fire_at, hold, tag, payload)

    def clear(self, key: bytes, window: bytes, family: str, tag: str = "") -> None:
        """Clear a timer, if it is pending.

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
        """Return a timer's firing time; None if it is not pending."""
        slot = self._slot(key, window, family, tag)
        if (timer := self._imminent.get(slot)) is not None:
            return timer.fire_at
        old = self._view.get(self._keyed + slot)
        return None if old is None else time_of(old[1:9])

    def drop(self, key: bytes, window: bytes) -> int:
        """Clear all timers of a user key in a window, including its expiration; return their number."""
        start = self._keyed + part(key) + part(window, NAME_LIMIT) + _SECTION
        cleared = [timer for timer in self._imminent if timer[:2] == (key, window)]
        for timer in cleared:
            self._imminent.remove(self._slot(*timer[:4]))
        dropped = len(cleared)
        for row, place in self._view.scan(start, after(start)):
            self.drop_row(row, place)
            dropped += 1
        return dropped

    def drop_row(self, row: bytes, place: bytes) -> None:
        """Clear the timer with this row, of a user key and window."""
        self._view.delete(row)
        self._forget(row[3:], place)

    # Firing.

    def next_event(self) -> Timestamp | None:
        """Return the time of the first event-time timer; None if there is none."""
        entry = self._first_event()
        order = None if entry is None else entry[3:]
        if self._imminent:
            soon = self._imminent.first()
            order = soon if order is None or soon is None else min(order, soon)
        return None if order is None else time_of(order[:8])

    def next_processing(self) -> Timestamp | None:
        """Return the time of the first processing-time timer; None if there is none."""
        entry = self._clock.first()
        return None if entry is None else time_of(entry[3:11])

    def awaits_clock(self, key: bytes, window: bytes) -> bool:
        """Return whether a user key has a processing-time timer in a window."""
        if self._clock.first() is None:
            return False
        start = self._keyed + part(key) + part(window, NAME_LIMIT) + _SECTION
        return any(place[0] == _BY_CLOCK for _, place in self._view.scan(start, after(start)))

    def take_event(self, watermark: Timestamp, expirations: bool = True) -> Fired | None:
        """Take the first event-time timer, or None if the watermark has passed none.

        Args:
            watermark: the stage's input watermark.
            expirations: if false, and the first timer is an expiration, nothing is taken.
        """
        if watermark != self._watermark:
            # `comparison.passed`, on encodings: below the watermark, or any if it is the last one.
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
        """Take timers without rows, one after another, in the order of `take_event`; it may take only some of them.

        Args:
            watermark: the stage's input watermark.
        """
        if self._imminent:
            # Rows that are set meanwhile come after all of these, because earlier timers have no rows.
            entry, limit = self._first_event(), _limit(watermark)
            yield from self._imminent.below(limit if entry is None else min(limit, entry[3:]))

    def take_processing(self, now: Timestamp) -> Fired | None:
        """Take the first due processing-time timer, or None if none is due."""
        entry = self._clock.first()
        return None if entry is None or entry[3:11] > moment(now) else self._take(entry)

    def unknown(self, family: str) -> ValueError:
        """Return the error about a family that the stage does not have."""
        known = ", ".join(repr(each) for each in self._families if each) or "none"
        return ValueError(f"stage {self._stage} has no timer family {family!r}; it has {known}")

    def pending(self) -> Iterator[Fired]:
        """Yield all pending timers: those without rows, then the others in firing order, event time first."""
        yield from self._imminent
        event = [prefix(kind, self._stage) for kind in (RowKind.EVENT_HELD, RowKind.EVENT)]
        rows = [row for start in event for row in self._view.scan(start, after(start))]
        rows.sort(key=lambda row: row[0][3:])
        start = prefix(RowKind.PROCESSING, self._stage)
        for entry, value in (*rows, *self._view.scan(start, after(start))):
            yield _fired(entry, value)

    def validate(self) -> None:
        """Check that rows and entries agree; AssertionError if not."""
        slots = set()
        holds = 0
        for index, front in self._fronts.items():
            kind = RowKind(index)
            start = prefix(kind, self._stage)
            rows = list(self._view.scan(start, after(start)))
            assert front.first() == (rows[0][0] if rows else None), f"{kind.name}: the front is not at the first row"
            for entry, value in rows:
                slot = entry[12:]
                place = self._view.get(self._keyed + slot)
                assert place is not None, f"{_fired(entry, value)} has an entry without its row"
                assert place[:_PLACE] == entry[:1] + entry[3:12], f"{_fired(entry, value)} has another place"
                hold = place[_PLACE:]
                assert not hold or hold == value[:8], f"{_fired(entry, value)} has another hold"
                assert not hold or self._view.get(self._holds + hold + _KEYED + slot) is not None, "a hold is missing"
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
        if entry[0] != RowKind.EVENT_HELD and held != _NO_HOLD:
            self._view.delete(self._holds + held + _KEYED + slot)
        if value[8] or not slot.endswith(self._ended):
            fired = _fired(entry, value)
            if not value[8]:
                self._ended, self._ended_as = slot[slot.index(END) :], fired[1:4]
            return fired
        # Most timers that fire have the same window and family as the one before.
        window, family, tag = self._ended_as
        key = slot[: -len(self._ended)]
        if b"\0" in key:
            key = unescaped(key)
        fire_at = Timestamp(_MOMENT(entry, 3)[0] - OFFSET)
        hold = fire_at if held == at else None if held == _NO_HOLD else time_of(held)
        return _new(Fired, (key, window, family, tag, fire_at, hold, value[9:]))

    def _forget(self, slot: bytes, place: bytes) -> None:
        """Remove a timer's entry and hold."""
        self._less(place[0], place[9])
        self._fronts[place[0]].delete(place[:1] + self._keyed[1:] + place[1:_PLACE] + slot)
        if len(place) > _PLACE:
            self._view.delete(self._holds + place[_PLACE:] + _KEYED + slot)

    def _less(self, index: int, rank: int) -> None:
        """Count the removal of an entry."""
        if rank:
            self.more_ends -= 1
        elif index == _BY_CLOCK:
            self.more_clock -= 1
        else:
            self.more_event -= 1

    def _slot(self, key: bytes, window: bytes, family: str, tag: str) -> bytes:
        # Most calls have the same window, many the same key as the one before.
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


_INDEXES: Final = (RowKind.EVENT_HELD, RowKind.EVENT, RowKind.PROCESSING)
_BY_CLOCK: Final = int(RowKind.PROCESSING)
_NO_END: Final = b"\xff"
"""No slot ends with this."""
_PLACE: Final = 10
"""The length of the place of a timer's entry: kind, moment, rank."""
_SECTION: Final = bytes((Section.TIMER,))
_KEYED: Final = bytes((RowKind.KEYED,))


def _limit(watermark: Timestamp) -> bytes:
    """Return the upper bound (exclusive) of the encoded moments of timers that a watermark lets fire."""
    return _NO_HOLD if watermark == MAX_TIMESTAMP else moment(watermark)


def key_of_entry(entry: bytes, value: bytes) -> bytes:
    """Return the whole user key of a timer, from its entry in an index."""
    return _fired(entry, value).key


def _fired(entry: bytes, value: bytes) -> Fired:
    # Executed for every timer: one-line functions are inlined, and a tuple costs half as much as Fired(…).
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
