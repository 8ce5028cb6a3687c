"""Grouping by key and window: elements, watermarks and times in; panes, drops, holds and timers out, as values.

Owns the open windows of each key in a `StateView`: it loads and stores them, and compares their previous holds and
timers with the current ones. `engine.grouping.keywindows` decides on the windows of a key, `.openwindow` on one window.
Must not know what carries out its effects.

Entries of a key: the grouping's space, the length of the key in four bytes, the key; then `w` and the window for its
record, or `e`, an address and a number for elements outside the record. Key and window are complete, however long they
are. A key without unexpired windows has no entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from typing_extensions import override

from arcbeam.engine.grouping.contents import Accumulated, WindowBag
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

__all__ = ["Clocks", "Grouping", "KeyElement", "KeyElements"]

_NOTHING = Wakeups()
_EVENT, _CLOCK = TimeDomain.EVENT, TimeDomain.PROCESSING


class KeyElement(NamedTuple):
    """An element of a key.

    Attributes:
        value: its bytes; for a combiner, an input of the combiner.
        timestamp: its event time.
        windows: its windows. Fastest if elements of the same windows share one object.
        pane: its pane. A grouping makes new panes, and ignores this.
    """

    value: Any
    timestamp: Timestamp
    windows: tuple[Window, ...]
    pane: PaneInfo = NO_PANE


WindowedElement = tuple[Any, Timestamp, tuple[Window, ...], PaneInfo]
"""An `KeyElement`, or the same as a bare tuple."""


class KeyElements(Protocol):
    """A group of elements: a list, or an object that decodes them only when it is iterated.

    A stage that decides nothing per element only reads their number, and passes them on.
    """

    def __len__(self) -> int:
        """Return their number."""

    def __iter__(self) -> Iterator[WindowedElement]:
        """Yield the elements in order of arrival."""


class UniformElements(ABC):
    """A group of elements with common properties: it can be passed on without iterating it; see `KeyElements`.

    Attributes:
        windows: the windows of each element; None if they differ or are unknown. Fastest if elements of the same
            windows share one object.
        packed: bytes from which the creator of this object can restore the elements; None if there are none.
    """

    __slots__ = ()

    windows: tuple[Window, ...] | None
    packed: bytes | None

    @property
    def window(self) -> Window | None:
        """Return the window if all elements are in exactly this one; None if they are not, or it is unknown."""
        windows = self.windows
        return windows[0] if windows is not None and len(windows) == 1 else None

    @abstractmethod
    def __len__(self) -> int:
        """Return their number."""

    @abstractmethod
    def __iter__(self) -> Iterator[WindowedElement]:
        """Yield the elements in order of arrival."""


@dataclass(frozen=True, slots=True)
class Combined:
    """What accumulators that arrive at a stage stand for: by how many elements exceed them.

    Accumulators that overlapping windows share may also be more than the elements.

    Attributes:
        elements: in all; an element counts once.
        windows: by window; an element counts once in each of its windows.
    """

    elements: int
    windows: Mapping[Window, int]


class Grouping:
    """Groups the elements of a shard.

    Its only state between calls is the view: another grouping over the same entries continues where this one stopped.

    Args:
        strategy: how to group.
        view: the shard's state.
        space: the common prefix of the grouping's entries; no other entries have it.

    Attributes:
        rules: the rules derived from the strategy.
    """

    def __init__(self, strategy: Strategy, view: StateView, space: bytes = b"") -> None:
        self.rules = self._rules = Rules(strategy)
        self._view = view
        self._space = space
        self._short = SinglePanes(self._rules, view)
        self._more = 0

    @property
    def more(self) -> int:
        """Return the change of the number of stored windows; a window counts once for each key."""
        return self._more + self._short.more

    def add(self, key: bytes, elements: Iterable[WindowedElement], clocks: Clocks) -> list[Effect]:
        """Add elements of a key, in order of arrival.

        Drops elements of expired windows. Panes of a window that were due before the elements arrived come first,
        though their timer fires later.
        """
        prefix = self._prefix(key)
        if self._rules.strategy.merging is None:
            columns = by_window(elements)
            effects = self._short.add(key, prefix + b"w", columns, clocks)
            if effects is not None:
                return effects
            call = _Call(self._rules, self._view, prefix, key, clocks)
            call.add(columns)
        else:
            call = _Call(self._rules, self._view, prefix, key, clocks)
            call.add_merging([(value, time, window) for value, time, windows, _ in elements for window in windows])
        return self._finished(call)

    def fire(self, key: bytes, window: Window, domain: TimeDomain, clocks: Clocks) -> list[Effect]:
        """Handle a due timer that an effect has set. Firing one early, late or twice does no harm."""
        prefix = self._prefix(key)
        if domain is _EVENT:
            effects = self._short.fire(key, prefix + b"w", window, clocks)
            if effects is not None:
                return effects
        call = _Call(self._rules, self._view, prefix, key, clocks)
        call.fire(window, domain)
        return self._finished(call)

    def end(self, key: bytes, window: Window, arrived: Columns, late: Columns, clocks: Clocks) -> list[Effect]:
        """Take over a window that was buffered elsewhere, after the watermark has passed its end.

        The effects are the same as if each element had been added on arrival, with all that was due in between.

        Args:
            key: the key of the window.
            window: the window; windows do not merge.
            arrived: the elements that arrived before the watermark passed its end, in order.
            late: the elements that arrived after that, but before the window expired, in order.
            clocks: the current times.
        """
        end, expiry, _ = self._rules.bounds(window)
        call = _Call(self._rules, self._view, self._prefix(key), key, clocks.at_most(end))
        if arrived[0]:
            call.add({window: arrived})
        if late[0]:
            call.advance(clocks.at_most(expiry))
            call.add({window: late})
        call.advance(clocks)
        return self._finished(call)

    def end_large(
        self, key: bytes, window: Window, arrived: Iterable[bytes], count: int, clocks: Clocks
    ) -> list[Effect]:
        """Do the same as `end` with elements that may be larger than memory, and without late ones.

        Args:
            key: see `end`.
            window: see `end`.
            arrived: the elements, as the contents of a pane.
            count: their number.
            clocks: see `end`.
        """
        call = _Call(self._rules, self._view, self._prefix(key), key, clocks.at_most(self._rules.bounds(window).end))
        call.adopt(window, arrived, count)
        call.advance(clocks)
        return self._finished(call)

    def _finished(self, call: _Call) -> list[Effect]:
        effects = call.finish()
        self._more += call.more
        return effects

    # For sessions that end without being stored.

    @property
    def sessions(self) -> SessionMerging | None:
        """Return how sessions merge, if one that begins and expires in one micro-batch needs no state; else None."""
        strategy = self._rules.strategy
        merging = strategy.merging if isinstance(strategy.merging, SessionMerging) else None
        alone = (
            strategy.combiner is None and strategy.combine_times is None and self._rules.first_until_ready == UNLIMITED
        )
        return merging if alone else None

    def has_stored(self, key: bytes) -> bool:
        """Return whether a window of the key is stored."""
        prefix = self._prefix(key)
        return next(iter(self._view.scan(prefix + b"w", prefix + b"x")), None) is not None

    def is_empty(self) -> bool:
        """Return whether no window is stored."""
        return next(iter(self._view.scan(self._space, after(self._space))), None) is None

    def _prefix(self, key: bytes) -> bytes:
        """Return the common prefix of all entries of a key."""
        return b"".join((self._space, len(key).to_bytes(4, "big"), key))


class _Entry:
    """The record of a window during one call of the grouping.

    Attributes:
        place: the record's key.
        stored: the record before the call; None if there was none.
        requested: the hold and timers before the call.
    """

    __slots__ = ("place", "requested", "stored")

    def __init__(self, place: bytes, stored: bytes | None) -> None:
        self.place = place
        self.stored = stored
        self.requested = _NOTHING


class _Call(KeyWindows[Stored]):
    """One call for one key: loads windows when they are needed, and stores them at the end.

    Invariant: each window in memory has an entry; a window with an entry that is not in memory has ended.

    Attributes:
        more: the change of the number of stored windows, after `finish`.
    """

    __slots__ = ("_entries", "_near", "_prefix", "_records", "_view", "more")

    def __init__(self, rules: Rules, view: StateView, prefix: bytes, key: bytes, clocks: Clocks) -> None:
        super().__init__(rules, key, clocks, self._fresh)
        self._view = view
        self._prefix = prefix
        self._records = prefix + b"w"
        self._entries: dict[Window, _Entry] = {}
        self._near: dict[Window, bytes] | None = None
        """If windows merge: the records of all windows that may take part."""
        self.more = 0

    def fire(self, window: Window, domain: TimeDomain) -> None:
        """Handle a fired timer of a window."""
        self._load(window, ticked=domain is _CLOCK)
        entry = self._entries[window]
        if domain is _EVENT:
            entry.requested = entry.requested._replace(event=None)
        else:
            entry.requested = entry.requested._replace(next_timer=None)

    def adopt(self, window: Window, arrived: Iterable[bytes], count: int) -> None:
        """Open a new window with these elements."""
        self._open(window).adopt(arrived, count)

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
        record = Record.unpack(stored, self._rules.first_until_ready)
        open = self._windows[window] = self._window(window, record, self._stored(window, record))
        entry.requested = open.wakeups()
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
        return WindowBag(self._view, self._element_key, fresh, record.address, record.entries, record.contents)

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
                self._load(window)  # ends the window before the new elements are added
        return merging.open([window for window in self._near if window not in self._entries])

    # The end of the call.

    def finish(self) -> list[Effect]:
        """Store all changes, and return the effects."""
        view = self._view
        for window, entry in self._entries.items():
            open, requested = self._windows.get(window), entry.requested
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
            if wakeups != requested:
                self._request(window, requested, wakeups)
        return self.out

    def _request(self, window: Window, requested: Wakeups, wakeups: Wakeups) -> None:
        out, key = self.out, self._key
        (hold, event, next_timer), (old_hold, old_event, old_next_timer) = wakeups, requested
        if hold != old_hold:
            out.append(ClearHold(key, window) if hold is None else SetHold(key, window, hold))
        if event != old_event:
            out.append(ClearTimer(key, window, _EVENT) if event is None else SetTimer(key, window, _EVENT, event))
        if next_timer != old_next_timer:
            out.append(
                ClearTimer(key, window, _CLOCK) if next_timer is None else SetTimer(key, window, _CLOCK, next_timer)
            )


def by_window(elements: Iterable[WindowedElement]) -> dict[Window, Columns]:
    """Return the columns of each window, in order of arrival."""
    arrived = elements if isinstance(elements, list) else list(elements)
    if not arrived:
        return {}
    all_values, all_times, all_windows, _ = zip(*arrived, strict=True)
    if all_windows.count(all_windows[0]) == len(arrived):
        return dict.fromkeys(all_windows[0], (all_values, all_times))
    columns: dict[Window, Any] = {}
    groups: dict[tuple[Window, ...], list[tuple[list[Any], list[Timestamp]]]] = {}
    last: Any = None
    group: list[tuple[list[Any], list[Timestamp]]] = []
    for value, time, windows, _ in arrived:
        if windows is not last:
            last = windows
            if windows not in groups:
                # SUBTLE: a window may be in several of these tuples, but needs its elements in order of arrival.
                groups[windows] = [columns.setdefault(window, ([], [])) for window in windows]
            group = groups[windows]
        for values, times in group:
            values.append(value)
            times.append(time)
    return columns
