"""Holds: limits of a stage's watermarks in one shard, by name.

Owns the rows of holds and their index by time, and the earliest hold over all indexes. Must not know the reason of a
hold, nor the watermark.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from arcbeam.engine.rows.keyspace import (
    END,
    NAME_LIMIT,
    RowKind,
    Section,
    after,
    key_shown,
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
from arcbeam.pickling import QuickPickle

ALL: Final = ""
"""In place of an output's name: all outputs."""


WINDOW_END: Final = "end of window"
"""The timer family of a window's end, which a grouping sets for all keys, with an empty key. Not a user's family."""


_SUBJECT_CHARACTERS_MAX: Final = 60
"""Characters."""


class Side(enum.Enum):
    """Which of a stage's watermarks a hold limits."""

    INPUT = enum.auto()
    """Pending work holds it: the work may still bring elements of its time into the stage, so nothing there may
    fire."""
    OUTPUT = enum.auto()
    """Output with an earlier timestamp may still follow; the stage itself continues."""


class HolderKind(enum.IntEnum):
    """The kind of a holder."""

    STATE = 1
    TIMER = 2
    RESIDUAL = 3
    BLOCKED = 4
    RUNNING = 5
    ELEMENT = 6
    SORTED = 7
    SCRIPT = 8
    BUFFERED = 9
    UNPREPARED = 10

    def __str__(self) -> str:
        return _WORDS[self]


_WORDS = {
    HolderKind.STATE: "state",
    HolderKind.TIMER: "timer",
    HolderKind.RESIDUAL: "restriction",
    HolderKind.BLOCKED: "blocked element",
    HolderKind.RUNNING: "running restriction",
    HolderKind.ELEMENT: "pending element",
    HolderKind.SORTED: "element in order of time",
    HolderKind.SCRIPT: "TestStream",
    HolderKind.BUFFERED: "buffered elements of all keys",
    HolderKind.UNPREPARED: "user code that has yet to prepare to shut down",
}


class Holder(NamedTuple):
    """The identity of a hold: setting it again moves it. A tuple, because one is created for every window of a key.

    Attributes:
        kind: the kind of the holder.
        name: the name of the state family, timer, residual, …
        key: the encoded user key; None if it belongs to none.
        window: the encoded window; only with a key.
    """

    kind: HolderKind
    name: str
    key: bytes | None = None
    window: bytes = b""


@dataclass(frozen=True, slots=True)
class Release(QuickPickle):
    """When a hold is released.

    Attributes:
        at: the moment.
        by_clock: whether it is a processing time. If not, the stage's input watermark has to pass the moment.
    """

    at: Timestamp
    by_clock: bool


@dataclass(frozen=True, slots=True)
class Hold(QuickPickle):
    """A hold, for people and reports; long names are cut.

    time: the watermark is no later.
    kind: the kind of the holder.
    name: the name of the holder.
    output: the only output that is held; `ALL` if all are.
    key: its user key, as text; None if it has none.
    owner: its row, or b"".
    release: when it is released, if known (`engine.state.unblocking`).
    about: its subject, for people; "" if unknown.
    reason: why the restriction that holds has deferred itself, as its DoFn says; "" if that says nothing.
    size: the size of the restriction that holds; None if no restriction does, or if it is unknown.
    """

    time: Timestamp
    kind: HolderKind
    name: str
    output: str = ALL
    key: str | None = None
    owner: bytes = field(default=b"", repr=False, compare=False)
    release: Release | None = field(default=None, compare=False)
    about: str = field(default="", compare=False)
    reason: str = field(default="", compare=False)
    size: float | None = field(default=None, compare=False)

    @property
    def subject(self) -> str:
        """The beginning of `about`, in a line."""
        line = " ".join(self.about.split())
        return line if len(line) <= _SUBJECT_CHARACTERS_MAX else line[: _SUBJECT_CHARACTERS_MAX - 1] + "…"

    def __str__(self) -> str:
        # The name of a blocked element is that of its side input, as a digest, with its encoded window.
        named = f" '{self.name}'" if self.name and self.kind is not HolderKind.BLOCKED else ""
        if self.about and self.kind in (HolderKind.RESIDUAL, HolderKind.RUNNING):
            # The name of a restriction is a digest, and changes with each split.
            named = f" of element {self.subject}"
        return f"{self.kind}{named}" + ("" if self.key is None else f" of key {self.key!r}")


class Holds:
    """The holds of one side of one stage in one shard.

    A hold has two rows: its time by holder, and an index entry by time. So the cost of setting, moving and clearing
    does not depend on the number of holds, and the earliest is the first entry. Event-time timers that hold at their
    firing time, and elements that wait in order of time, have their own indexes, which serve the same purpose.

    Args:
        view: the view of the shard.
        stage: the stage's number.
        side: the side whose holds these are.
    """

    __slots__ = (
        "_ending",
        "_free",
        "_holder",
        "_index",
        "_keyed",
        "_kind",
        "_name",
        "_named",
        "_others",
        "_output",
        "_section",
        "_view",
        "_window",
    )  # fmt: skip

    def __init__(self, view: StateView, stage: int, side: Side = Side.OUTPUT) -> None:
        self._view = view
        outward = side is Side.OUTPUT
        self._section = bytes((Section.HOLD if outward else Section.PENDING,))
        self._index = prefix(RowKind.HOLDS if outward else RowKind.PENDING, stage)
        self._keyed = prefix(RowKind.KEYED, stage)
        self._free = prefix(RowKind.FREE, stage) + self._section
        self._kind: HolderKind | None = None
        self._name, self._output, self._named, self._holder = "", ALL, name(ALL), b""
        self._window = b""
        self._ending = part(b"", NAME_LIMIT) + self._section
        others = (RowKind.EVENT_HELD, RowKind.SORTED) if outward else ()
        self._others = tuple(prefix(kind, stage) for kind in others)

    def set(self, holder: Holder, time: Timestamp, output: str = ALL, reported: Timestamp = MIN_TIMESTAMP) -> Timestamp:
        """Set a hold, or move it to any time.

        Args:
            holder: the holder; it has one hold per output (and one for all outputs).
            time: the watermark will be no later.
            output: the only output that is held.
            reported: the last reported value of the held watermark, which cannot decrease. An earlier hold holds there.

        Returns:
            The time of the hold.
        """
        if time < reported:
            time = reported
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
        """Return the time of a hold; None if there is none."""
        old = self._view.get(self._row(holder, output))
        return None if old is None else time_of(old)

    def clear(self, holder: Holder, output: str = ALL) -> None:
        """Release a hold, if there is one."""
        row = self._row(holder, output)
        old = self._view.get(row)
        if old is not None:
            self._view.delete(row)
            self._view.delete(self._entry(row, output, old))

    def clear_all(self, holder: Holder) -> dict[bytes, Timestamp]:
        """Release the holds on all outputs; return the time of each by its `keyspace.name`."""
        start = self._row(holder, ALL).removesuffix(name(ALL))
        held: dict[bytes, Timestamp] = {}
        for row, time in self._view.scan(start, after(start)):
            output = row[len(start) :]
            held[output] = time_of(time)
            self._view.delete(row)
            self._view.delete(self._entry(row, output.removesuffix(END), time))
        return held

    def drop_row(self, row: bytes, time: bytes) -> None:
        """Release the hold with this row, of a user key and window."""
        self._view.delete(row)
        self._view.delete(self._entry(row, _output_of(row), time))

    def earliest(self, output: str | None = None) -> Hold | None:
        """Return the earliest hold.

        Args:
            output: only holds that concern this output; all holds if None.
        """
        if output is None:
            found = list(self._firsts())
        else:
            named = dict.fromkeys((ALL, output))
            found = [hold for each in named if (hold := self._first(self._index + name(each)))]
        found += [hold for other in self._others if (hold := self._first(other))]
        return min(found, key=lambda hold: hold.time, default=None)

    def all(self) -> Iterator[Hold]:
        """Yield all holds of this side, those of each output ascending."""
        for start in (self._index, *self._others):
            for row, _ in self._view.scan(start, after(start)):
                yield _hold(row)

    def validate(self) -> None:
        """Check that holds and index entries match; AssertionError if not."""
        entries = set()
        for row, _ in self._view.scan(self._index, after(self._index)):
            output, _, rest = row[3:].partition(b"\0\1")
            owner = rest[8:]
            if owner[0] == RowKind.KEYED and parts(owner[1:])[2][0] == Section.TIMER:
                continue  # a timer's entry: the timer has the row
            stored = self._view.get(owner[:1] + row[1:3] + owner[1:])
            assert stored == rest[:8], f"{_hold(row)} is in the index without its row"
            assert _encoded_output(owner) == output, f"{_hold(row)} is in the index of another output"
            entries.add(owner)
        for start in (self._keyed, self._free):
            for row, _ in self._view.scan(start, after(start)):
                section = row[3:4] if row[0] == RowKind.FREE else parts(row[3:])[2][:1]
                if section == self._section:
                    assert row[:1] + row[3:] in entries, f"{row!r} is not in the index"

    def _first(self, start: bytes) -> Hold | None:
        """Return the first hold of an index, or of a part of it."""
        return next((_hold(row) for row, _ in self._view.scan(start, after(start))), None)

    def _firsts(self) -> Iterator[Hold]:
        """Yield the first hold of each output that has any."""
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
        # Most calls have the same kind, name, output and window as the one before.
        if kind is not self._kind or named != self._name or output != self._output:
            self._kind, self._name, self._output, self._named = kind, named, output, name(output)
            self._holder = bytes((kind,)) + name(named) + self._named
        if key is None:
            return self._free + self._holder
        if window != self._window:
            self._window, self._ending = window, part(window, NAME_LIMIT) + self._section
        return self._keyed + part(key) + self._ending + self._holder

    def _entry(self, row: bytes, output: str | bytes, time: bytes) -> bytes:
        if output is self._output:
            named = self._named
        else:
            named = name(output) if isinstance(output, str) else output + b"\0\1"
        return self._index + named + time + row[:1] + row[3:]


def entry_of(stage: int, time: bytes, owner: bytes) -> bytes:
    """Return the key of an index entry that holds all outputs of a stage, for rows of other modules.

    Args:
        stage: the stage's number.
        time: a `moment`.
        owner: the row that holds: the kind's byte, and its key after the stage.
    """
    return prefix(RowKind.HOLDS, stage) + name(ALL) + time + owner


def _output_of(row: bytes) -> bytes:
    """Return the encoded output at the end of a hold's row with a user key."""
    return parts(row[3:])[3]


def _encoded_output(owner: bytes) -> bytes:
    pieces = parts(owner[1:])
    return pieces[3 if owner[0] == RowKind.KEYED else 1]


def _hold(row: bytes) -> Hold:
    """Return the hold of an index entry."""
    if row[0] == RowKind.EVENT_HELD:
        return _of_timer(time_of(row[3:11]), parts(row[12:]))
    if row[0] == RowKind.SORTED:
        key = parts(row[19:])[0]
        return Hold(time_of(row[3:11]), HolderKind.SORTED, "", key=key_shown(key))
    output, _, rest = row[3:].partition(b"\0\1")
    time, kind, pieces = time_of(rest[:8]), rest[8], parts(rest[9:])
    owner = rest[8:9] + row[1:3] + rest[9:]
    if kind == RowKind.FREE:
        holder, user_key = pieces[0][1:], None
    else:
        if pieces[2][0] == Section.TIMER:
            return _of_timer(time, pieces, owner)
        holder, user_key = pieces[2][1:], key_shown(pieces[0])
    return Hold(time, HolderKind(holder[0]), shown(holder[1:]), shown(output), user_key, owner)


def _of_timer(time: Timestamp, pieces: list[bytes], owner: bytes = b"") -> Hold:
    key, _, family, tag = pieces
    if not key and family[1:] == _WINDOW_END:
        return Hold(time, HolderKind.BUFFERED, "")
    named = shown(family[1:]) + (f"/{shown(tag)}" if tag else "")
    return Hold(time, HolderKind.TIMER, named, key=key_shown(key), owner=owner)


_WINDOW_END: Final = WINDOW_END.encode()
