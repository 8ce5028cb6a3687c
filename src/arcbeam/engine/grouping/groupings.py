"""Grouping by key and window: elements, watermarks and times in; panes, drops, holds and timers out, as values.

Owns the open windows of each key in a `StateView`: finding them, storing them, and the difference between what they
have asked for and what they ask for now. What happens to the windows of a key is decided in
`engine.grouping.keywindows`, what happens in one window in `.openwindow`. Must not know what carries its effects out.

Entries of a key: the grouping's space, the length of the key in four bytes, the key; then `w` and the window for its
record, or `e`, an address and a number for elements that are not in it. Key and window stand there whole, however long
they are. When a key's windows have expired, there are none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from typing_extensions import override

from arcbeam.engine.grouping.contents import Accumulated, Bag
from arcbeam.engine.grouping.effects import ClearHold, ClearTimer, Effect, SetHold, SetTimer
from arcbeam.engine.grouping.keywindows import Columns, KeyWindows
from arcbeam.engine.grouping.merging import Merging, OpenWindows, SessionMerging
from arcbeam.engine.grouping.openwindow import Clocks, OpenWindow, Rules, Stored, Wakeups
from arcbeam.engine.grouping.record import Record
from arcbeam.engine.grouping.singlepane import SinglePanes
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.grouping.triggers import UNLIMITED
from arcbeam.engine.rows.keyspace import after
from arcbeam.model.interfaces import StateView
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import NO_PANE, PaneInfo, Window

__all__ = ["Clocks", "Element", "Elements", "Grouping"]

_NOTHING = Wakeups()
_EVENT, _CLOCK = TimeDomain.EVENT, TimeDomain.PROCESSING


class Element(NamedTuple):
    """An element of a key.

    Attributes:
        value: its bytes; for a combiner, whatever that takes.
        timestamp: in event time.
        windows: that it is in; fastest if elements of the same windows share one object.
        pane: that it came in. A grouping makes its own panes, and forgets these.
    """

    value: Any
    timestamp: Timestamp
    windows: tuple[Window, ...]
    pane: PaneInfo = NO_PANE


WindowedElement = tuple[Any, Timestamp, tuple[Window, ...], PaneInfo]
"""An `Element`, or the same as a bare tuple."""


class Elements(Protocol):
    """Some elements that came together: a list of them, or what becomes one only where it is looked at.

    A stage that has nothing to decide for each of its elements asks for no more than their number, and hands them on.
    """

    def __len__(self) -> int:
        """How many they are."""

    def __iter__(self) -> Iterator[WindowedElement]:
        """Each of them, in the order in which they came."""


class Together(ABC):
    """Elements that came together, of which more is known: `Elements` that can be handed on without a look at each.

    Attributes:
        windows: those that each of them is in; None if they differ, or it is not known. Fastest if it is one object for
            elements of the same windows.
        packed: bytes of which who made this can make the elements again; None if there are none.
    """

    __slots__ = ()

    windows: tuple[Window, ...] | None
    packed: bytes | None

    @property
    def window(self) -> Window | None:
        """The one that all of them are in, and no other; None if there is none, or it is not known."""
        windows = self.windows
        return windows[0] if windows is not None and len(windows) == 1 else None

    @abstractmethod
    def __len__(self) -> int:
        """How many they are."""

    @abstractmethod
    def __iter__(self) -> Iterator[WindowedElement]:
        """Each of them, in the order in which they came."""


class Grouping:
    """Groups the elements of a shard.

    Stateless between calls but for the view: another one over the same entries goes on where this one was.

    Args:
        strategy: how to group.
        view: of the shard's state.
        space: what the grouping's entries begin with; no other's do.

    Attributes:
        rules: what the strategy comes to.
    """

    def __init__(self, strategy: Strategy, view: StateView, space: bytes = b"") -> None:
        self.rules = self._rules = Rules(strategy)
        self._view = view
        self._space = space
        self._short = SinglePanes(self._rules, view)
        self._more = 0

    @property
    def more(self) -> int:
        """By how many more windows than at first are stored; a window counts for each of its keys."""
        return self._more + self._short.more

    def add(self, key: bytes, elements: Iterable[WindowedElement], clocks: Clocks) -> list[Effect]:
        """Elements of a key have come, in that order.

        Drops those whose window has expired. What was due in a window before they came happens first, though its
        timer is fired later.
        """
        prefix = self._prefix(key)
        if self._rules.strategy.merging is None:
            columns = by_window(elements)
            effects = self._short.add(key, prefix + b"w", columns, clocks)
            if effects is not None:
                return effects
            turn = _Turn(self._rules, self._view, prefix, key, clocks)
            turn.add(columns)
        else:
            turn = _Turn(self._rules, self._view, prefix, key, clocks)
            turn.add_merging([(value, time, window) for value, time, windows, _ in elements for window in windows])
        return self._finished(turn)

    def fire(self, key: bytes, window: Window, domain: TimeDomain, clocks: Clocks) -> list[Effect]:
        """A timer that was asked for is due, and is no more. Firing one early, late or twice does no harm."""
        prefix = self._prefix(key)
        if domain is _EVENT:
            effects = self._short.fire(key, prefix + b"w", window, clocks)
            if effects is not None:
                return effects
        turn = _Turn(self._rules, self._view, prefix, key, clocks)
        turn.fire(window, domain)
        return self._finished(turn)

    def end(self, key: bytes, window: Window, came: Columns, late: Columns, clocks: Clocks) -> list[Effect]:
        """The watermark has passed the end of a window of a key, which has waited elsewhere; it goes on here.

        As if each element had been added when it came, and all that was due in between had happened then.

        Args:
            key: of the window.
            window: which one; windows do not merge.
            came: what came before its end was passed, in order.
            late: what came behind it, in order; its window had not expired by then.
            clocks: what time it is.
        """
        end, expiry, _ = self._rules.bounds(window)
        turn = _Turn(self._rules, self._view, self._prefix(key), key, clocks.at_most(end))
        if came[0]:
            turn.add({window: came})
        if late[0]:
            turn.advance(clocks.at_most(expiry))
            turn.add({window: late})
        turn.advance(clocks)
        return self._finished(turn)

    def _finished(self, turn: _Turn) -> list[Effect]:
        effects = turn.finish()
        self._more += turn.more
        return effects

    # For sessions that may pass without being stored.

    @property
    def sessions(self) -> SessionMerging | None:
        """How windows become one, if one that begins and expires in one micro-batch needs no state."""
        strategy = self._rules.strategy
        merging = strategy.merging if isinstance(strategy.merging, SessionMerging) else None
        alone = strategy.combiner is None and strategy.combine_times is None and self._rules.first_room == UNLIMITED
        return merging if alone else None

    def has_stored(self, key: bytes) -> bool:
        """Whether there is a window of the key."""
        prefix = self._prefix(key)
        return next(iter(self._view.scan(prefix + b"w", prefix + b"x")), None) is not None

    def is_empty(self) -> bool:
        """Whether nothing is stored."""
        return next(iter(self._view.scan(self._space, after(self._space))), None) is None

    def _prefix(self, key: bytes) -> bytes:
        """What all entries of a key begin with."""
        return b"".join((self._space, len(key).to_bytes(4, "big"), key))


class _Entry:
    """The record of a window in a turn.

    Attributes:
        place: the record's key.
        stored: the record before the turn; None if there was none.
        asked: the hold and timers before the turn.
    """

    __slots__ = ("asked", "place", "stored")

    def __init__(self, place: bytes, stored: bytes | None) -> None:
        self.place = place
        self.stored = stored
        self.asked = _NOTHING


class _Turn(KeyWindows[Stored]):
    """One call for one key: loads windows when they are needed, and stores them at the end.

    Invariant: each window in memory has an entry; a window with an entry that is not in memory does not exist any more.

    Attributes:
        more: by how many the number of stored windows has grown, after `finish`.
    """

    __slots__ = ("_entries", "_near", "_prefix", "_records", "_view", "more")

    def __init__(self, rules: Rules, view: StateView, prefix: bytes, key: bytes, clocks: Clocks) -> None:
        super().__init__(rules, key, clocks, self._fresh)
        self._view = view
        self._prefix = prefix
        self._records = prefix + b"w"
        self._entries: dict[Window, _Entry] = {}
        self._near: dict[Window, bytes] | None = None
        """Where windows merge: the records of all that may have any part in it."""
        self.more = 0

    def fire(self, window: Window, domain: TimeDomain) -> None:
        """A timer of a window has fired."""
        self._load(window, ticked=domain is _CLOCK)
        entry = self._entries[window]
        if domain is _EVENT:
            entry.asked = entry.asked._replace(event=None)
        else:
            entry.asked = entry.asked._replace(alarm=None)

    # The state.

    @override
    def _load(self, window: Window, ticked: bool = False) -> OpenWindow[Stored] | None:
        if window in self._entries:
            return None
        near, place = self._near, self._records + self._rules.bounds(window).ordered
        stored = self._view.get(place) if near is None else near.get(window)
        entry = self._entries[window] = _Entry(place, stored)
        if stored is None:
            return None
        record = Record.unpack(stored, self._rules.first_room)
        open = self._windows[window] = self._window(window, record, self._stored(window, record))
        entry.asked = open.wakeups()
        open.look(self._clocks, ticked)
        return open

    @override
    def _take(self, window: Window) -> OpenWindow[Stored] | None:
        taken = super()._take(window)
        if self._entries[window].stored is None:
            del self._entries[window]
        return taken

    def _stored(self, window: Window, record: Record) -> Stored:
        combiner = self._rules.strategy.combiner
        if combiner is not None:
            return Accumulated(combiner, record.contents)
        fresh = self._rules.bounds(window).ordered
        return Bag(self._view, self._element_key, fresh, record.address, record.entries, record.contents)

    def _fresh(self, window: Window) -> Stored:
        return self._stored(window, Record(0))

    def _element_key(self, address: bytes, number: int) -> bytes:
        return b"".join((self._prefix, b"e", address, number.to_bytes(4, "big")))

    @override
    def _active(self, merging: Merging, windows: Sequence[Window]) -> OpenWindows:
        start, cut = self._records, len(self._records)

        def scan(ordered: bytes) -> Iterator[tuple[bytes, bytes]]:
            for key, record in self._view.scan(start + ordered, self._prefix + b"x"):
                yield key[cut:], record

        self._near = dict(merging.near(windows, scan))
        for window in self._near:
            if self._expired(window):
                self._load(window)  # it ends here, before anything that came
        return merging.open([window for window in self._near if window not in self._entries])

    # The end of it.

    def finish(self) -> list[Effect]:
        """Stores what has changed; returns all that is asked for."""
        view = self._view
        for window, entry in self._entries.items():
            open, asked = self._windows.get(window), entry.asked
            if open is None or open.expired:
                if open is not None:
                    open.contents.clear()
                if entry.stored is not None:
                    view.delete(entry.place)
                    self.more -= 1
                wakeups = _NOTHING
            else:
                wakeups = open.wakeups()
                record = open.pack()
                if record != entry.stored:
                    view.put(entry.place, record)
                    self.more += entry.stored is None
            if wakeups != asked:
                self._ask(window, asked, wakeups)
        return self.out

    def _ask(self, window: Window, asked: Wakeups, wakeups: Wakeups) -> None:
        out, key = self.out, self._key
        (hold, event, alarm), (old_hold, old_event, old_alarm) = wakeups, asked
        if hold != old_hold:
            out.append(ClearHold(key, window) if hold is None else SetHold(key, window, hold))
        if event != old_event:
            out.append(ClearTimer(key, window, _EVENT) if event is None else SetTimer(key, window, _EVENT, event))
        if alarm != old_alarm:
            out.append(ClearTimer(key, window, _CLOCK) if alarm is None else SetTimer(key, window, _CLOCK, alarm))


def by_window(elements: Iterable[WindowedElement]) -> dict[Window, Columns]:
    """The columns of each window, in order of arrival."""
    came = elements if isinstance(elements, list) else list(elements)
    if not came:
        return {}
    all_values, all_times, all_windows, _ = zip(*came, strict=True)
    if all_windows.count(all_windows[0]) == len(came):
        return dict.fromkeys(all_windows[0], (all_values, all_times))
    columns: dict[Window, Any] = {}
    groups: dict[tuple[Window, ...], list[tuple[list[Any], list[Timestamp]]]] = {}
    last: Any = None
    group: list[tuple[list[Any], list[Timestamp]]] = []
    for value, time, windows, _ in came:
        if windows is not last:
            last = windows
            if windows not in groups:
                # SUBTLE: a window may be in several of these tuples, and has its elements in order of arrival.
                groups[windows] = [columns.setdefault(window, ([], [])) for window in windows]
            group = groups[windows]
        for values, times in group:
            values.append(value)
            times.append(time)
    return columns
