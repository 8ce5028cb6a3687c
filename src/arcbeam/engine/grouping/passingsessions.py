"""Sessions that begin and end within one micro-batch: what comes to them goes on without having been in the state.

Owns what has come to such sessions, until it goes on: that of a key of which nothing is stored, as long as all of it is
over when the micro-batch's watermark has moved. Every pane is the one that the state would have given. Must not know
what is in an element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arcbeam.engine.grouping.contents import Values
from arcbeam.engine.grouping.effects import EmitPane
from arcbeam.engine.grouping.groupings import Elements, Grouping, WindowedElement
from arcbeam.engine.grouping.merging import SessionMerging
from arcbeam.engine.grouping.singlepane import ONLY
from arcbeam.engine.grouping.windowbuffer import MOST_BYTES, MOST_PANES
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import NO_PANE, IntervalWindow

_Came = list[tuple[Any, Timestamp, Any]]
"""Values, times and windows."""


class PassingSessions:
    """What passes through a grouping in a micro-batch.

    Args:
        grouping: whose it is.
        merging: of the grouping.
        before: the input watermark until all that comes has come.
        ahead: where it is then.
    """

    __slots__ = ("_ahead", "_before", "_grouping", "_keys", "_merging", "_none_stored", "_sure")

    def __init__(self, grouping: Grouping, merging: SessionMerging, before: Timestamp, ahead: Timestamp) -> None:
        self._grouping, self._merging, self._before, self._ahead = grouping, merging, before, ahead
        # SUBTLE: beyond the end of the global window every window has ended, whatever its bounds.
        if before > END_OF_GLOBAL_WINDOW:
            self._ahead = MIN_TIMESTAMP
        self._none_stored = grouping.is_empty()
        self._keys: dict[bytes, _Came] = {}
        # Sessions that end by then are over.
        self._sure = MIN_TIMESTAMP

    def take(self, key: bytes, elements: Elements) -> bool:
        """Takes elements of a key; not if they have to go to the state, and what was taken of it with them.

        Args:
            key: of all of them.
            elements: at least one.
        """
        came: _Came = [(value, time, window) for value, time, windows, _ in elements for window in windows]
        ends = [end for _, _, (_, end) in came]
        # Sessions become no longer than the last of what they are made of.
        if min(ends, default=self._before) <= self._before or not self._is_over(max(ends)):
            return False
        held = self._keys.get(key)
        if held is not None:
            held += came
            return True
        if not self._none_stored and self._grouping.has_stored(key):
            return False
        self._keys[key] = came
        return True

    def _is_over(self, end: Timestamp) -> bool:
        """Whether a session that ends there has expired at the end of the micro-batch."""
        if end > self._sure:
            if self._ahead <= self._grouping.rules.strategy.expiry(IntervalWindow(end, end)):
                return False
            self._sure = end
        return True

    def withdraw(self, key: bytes) -> Iterator[list[WindowedElement]]:
        """What was taken of a key: it is not here any more. More of it comes, and is stored."""
        self._none_stored = False
        came = self._keys.pop(key, None)
        if came:
            yield [(value, time, (window,), NO_PANE) for value, time, window in came]

    def panes(self) -> Iterator[list[EmitPane]]:
        """All panes, some at once; they are not here any more. They are of other keys than what is in the state."""
        panes: list[EmitPane] = []
        size = 0
        while self._keys:
            key, came = self._keys.popitem()
            sessions = self._merging.join(came, self._before)
            assert sessions is not None, "what ends before the watermark was not taken"
            for session, values, _ in sessions:
                contents = Values((), values)
                panes.append(EmitPane(key, session, contents, session.max_timestamp, ONLY))
                size += contents.size
                if len(panes) >= MOST_PANES or size >= MOST_BYTES:
                    yield panes
                    panes, size = [], 0
        if panes:
            yield panes
