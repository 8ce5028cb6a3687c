"""The usual life of a window, in short: elements come before its end, then watermark passes end and expiry at once.

Owns a shortcut: what `engine.grouping.openwindow` would do to such a window, without making one. Every method gives
exactly the effects and leaves exactly the entries that the long way does, or does nothing and says so. Must not know
more than that module does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arcbeam.engine.grouping.contents import TAIL_BYTES, Accumulated, Values, block
from arcbeam.engine.grouping.effects import ClearHold, Effect, EmitPane, SetHold, SetTimer
from arcbeam.engine.grouping.openwindow import Clocks, Rules
from arcbeam.engine.grouping.record import SHORT_BYTES, pack_short, unpack_short
from arcbeam.model.interfaces import StateView
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import PaneInfo, Timing, Window

_EVENT = TimeDomain.EVENT
ONLY = PaneInfo(0, 0, Timing.ON_TIME, True, True)
"""The one pane of a window that has no other."""


class SinglePanes:
    """The shortcut of a grouping.

    Args:
        rules: of the grouping.
        view: of the shard's state.

    Attributes:
        more: by how many more windows than at first are stored.
    """

    def __init__(self, rules: Rules, view: StateView) -> None:
        self._rules = rules
        self._view = view
        self._combiner = rules.strategy.combiner
        self.more = 0
        # Elements that decide on a pane's time, and windows that merge, need the long way.
        self._adds = rules.combine_times is None and rules.strategy.merging is None and rules.first_room > 1

    def add(
        self,
        key: bytes,
        records: bytes,
        columns: Mapping[Window, tuple[Sequence[Any], Sequence[Timestamp]]],
        clocks: Clocks,
    ) -> list[Effect] | None:
        """Elements come to windows whose ends are ahead of the watermark, too few for their triggers to be asked.

        Args:
            key: of the elements.
            records: what the keys of its windows' records begin with.
            columns: values and timestamps for each window.
            clocks: what time it is.

        Returns:
            What is asked for; None if one of the windows needs the long way, and nothing was done.
        """
        if not self._adds:
            return None
        rules, view, combiner = self._rules, self._view, self._combiner
        found = []
        for window, (values, _) in columns.items():
            end, _, ordered = rules.bounds(window)
            place = records + ordered
            stored = view.get(place)
            fresh, contents = 0, b""
            if stored is not None:
                known = unpack_short(stored)
                if known is None or not known[0]:
                    return None
                fresh, contents = known[0], stored[SHORT_BYTES:]
            if clocks.input_watermark > end or fresh + len(values) >= rules.first_room:
                return None
            if combiner is None:
                if len(values) * len(values[0]) > TAIL_BYTES:
                    return None  # most likely: no block is made in vain
                contents += block(values)
                if len(contents) > TAIL_BYTES:
                    return None
            found.append((window, values, end, place, fresh, contents))
        out: list[Effect] = []
        for window, values, end, place, fresh, contents in found:
            if combiner is not None:
                accumulated = Accumulated(combiner, contents)
                accumulated.add(values)
                contents = accumulated.store()
            view.put(place, pack_short(fresh + len(values), contents))
            if not fresh:
                self.more += 1
                out += (SetHold(key, window, end), SetTimer(key, window, _EVENT, end))
        return out

    def fire(self, key: bytes, records: bytes, window: Window, clocks: Clocks) -> list[Effect] | None:
        """The event-time timer of a window fires, and all its elements go out in its only pane; or it is no more.

        Args:
            key: of the window.
            records: see `add`.
            window: which one.
            clocks: what time it is.

        Returns:
            See `add`.
        """
        end, expiry, ordered = self._rules.bounds(window)
        place = records + ordered
        stored = self._view.get(place)
        if stored is None:
            return []
        known = unpack_short(stored)
        if known is None or not known[0] or clocks.input_watermark <= expiry:
            return None
        hold, contents, combiner = known[1], stored[SHORT_BYTES:], self._combiner
        pane = Values((contents,)) if combiner is None else Accumulated(combiner, contents).take(keep=False)
        self._view.delete(place)
        self.more -= 1
        emit = EmitPane(key, window, pane, end if hold is None else hold, ONLY)
        return [emit, ClearHold(key, window)]
