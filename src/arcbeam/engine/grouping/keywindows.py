"""The windows of one key: adding elements, merging windows, advancing time.

Owns the choice of an element's window, the drop of late elements, and what a merge does to windows. A single window is
`engine.grouping.openwindow`. `KeyWindows` keeps its windows in memory, which suffices for a bounded grouping; a
streaming grouping loads and stores them (`engine.grouping.groupings`). Must not know state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic

from arcbeam.engine.grouping.effects import DropLate, DropReason, Effect
from arcbeam.engine.grouping.merging import Joined, Merge, Merging, OpenWindows
from arcbeam.engine.grouping.openwindow import C, Clocks, OpenWindow, Rules
from arcbeam.engine.grouping.record import Record
from arcbeam.engine.grouping.triggers import UNLIMITED
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import Window

Columns = tuple[Sequence[Any], Sequence[Timestamp]]
"""Values and timestamps."""
Arrival = tuple[Any, Timestamp, Window]
"""An element in one of its windows: value, timestamp, window."""
_end = attrgetter("end")


class KeyWindows(Generic[C]):
    """The windows of one key that have not expired, all in memory.

    Windows in memory need neither holds nor timers: the caller reports each new time to `advance`.

    Args:
        rules: the grouping's rules.
        key: the encoded key.
        clocks: the current times.
        contents: makes the contents of a new window.

    Attributes:
        out: panes and drops, in order; the caller empties it.
    """

    __slots__ = ("_clocks", "_contents", "_key", "_mergeable", "_rules", "_windows", "out")

    def __init__(self, rules: Rules, key: bytes, clocks: Clocks, contents: Callable[[Window], C]) -> None:
        self._rules = rules
        self._key = key
        self._clocks = clocks
        self._contents = contents
        self._windows: dict[Window, OpenWindow[C]] = {}
        self._mergeable: OpenWindows | None = None
        """If windows merge: the windows of `_windows`; None if not computed yet."""
        self.out: list[Effect] = []

    def contents(self) -> Iterator[C]:
        """Return the contents of the windows that have not expired."""
        return (open.contents for open in self._windows.values())

    # Time.

    def advance(self, clocks: Clocks, ticked: bool = False) -> None:
        """Advance time: each window, in order of their ends, does what is due. Expired windows are removed.

        Args:
            clocks: the current times.
            ticked: see `OpenWindow.look`.
        """
        self._clocks = clocks
        for open in sorted(self._windows.values(), key=_end):
            open.look(clocks, ticked)
            if open.expired:
                open.contents.clear()
                del self._windows[open.window]
                self._mergeable = None

    # Elements.

    def add(self, columns: Mapping[Window, Columns]) -> None:
        """Add elements, grouped by window, in order of arrival; windows do not merge.

        Elements of an expired window are dropped.
        """
        clocks = self._clocks
        for window, (values, times) in columns.items():
            if self._expired(window):
                self._drop(window, values, times)
            else:
                self._open(window).add(values, times, clocks)

    def add_merging(self, arrived: Sequence[Arrival]) -> None:
        """Add elements, in order of arrival; windows merge.

        Elements are added one by one, unless no trigger fires between them: panes do not depend on batching. Elements
        of an expired window are dropped.
        """
        merging, clocks = self._rules.strategy.merging, self._clocks
        assert merging is not None
        together: list[Joined] | None = None
        # Before the end of a window is passed, only elements and the clock make a trigger fire. A trigger that neither
        # makes fire in its first state is still in it. Growing a window undoes that its end was passed.
        if arrived and self._rules.first_until_ready == UNLIMITED:
            together = merging.join(arrived, clocks.input_watermark)
        if together is None:
            together = [
                Joined(window, (value,), (time,))
                for value, time, window in arrived
                if not self._drops(value, time, window)
            ]
        if not together:
            return
        active = self._active(merging, [one.window for one in together])
        for window, values, times in together:
            open = self._windows.get(window)
            if open is None:
                for merge in active.insert(window):
                    self._merge(merge)
                    if window in merge.windows:
                        window = merge.result
                open = self._open(window)
            open.add(values, times, clocks)

    def _expired(self, window: Window) -> bool:
        return self._clocks.input_watermark > self._rules.expiry(window)

    def _drops(self, value: Any, time: Timestamp, window: Window) -> bool:
        """Drop the element if its window has expired; return whether it has."""
        expired = self._expired(window)
        if expired:
            self._drop(window, (value,), (time,))
        return expired

    def _drop(self, window: Window, values: Sequence[Any], times: Sequence[Timestamp]) -> None:
        for value, time in zip(values, times, strict=True):
            late = DropLate(self._key, window, value, time, self._clocks.input_watermark, DropReason.EXPIRED)
            self.out.append(late)

    # Windows.

    def _open(self, window: Window) -> OpenWindow[C]:
        """Return the window, which has not expired; a new one if it does not exist."""
        open = self._windows.get(window) or self._load(window)
        if open is None:
            open = self._windows[window] = self._window(
                window, Record(self._rules.first_until_ready), self._contents(window)
            )
            open.begin(self._clocks)
        return open

    def _window(self, window: Window, record: Record, contents: C) -> OpenWindow[C]:
        return OpenWindow(self._rules, self._key, window, record, contents, self.out)

    def _load(self, window: Window) -> OpenWindow[C] | None:
        """Load a window that is not in memory; None if it does not exist."""
        return None

    def _take(self, window: Window) -> OpenWindow[C] | None:
        """Remove the window and return it; None if it does not exist."""
        if window not in self._windows:
            self._load(window)
        return self._windows.pop(window, None)

    # Merging.

    def _active(self, merging: Merging, windows: Sequence[Window]) -> OpenWindows:
        """Return the open windows, at least those that may merge with these."""
        if self._mergeable is None:
            bounds = self._rules.bounds
            self._mergeable = merging.open(sorted(self._windows, key=lambda window: bounds(window).ordered))
        return self._mergeable

    def _merge(self, merge: Merge) -> None:
        """Merge windows: one of them grows and absorbs the others."""
        clocks = self._clocks
        kept = self._windows.get(merge.result) or self._load(merge.result)
        for window in merge.windows:
            if window == merge.result:
                continue
            merged = self._take(window)
            if merged is None:
                continue
            if kept is None:
                kept = merged
                kept.grow(merge.result, clocks)
            else:
                kept.absorb(merged, clocks)
        if kept is not None:
            self._windows[merge.result] = kept
