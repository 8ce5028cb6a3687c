"""Timers in a step: what user code sets and clears leaves the SDK as the engine's values.

Owns that way. When a timer fires is the engine's.
"""

from __future__ import annotations

from typing import Any

from apache_beam.transforms.userstate import Timer

from arcbeam.engine.state.timers import Fired
from arcbeam.engine.step.bundles import TimerCleared, TimerSet
from arcbeam.harness.state.timers import Family
from arcbeam.harness.step.windows import Windows, our_pane, their_pane, their_time
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import PaneInfo


class TimerLog:
    """What the running call has set and cleared, in that order.

    Args:
        windows: of the stage.

    Attributes:
        key: the user key that the call is about.
    """

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._log: list[TimerSet | TimerCleared] = []
        self.key = b""

    def set(
        self, family: StepFamily, tag: str, key: Any, windows: tuple[Any], micros: int, at: Any, hold: int, pane: Any
    ) -> None:
        """See `arcbeam.harness.state.timers.TimerSink`."""
        window, packed = self._windows.ours(windows[0]), our_pane(pane).packed()
        fire_at, held = Timestamp(micros), Timestamp(hold)
        self._log.append(TimerSet(self.key, window, family.known_as, fire_at, held, tag, packed))

    def unset(self, family: StepFamily, tag: str, windows: tuple[Any]) -> None:
        """See `TimerSink`."""
        self._log.append(TimerCleared(self.key, self._windows.ours(windows[0]), family.known_as, tag))

    def take(self) -> tuple[TimerSet | TimerCleared, ...]:
        """All of it; the next call begins anew."""
        log, self._log = self._log, []
        return tuple(log)


class StepFamily(Family):
    """A timer family of the stage, as the SDK writes to it.

    Attributes:
        known_as: the engine's name of it.
    """

    __slots__ = ("known_as",)

    def __init__(self, operation: Any, name: str, processing: bool, known_as: str, timers: TimerLog) -> None:
        super().__init__(operation, name, processing, timers)
        self.known_as = known_as

    def fired(self, fired: Fired, key: Any, window: Any) -> Any:
        """The SDK's timer that fires."""
        # SUBTLE: the SDK gives a firing one timestamp, for what it outputs and for what it sets. That is an event time:
        # the one that a processing-time timer holds, or outputs would leave their window for the time of day.
        at = fired.hold if self.processing and fired.hold is not None else fired.fire_at
        return Timer(
            user_key=key,
            dynamic_timer_tag=fired.tag,
            windows=(window,),
            clear_bit=False,
            fire_timestamp=their_time(at),
            hold_timestamp=their_time(at),
            paneinfo=their_pane(PaneInfo.unpacked(fired.payload)),
        )
