"""Timers in a micro-batch: converts what user code sets and clears to the engine's values.

Owns the conversion. The engine decides when a timer fires.
"""

from __future__ import annotations

from typing import Any

from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN
from typing_extensions import override

from arcbeam.engine.state.timers import Fired
from arcbeam.engine.task.bundles import TimerCleared, TimerSet
from arcbeam.harness.bundle.windows import Windows, our_pane, their_pane
from arcbeam.harness.state.timers import Family, PendingTimer, TimerReceiver
from arcbeam.harness.stateful.statefuloperation import StatefulOperation
from arcbeam.harness.streaming.clocks import TaskClock
from arcbeam.model.timestamps import MAX_TIMESTAMP
from arcbeam.model.windows import GLOBAL_WINDOW, PaneInfo, Window

_new = tuple.__new__


class TimerLog(TimerReceiver):
    """The timers that the running call has set and cleared, in order.

    Args:
        windows: windows of the stage.

    Attributes:
        key: the user key of the call.
        clock: the task's clock.
    """

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._log: list[TimerSet | TimerCleared] = []
        self._latest: tuple[Any, Window] = (None, GLOBAL_WINDOW)
        self.key = b""
        self.clock = TaskClock()

    def __bool__(self) -> bool:
        return bool(self._log)

    @override
    def set(
        self,
        family: StreamingTimerFamily,
        tag: str,
        key: Any,
        windows: tuple[Any],
        micros: int,
        at: Any,
        hold: int,
        pane: Any,
    ) -> None:
        if family.processing:
            micros += self.clock.lag()
        packed = b"" if pane is PANE_INFO_UNKNOWN else our_pane(pane).packed()
        # The end of time means on the Fn API that a timer has no output timestamp. Python has no such timers.
        held = hold if hold < MAX_TIMESTAMP or micros >= MAX_TIMESTAMP else None
        timer = self.key, self._window(windows), family.known_as, micros, held, tag, packed
        self._log.append(_new(TimerSet, timer))

    @override
    def unset(self, family: StreamingTimerFamily, tag: str, windows: tuple[Any]) -> None:
        self._log.append(TimerCleared(self.key, self._window(windows), family.known_as, tag))

    def take(self) -> tuple[TimerSet | TimerCleared, ...]:
        """Return the log, and start a new one."""
        log = tuple(self._log)
        self._log.clear()
        return log

    def _window(self, windows: tuple[Any]) -> Window:
        """Return the engine's window. Usually it is that of the previous timer, then it is the same object."""
        latest, window = self._latest
        if windows[0] is not latest:
            latest, window = self._latest = windows[0], self._windows.ours(windows[0])
        return window


class StreamingTimerFamily(Family):
    """A timer family of the stage, as the SDK writes to it.

    Attributes:
        known_as: the engine's name of it.
    """

    __slots__ = ("_driven", "known_as")

    def __init__(self, operation: Any, name: str, processing: bool, known_as: str, timers: TimerReceiver) -> None:
        super().__init__(operation, name, processing, timers)
        self.known_as = known_as
        self._driven = isinstance(operation, StatefulOperation)

    def fire(self, fired: Fired, key: Any, windows: tuple[Any]) -> None:
        """Fire the timer: call user code, for the current key."""
        self._call(self.as_set(fired, key, windows))

    def expire(self, key: Any, windows: tuple[Any], last: int) -> None:
        """Call user code on the expiration of a window of the current key; see `at_expiration`."""
        self._call(self.at_expiration(key, windows, last))

    def _call(self, timer: PendingTimer) -> None:
        if self._driven:
            self.operation.fire((timer,))
        else:
            self.operation.process_timer(self.name, timer.for_sdk())

    def as_set(self, fired: Fired, key: Any, windows: tuple[Any]) -> PendingTimer:
        """Return a firing timer in the form that the operation takes."""
        # SUBTLE: Python's SDK gives a firing one timestamp, for its outputs and for timers that it sets. That must be
        # an event time. So a processing-time timer uses its hold, otherwise outputs would leave their window. Other
        # SDKs use the hold of each timer.
        hold = MAX_TIMESTAMP if fired.hold is None else fired.hold
        at = fired.hold if self.processing and fired.hold is not None else fired.fire_at
        pane = their_pane(PaneInfo.unpacked(fired.payload)) if fired.payload else PANE_INFO_UNKNOWN
        return _new(PendingTimer, (at, 0, (self, fired.tag, 0), key, windows, None, hold, pane))
