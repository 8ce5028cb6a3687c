"""Holds: why a watermark of a stage may not pass a moment, in one shard, by name.

Owns the rows of holds and their index by time, and what all indexes say together about the earliest. Must not know what
is held for, nor what the watermark is.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from arcbeam.engine.rows.keyspace import (
    END,
    NAME_LIMIT,
    Kind,
    Section,
    after,
    moment,
    name,
    part,
    parts,
    prefix,
    shown,
    time_of,
)
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp

ALL: Final = ""
"""In place of an output's name: all of them."""


GATHERED: Final = "end of window"
"""The timer family of a window's end, which a grouping sets for all keys, with no bytes as key. No user's family."""


class Side(enum.Enum):
    """Which of a stage's watermarks is held."""

    INPUT = enum.auto()
    """By work that is pending: it may still bring elements of its time into the stage, so nothing there may fire."""
    OUTPUT = enum.auto()
    """By what may still be output with an earlier timestamp, though the stage itself goes on."""


class HolderKind(enum.IntEnum):
    """What kind of thing holds."""

    STATE = 1
    TIMER = 2
    RESIDUAL = 3
    PARKED = 4
    RUNNING = 5
    ELEMENT = 6
    SORTED = 7
    SCRIPT = 8
    GATHERED = 9
    UNPREPARED = 10

    def __str__(self) -> str:
        return _WORDS[self]


_WORDS = {
    HolderKind.STATE: "state",
    HolderKind.TIMER: "timer",
    HolderKind.RESIDUAL: "residual",
    HolderKind.PARKED: "parked element",
    HolderKind.RUNNING: "running restriction",
    HolderKind.ELEMENT: "pending element",
    HolderKind.SORTED: "element in order of time",
    HolderKind.SCRIPT: "script",
    HolderKind.GATHERED: "elements of all keys that wait for the end of their window",
    HolderKind.UNPREPARED: "user code that is to prepare to shut down",
}


class Holder(NamedTuple):
    """What a hold is known by: setting it again moves it. A tuple, because one is made for every window of a key.

    Attributes:
        kind: of thing that holds.
        name: of the state family, timer, residual, …
        key: encoded user key; None if it belongs to none.
        window: encoded window; only with a key.
    """

    kind: HolderKind
    name: str
    key: bytes | None = None
    window: bytes = b""


@dataclass(frozen=True, slots=True)
class Release:
    """When what holds has its turn.

    Attributes:
        at: the moment.
        by_clock: of processing time; if not, of event time: the stage's input watermark has to pass it.
    """

    at: Timestamp
    by_clock: bool


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold, for people and reports; long names are cut.

    Attributes:
        time: the watermark is no later.
        kind: what kind of thing holds.
        name: of the thing.
        output: the only output that is held; `ALL` if all are.
        key: its user key, as text; None if it has none.
        owner: the row that it stands in, or b"".
        release: when it has its turn, if somebody has looked (`engine.state.unblocking`).
        about: what it is of, for people; "" if that is not known.
    """

    time: Timestamp
    kind: HolderKind
    name: str
    output: str = ALL
    key: str | None = None
    owner: bytes = field(default=b"", repr=False, compare=False)
    release: Release | None = field(default=None, compare=False)
    about: str = field(default="", compare=False)

    def __str__(self) -> str:
        named = f" '{self.name}'" if self.name else ""
        return f"{self.kind}{named}" + ("" if self.key is None else f" of key {self.key!r}")


class Holds:
    """The holds of one side of one stage in one shard.

    A hold is two rows: its time by holder, and an index entry by time; so setting, moving and clearing cost the same
    however many there are, and the earliest is the first entry. Event-time timers that hold at the time at which they
    fire, and elements that wait in order of time, have indexes of their own, which serve as this one does.

    Args:
        view: of the shard.
        stage: the stage's number.
        side: whose holds.
    """

    __slots__ = (
        "_ending", "_free", "_index", "_keyed", "_kind", "_name", "_named", "_others", "_output", "_section", "_view",
        "_who", "_window",
    )  # fmt: skip

    def __init__(self, view: StateView, stage: int, side: Side = Side.OUTPUT) -> None:
        self._view = view
        outward = side is Side.OUTPUT
        self._section = bytes((Section.HOLD if outward else Section.PENDING,))
        self._index = prefix(Kind.HOLDS if outward else Kind.PENDING, stage)
        self._keyed = prefix(Kind.KEYED, stage)
        self._free = prefix(Kind.FREE, stage) + self._section
        self._kind: HolderKind | None = None
        self._name, self._output, self._named, self._who = "", ALL, name(ALL), b""
        self._window = b""
        self._ending = part(b"", NAME_LIMIT) + self._section
        others = (Kind.EVENT_HELD, Kind.SORTED) if outward else ()
        self._others = tuple(prefix(kind, stage) for kind in others)

    def set(self, holder: Holder, time: Timestamp, output: str = ALL, floor: Timestamp = MIN_TIMESTAMP) -> Timestamp:
        """Holds a watermark, or moves a hold, to any time.

        Args:
            holder: who holds; it has one hold per output (and one for all of them).
            time: the watermark will be no later.
            output: the only one that is held.
            floor: the watermark that is held, as it was last said. What was said is not taken back: an earlier hold
                holds there.

        Returns:
            Where it holds.
        """
        if time < floor:
            time = floor
        row = self._row(holder, output)
        encoded = moment(time)
        old = self._view.get(row)
        if old == encoded:
            return time
        if old is not None:
            self._view.delete(self._entry(row, output, old))
        self._view.put(row, encoded)
        self._view.put(self._entry(row, output, encoded), b"")
        return time

    def get(self, holder: Holder, output: str = ALL) -> Timestamp | None:
        """Where a holder holds; None if it does not."""
        old = self._view.get(self._row(holder, output))
        return None if old is None else time_of(old)

    def clear(self, holder: Holder, output: str = ALL) -> None:
        """Lets go; nothing happens if it does not hold."""
        row = self._row(holder, output)
        old = self._view.get(row)
        if old is not None:
            self._view.delete(row)
            self._view.delete(self._entry(row, output, old))

    def clear_all(self, holder: Holder) -> dict[bytes, Timestamp]:
        """Lets go of all outputs, whichever there are; where each was held, by its `keyspace.name`."""
        start = self._row(holder, ALL).removesuffix(name(ALL))
        held: dict[bytes, Timestamp] = {}
        for row, time in self._view.scan(start, after(start)):
            output = row[len(start) :]
            held[output] = time_of(time)
            self._view.delete(row)
            self._view.delete(self._entry(row, output.removesuffix(END), time))
        return held

    def drop_row(self, row: bytes, time: bytes) -> None:
        """Lets go of the hold that stands in a row of a user key and window."""
        self._view.delete(row)
        self._view.delete(self._entry(row, _output_of(row), time))

    def earliest(self, output: str | None = None) -> Hold | None:
        """The earliest hold.

        Args:
            output: only holds that concern it; all holds if None.
        """
        if output is None:
            found = list(self._firsts())
        else:
            named = dict.fromkeys((ALL, output))
            found = [hold for each in named if (hold := self._first(self._index + name(each)))]
        found += [hold for other in self._others if (hold := self._first(other))]
        return min(found, key=lambda hold: hold.time, default=None)

    def all(self) -> Iterator[Hold]:
        """All holds of this side, those of each output ascending."""
        for start in (self._index, *self._others):
            for row, _ in self._view.scan(start, after(start)):
                yield _hold(row)

    def validate(self) -> None:
        """Checks that every hold has its entry in the index, and every entry its hold; AssertionError if not."""
        entries = set()
        for row, _ in self._view.scan(self._index, after(self._index)):
            output, _, rest = row[3:].partition(b"\0\1")
            owner = rest[8:]
            if owner[0] == Kind.KEYED and parts(owner[1:])[2][0] == Section.TIMER:
                continue  # of a timer: it has the row
            stored = self._view.get(owner[:1] + row[1:3] + owner[1:])
            assert stored == rest[:8], f"{_hold(row)} is in the index, but not where it should be"
            assert _encoded_output(owner) == output, f"{_hold(row)} is in the index of another output"
            entries.add(owner)
        for start in (self._keyed, self._free):
            for row, _ in self._view.scan(start, after(start)):
                section = row[3:4] if row[0] == Kind.FREE else parts(row[3:])[2][:1]
                if section == self._section:
                    assert row[:1] + row[3:] in entries, f"{row!r} is not in the index"

    def _first(self, start: bytes) -> Hold | None:
        """The first hold of an index, or of a part of it."""
        return next((_hold(row) for row, _ in self._view.scan(start, after(start))), None)

    def _firsts(self) -> Iterator[Hold]:
        """The first hold of each output that has any."""
        start, end = self._index, after(self._index)
        while True:
            row = next((row for row, _ in self._view.scan(start, end)), None)
            if row is None:
                return
            yield _hold(row)
            found = after(row[: row.index(b"\0\1", 3) + 2])
            assert found is not None
            start = found

    def _row(self, holder: Holder, output: str) -> bytes:
        kind, named, key, window = holder
        # Most calls are about the same kind, name, output and window as the one before.
        if kind is not self._kind or named != self._name or output != self._output:
            self._kind, self._name, self._output, self._named = kind, named, output, name(output)
            self._who = bytes((kind,)) + name(named) + self._named
        if key is None:
            return self._free + self._who
        if window != self._window:
            self._window, self._ending = window, part(window, NAME_LIMIT) + self._section
        return self._keyed + part(key) + self._ending + self._who

    def _entry(self, row: bytes, output: str | bytes, time: bytes) -> bytes:
        if output is self._output:
            named = self._named
        else:
            named = name(output) if isinstance(output, str) else output + b"\0\1"
        return self._index + named + time + row[:1] + row[3:]


def entry_of(stage: int, time: bytes, owner: bytes) -> bytes:
    """The key of an index entry that holds all outputs of a stage, for rows that are not this module's.

    Args:
        stage: the stage's number.
        time: a `moment`.
        owner: the kind's byte of the row that holds, and its key behind the stage.
    """
    return prefix(Kind.HOLDS, stage) + name(ALL) + time + owner


def _output_of(row: bytes) -> bytes:
    """The output that a row of a hold with a user key ends with, as it stands there."""
    return parts(row[3:])[3]


def _encoded_output(owner: bytes) -> bytes:
    pieces = parts(owner[1:])
    return pieces[3 if owner[0] == Kind.KEYED else 1]


def _hold(row: bytes) -> Hold:
    """The hold of an index entry."""
    if row[0] == Kind.EVENT_HELD:
        return _of_timer(time_of(row[3:11]), parts(row[12:]))
    if row[0] == Kind.SORTED:
        key = parts(row[19:])[0]
        return Hold(time_of(row[3:11]), HolderKind.SORTED, "", key=shown(key))
    output, _, rest = row[3:].partition(b"\0\1")
    time, kind, pieces = time_of(rest[:8]), rest[8], parts(rest[9:])
    owner = rest[8:9] + row[1:3] + rest[9:]
    if kind == Kind.FREE:
        who, user_key = pieces[0][1:], None
    else:
        if pieces[2][0] == Section.TIMER:
            return _of_timer(time, pieces, owner)
        who, user_key = pieces[2][1:], shown(pieces[0])
    return Hold(time, HolderKind(who[0]), shown(who[1:]), shown(output), user_key, owner)


def _of_timer(time: Timestamp, pieces: list[bytes], owner: bytes = b"") -> Hold:
    key, _, family, tag = pieces
    if not key and family[1:] == _GATHERED:
        return Hold(time, HolderKind.GATHERED, "")
    named = shown(family[1:]) + (f"/{shown(tag)}" if tag else "")
    return Hold(time, HolderKind.TIMER, named, key=shown(key), owner=owner)


_GATHERED: Final = GATHERED.encode()
