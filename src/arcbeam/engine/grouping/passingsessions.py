"""Sessions that begin and end within one micro-batch: their elements are emitted without being stored.

Owns the elements of such sessions until they are emitted. A key qualifies if nothing is stored for it, and if all its
sessions have expired when the micro-batch's watermark has moved. Every pane equals the one that stored elements would
give. Must not know what is in an element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arcbeam.engine.grouping.contents import EncodedPaneValues
from arcbeam.engine.grouping.effects import EmitPane
from arcbeam.engine.grouping.groupings import Grouping, KeyElements, WindowedElement
from arcbeam.engine.grouping.merging import SessionMerging
from arcbeam.engine.grouping.singlepane import ONLY
from arcbeam.engine.grouping.windowbuffer import EMITTED_BYTES_MAX, PANES_MAX
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import NO_PANE, IntervalWindow

_Arrivals = list[tuple[Any, Timestamp, Any]]
"""Values, times and windows."""


class PassingSessions:
    """The sessions that pass through a grouping in a micro-batch.

    Args:
        grouping: the grouping.
        merging: the merging of the grouping.
        before: the input watermark until all elements have arrived.
        ahead: the input watermark afterwards.
    """

    __slots__ = ("_ahead", "_before", "_grouping", "_keys", "_merging", "_none_stored", "_sure")

    def __init__(self, grouping: Grouping, merging: SessionMerging, before: Timestamp, ahead: Timestamp) -> None:
        self._grouping, self._merging, self._before, self._ahead = grouping, merging, before, ahead
        # SUBTLE: after the end of the global window every window has ended, whatever its bounds.
        if before > END_OF_GLOBAL_WINDOW:
            self._ahead = MIN_TIMESTAMP
        self._none_stored = grouping.is_empty()
        self._keys: dict[bytes, _Arrivals] = {}
        # Sessions that end by then have expired.
        self._sure = MIN_TIMESTAMP

    def take(self, key: bytes, elements: KeyElements) -> bool:
        """Take elements of a key. If they have to be stored, return False: the elements taken before follow them.

        Args:
            key: the key of all of them.
            elements: at least one.
        """
        arrived: _Arrivals = [(value, time, window) for value, time, windows, _ in elements for window in windows]
        ends = [end for _, _, (_, end) in arrived]
        # A session does not end later than the last of its elements' windows.
        if min(ends, default=self._before) <= self._before or not self._is_over(max(ends)):
            return False
        held = self._keys.get(key)
        if held is not None:
            held += arrived
            return True
        if not self._none_stored and self._grouping.has_stored(key):
            return False
        self._keys[key] = arrived
        return True

    def _is_over(self, end: Timestamp) -> bool:
        """Return whether a session with that end has expired at the end of the micro-batch."""
        if end > self._sure:
            if self._ahead <= self._grouping.rules.strategy.expiry(IntervalWindow(end, end)):
                return False
            self._sure = end
        return True

    def withdraw(self, key: bytes) -> Iterator[list[WindowedElement]]:
        """Yield and remove what was taken of a key. More elements follow, and are stored."""
        self._none_stored = False
        arrived = self._keys.pop(key, None)
        if arrived:
            yield [(value, time, (window,), NO_PANE) for value, time, window in arrived]

    def panes(self) -> Iterator[list[EmitPane]]:
        """Yield and remove all panes, in parts. Their keys have nothing in the state."""
        panes: list[EmitPane] = []
        size = 0
        while self._keys:
            key, arrived = self._keys.popitem()
            sessions = self._merging.join(arrived, self._before)
            assert sessions is not None, "an element that ends before the watermark was taken"
            for session, values, _ in sessions:
                contents = EncodedPaneValues((), values)
                panes.append(EmitPane(key, session, contents, session.max_timestamp, ONLY))
                size += contents.size
                if len(panes) >= PANES_MAX or size >= EMITTED_BYTES_MAX:
                    yield panes
                    panes, size = [], 0
        if panes:
            yield panes
