"""Conversion of windows and panes between the SDK and the engine.

Owns which window of the engine corresponds to which of the SDK. Must not know window functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from apache_beam.coders import coders
from apache_beam.transforms import window as sdk
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfoTiming
from apache_beam.utils.windowed_value import PaneInfo as SdkPaneInfo

from arcbeam.harness.encoding.blocks import Each
from arcbeam.harness.encoding.sdktimes import timestamp_of
from arcbeam.harness.encoding.windowcoder import IntervalWindowCoder
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, Timestamp
from arcbeam.model.windows import (
    GLOBAL_WINDOW,
    NO_PANE,
    CustomWindow,
    GlobalWindow,
    IntervalWindow,
    PaneInfo,
    Timing,
    Window,
)
from arcbeam.sizes import by_identity, cache_size

_KNOWN_MAX = cache_size(10_000)
_REMEMBERED_MAX = cache_size(2_500)
"""Most windows that merge are not needed again: keeping many of them costs more than making a few."""
_TIMINGS = {
    PaneInfoTiming.EARLY: Timing.EARLY,
    PaneInfoTiming.ON_TIME: Timing.ON_TIME,
    PaneInfoTiming.LATE: Timing.LATE,
    PaneInfoTiming.UNKNOWN: Timing.UNKNOWN,
}
_SDK_TIMINGS = {ours: theirs for theirs, ours in _TIMINGS.items()}
_their_panes: dict[PaneInfo, Any] = {}
_new = tuple.__new__
_START_MICROS_MIN, _END_MICROS_MAX = -(1 << 62), 1 << 62
_GLOBAL = sdk.GlobalWindow()


class Windows:
    """The windows of one PCollection.

    Their coder determines their type, because it decodes them: a subclass of the SDK's interval window with the
    interval's coder is an interval for all consumers.

    Args:
        coder: the SDK's window coder.
    """

    def __init__(self, coder: Any) -> None:
        self._impl = coder.get_impl()
        self._global = isinstance(coder, coders.GlobalWindowCoder)
        self.intervals = isinstance(coder, coders.IntervalWindowCoder | IntervalWindowCoder)
        self._theirs: dict[Window, Any] = {}
        self._their_tuples: dict[tuple[Window, ...], tuple[Any, ...]] = {}
        self._ordered: dict[bytes, bytes] = {}
        # With the tuple itself, otherwise a new tuple could get the same identity.
        self._tuples: dict[int, tuple[Any, tuple[Window, ...]]] = by_identity()

    def ours(self, window: Any) -> Window:
        """Return the engine's window for one of the SDK."""
        if self._global:
            return GLOBAL_WINDOW
        if self.intervals:
            start, end = window._start_micros, window._end_micros
            if start > _START_MICROS_MIN and end < _END_MICROS_MAX:
                return _new(IntervalWindow, (start, end))
            return IntervalWindow(Timestamp(window.start.micros), Timestamp(window.end.micros))
        end = min(int(window.max_timestamp().micros), END_OF_GLOBAL_WINDOW)
        return CustomWindow(self._impl.encode(window), Timestamp(end))

    def remembered(self, window: Any) -> Window:
        """Return the same, and keep the SDK's window for `theirs`."""
        ours = self.ours(window)
        if len(self._theirs) > _REMEMBERED_MAX:
            self._theirs.clear()
        self._theirs[ours] = window
        return ours

    def all_ours(self, windows: Any) -> tuple[Window, ...]:
        """Return the engine's windows for those of an element. A tuple object is converted once; most are shared."""
        found = self._tuples.get(id(windows))
        if found is None:
            if len(self._tuples) > _KNOWN_MAX:
                self._tuples.clear()
            found = self._tuples[id(windows)] = windows, tuple(map(self.ours, windows))
        return found[1]

    def theirs(self, window: Window) -> Any:
        """Return the SDK's window for one of the engine."""
        known = self._theirs.get(window)
        if known is None:
            if len(self._theirs) > _KNOWN_MAX:
                self._theirs.clear()
            known = self._theirs[window] = self._made(window)
        return known

    def all_theirs(self, windows: tuple[Window, ...]) -> tuple[Any, ...]:
        """Return the SDK's windows for those of an element; equal tuples give the same object."""
        known = self._their_tuples.get(windows)
        if known is None:
            if len(self._their_tuples) > _KNOWN_MAX:
                self._their_tuples.clear()
            known = self._their_tuples[windows] = tuple(map(self.theirs, windows))
        return known

    def _made(self, window: Window) -> Any:
        match window:
            case GlobalWindow():
                return _GLOBAL
            case IntervalWindow(start, end):
                return sdk.IntervalWindow(their_time(start), their_time(end))
            case CustomWindow(encoded):
                return self._impl.decode(encoded)

    def decode(self, ordered: bytes) -> Window:
        """Return the engine's window from its `ordered` bytes."""
        if self._global:
            return GLOBAL_WINDOW
        return IntervalWindow.from_ordered(ordered) if self.intervals else CustomWindow.from_ordered(ordered)

    def encoded(self, encoded: bytes) -> Window:
        """Return the engine's window for one that the SDK's coder has encoded."""
        return self.ours(self._impl.decode(encoded))

    def ordered(self, encoded: bytes) -> bytes:
        """Return the engine's `ordered` bytes for a window that the SDK's coder has encoded."""
        known = self._ordered.get(encoded)
        if known is None:
            if len(self._ordered) > _KNOWN_MAX:
                self._ordered.clear()
            known = self._ordered[encoded] = self.encoded(encoded).ordered()
        return known


def their_time(time: Timestamp) -> Any:
    """Return the SDK's timestamp for one of the engine."""
    return timestamp_of(time)


def our_pane(pane: Any) -> PaneInfo:
    """Return the engine's pane for one of the SDK."""
    if pane is PANE_INFO_UNKNOWN or pane == PANE_INFO_UNKNOWN:
        return NO_PANE
    # SUBTLE: the Go SDK's restrictions put out elements with a pane of zeros. The Python SDK reads its index as -1.
    index = max(pane.index, 0)
    return PaneInfo(index, pane.nonspeculative_index, _TIMINGS[pane.timing], pane.is_first, pane.is_last)


def their_pane(pane: PaneInfo) -> Any:
    """Return the SDK's pane for one of the engine; equal panes usually give the same object."""
    known = _their_panes.get(pane)
    if known is None:
        if len(_their_panes) > _KNOWN_MAX:
            _their_panes.clear()
        known = _their_panes[pane] = _their_pane(pane)
    return known


def _their_pane(pane: PaneInfo) -> Any:
    if pane == NO_PANE:
        return PANE_INFO_UNKNOWN
    return SdkPaneInfo(pane.is_first, pane.is_last, _SDK_TIMINGS[pane.timing], pane.index, pane.nonspeculative_index)


def column(each: Sequence[Any], theirs: Callable[[Any], Any]) -> Any:
    """Return a column of a block; a single value if it is the same for all elements."""
    first = each[0]
    return theirs(first) if each.count(first) == len(each) else Each(map(theirs, each))
