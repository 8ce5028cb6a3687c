"""The usual life of a window, as a short cut: elements arrive before its end, then the watermark passes its end and
expiration together.

Owns a short cut for what `engine.grouping.openwindow` does with such a window, without creating one. Every method
returns exactly the effects and leaves exactly the entries of the general code, or does nothing and reports that. Must
not know more than that module does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arcbeam.engine.grouping.contents import TAIL_BYTES, Accumulated, EncodedPaneValues, block
from arcbeam.engine.grouping.effects import ClearHold, Effect, EmitPane, SetHold, SetTimer
from arcbeam.engine.grouping.openwindow import Clocks, Rules
from arcbeam.engine.grouping.record import SHORT_BYTES, pack_short, unpack_short
from arcbeam.model.interfaces import StateView
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import PaneInfo, Timing, Window

_EVENT = TimeDomain.EVENT
ONLY = PaneInfo(0, 0, Timing.ON_TIME, True, True)
"""The only pane of a window."""


class SinglePanes:
    """The short cut of a grouping.

    Args:
        rules: the rules of the grouping.
        view: the shard's state.

    Attributes:
        more: the change of the number of stored windows.
    """

    def __init__(self, rules: Rules, view: StateView) -> None:
        self._rules = rules
        self._view = view
        self._combiner = rules.strategy.combiner
        self.more = 0
        # Elements that decide on a pane's time, and windows that merge, need the general code.
        self._adds = rules.combine_times is None and rules.strategy.merging is None and rules.first_until_ready > 1

    def add(
        self,
        key: bytes,
        records: bytes,
        columns: Mapping[Window, tuple[Sequence[Any], Sequence[Timestamp]]],
        clocks: Clocks,
    ) -> list[Effect] | None:
        """Add elements to windows whose ends the watermark has not passed, too few to evaluate their triggers.

        Args:
            key: the key of the elements.
            records: the common prefix of the keys of its windows' records.
            columns: values and timestamps for each window.
            clocks: the current times.

        Returns:
            The effects; None if one of the windows needs the general code, and nothing was done.
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
            if clocks.input_watermark > end or fresh + len(values) >= rules.first_until_ready:
                return None
            if combiner is None:
                if len(values) * len(values[0]) > TAIL_BYTES:
                    return None  # most likely: no block is made without use
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
        """Fire the event-time timer of a window: all its elements are emitted in its only pane, if it still exists.

        Args:
            key: the key of the window.
            records: see `add`.
            window: the window.
            clocks: the current times.

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
        pane = EncodedPaneValues((contents,)) if combiner is None else Accumulated(combiner, contents).take(keep=False)
        self._view.delete(place)
        self.more -= 1
        emit = EmitPane(key, window, pane, end if hold is None else hold, ONLY)
        return [emit, ClearHold(key, window)]
