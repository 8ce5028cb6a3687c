"""Timers of a stage's keys: which are set, and which fires next.

Owns a key's timers in the engine's memory, and how timers leave the SDK without encoding. Must not know bundles, state,
or the current time.

A key may have a timer for each of its elements. So a timer is a tuple with times in microseconds. The SDK's objects are
created only where they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from apache_beam.runners.worker.bundle_processor import TimerInfo
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BaseTimer, Timer
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN
from typing_extensions import override

from arcbeam.engine.state.inmemorytimers import InMemoryTimers
from arcbeam.harness.encoding.sdktimes import micros_from

Slot = tuple["Family", str, int]
"""The identity of a timer of a key: its family, its dynamic tag, and the number of its window."""


class PendingTimer(NamedTuple):
    """A timer that is set. Compares in the order of firing.

    Attributes:
        micros: the time when it fires, in microseconds.
        order: its rank among timers of the key that fire at the same time.
        slot: its identity.
        key: the user's key, as it was passed with the timer.
        windows: a tuple of its window.
        at: the time when it fires, if user code passed it as a `Timestamp`.
        hold: event time of its outputs, in microseconds.
        pane: pane of the element with which it was set.
    """

    micros: int
    order: int
    slot: Slot
    key: Any
    windows: tuple[Any]
    at: Any
    hold: int
    pane: Any

    @property
    def family(self) -> Family:
        """The family of its callback."""
        return self.slot[0]

    @property
    def tag(self) -> str:
        """Its dynamic tag."""
        return self.slot[1]

    def fires_at_hold(self) -> PendingTimer:
        """Return the timer as if it were set for the event time of its outputs."""
        return self._replace(micros=self.hold, at=None)

    def for_sdk(self) -> Any:
        """Return the SDK's object for firing it."""
        at = self.at or Timestamp(micros=self.micros)
        return Timer(self.key, self.tag, self.windows, False, at, Timestamp(micros=self.hold), self.pane)


_new = tuple.__new__
"""Creates a named tuple without the Python-level call of its class: there may be a timer for each element."""


class TimerReceiver(Protocol):
    """Receives the timers that user code sets and clears."""

    def set(
        self, family: Any, tag: str, key: Any, windows: tuple[Any], micros: int, at: Any, hold: int, pane: Any
    ) -> None:
        """Set a timer, and replace its previous setting; see `PendingTimer`."""
        ...

    def unset(self, family: Any, tag: str, windows: tuple[Any]) -> None:
        """Clear a timer, if it is set."""
        ...


class NotSet(TimerReceiver):
    """For the family of a callback on window expiration."""

    @override
    def set(self, family: Family, *timer: Any) -> None:
        raise ValueError(
            f"timer family '{family.name}' is the callback on window expiration of its DoFn. The runner calls it, and "
            f"user code can neither set nor clear it"
        )

    @override
    def unset(self, family: Family, *timer: Any) -> None:
        self.set(family)


_Domain = InMemoryTimers[tuple[Any, ...], Slot, PendingTimer]
"""Timers of a key in one time domain. A timer is its own order."""
_slot_of: Final = itemgetter(2)


class PendingTimers(NamedTuple):
    """The pending timers of a key that was put aside."""

    event: _Domain
    processing: _Domain
    windows: dict[Any, int]
    order: int


class KeyTimers(TimerReceiver):
    """The pending timers of the current key; a `TimerReceiver`.

    A timer is pending from its last `set` until it is cleared or taken.
    """

    __slots__ = ("_domains", "_latest", "_order", "_windows")

    def __init__(self) -> None:
        self._domains: tuple[_Domain, _Domain] = InMemoryTimers(_slot_of), InMemoryTimers(_slot_of)
        self._windows: dict[Any, int] = {}
        # Usually the next timer has the same window, and hashing a window is slow.
        self._latest: tuple[Any, int] = (None, -1)
        self._order = 0

    def __bool__(self) -> bool:
        event, processing = self._domains
        return bool(event) or bool(processing)

    @override
    def set(
        self, family: Family, tag: str, key: Any, windows: tuple[Any], micros: int, at: Any, hold: int, pane: Any
    ) -> None:
        window, number = self._latest
        if windows[0] is not window:
            number = self._number(windows[0])
        slot = (family, tag, number)
        timers = self._domains[family.processing]
        # Timers with equal timestamps fire in the order in which they were set; in that of their first setting, if
        # no timer has fired yet. SUBTLE: so no two orders that are compared have equal ranks, and keys never compare.
        self._order = order = self._order + 1
        if timers.is_ordered:
            timer = _new(PendingTimer, (micros, order, slot, key, windows, at, hold, pane))
            timers.put(slot, timer, timer)
            return
        pending = timers.pending
        if slot in pending:
            order = pending[slot][1].order
        timer = _new(PendingTimer, (micros, order, slot, key, windows, at, hold, pane))
        pending[slot] = timer, timer

    @override
    def unset(self, family: Family, tag: str, windows: tuple[Any]) -> None:
        self._domains[family.processing].remove((family, tag, self._number(windows[0])))

    def event_timers(self, limit: int) -> Iterator[PendingTimer]:
        """Return the event-time timers in the order of their timestamps. A returned timer is no longer pending.

        Timers that are set meanwhile are included. Only `set` and `unset` may be called during the iteration.

        Args:
            limit: microseconds; the iteration ends at the first timer after it.
        """
        return self._domains[False].below((limit + 1,))

    def take_processing(self, limit: int) -> PendingTimer | None:
        """Remove and return the first processing-time timer; None if none is due at `limit`."""
        timers = self._domains[True]
        first = timers.first()
        return None if first is None or first[0] > limit else timers.take(first)

    def due(self) -> int | None:
        """Return when the first processing-time timer is due, in microseconds since 1970; None if there is none."""
        timers = self._domains[True]
        # Asked for each key, and most have none.
        first = timers.first() if timers.pending else None
        return None if first is None else int(first[0])

    def clear(self) -> None:
        """Remove all timers, before the next key."""
        event, processing = self._domains
        if event.is_ordered or event.pending:
            event.clear()
        if processing.is_ordered or processing.pending:
            processing.clear()
        self._order = 0
        if len(self._windows) > 1:
            self._windows.clear()
            self._latest = (None, -1)

    def suspend(self) -> PendingTimers:
        """Remove and return all timers, before the next key."""
        suspended = PendingTimers(*self._domains, self._windows, self._order)
        self._domains = InMemoryTimers(_slot_of), InMemoryTimers(_slot_of)
        self._windows, self._latest, self._order = {}, (None, -1), 0
        return suspended

    def resume(self, suspended: PendingTimers) -> None:
        """Restore what `suspend` has returned. There must be no timers."""
        self._domains = suspended.event, suspended.processing
        self._windows, self._order = suspended.windows, suspended.order
        self._latest = (None, -1)

    def _number(self, window: Any) -> int:
        number = self._windows.setdefault(window, len(self._windows))
        self._latest = window, number
        return number


class Family:
    """A timer family of the stage's root.

    It replaces both objects through which the SDK writes timers, their coder and their output stream: timers are not
    encoded.

    Attributes:
        operation: the SDK's operation that fires it.
        name: the SDK's name of the family.
        processing: whether it uses processing time, not the watermark.
        timers: receives the timers that user code sets and clears.
    """

    __slots__ = ("name", "operation", "processing", "timers")

    def __init__(self, operation: Any, name: str, processing: bool, timers: TimerReceiver) -> None:
        self.operation = operation
        self.name = name
        self.processing = processing
        self.timers = timers
        operation.add_timer_info(name, TimerInfo(timer_coder_impl=self, output_stream=self))

    def at_expiration(self, key: Any, windows: tuple[Any], last: int) -> PendingTimer:
        """Return the timer by which the family's callback is called when a window expires.

        Args:
            key: the user's key.
            windows: a tuple of the window.
            last: the window's last microsecond: event time of the outputs.
        """
        return _new(PendingTimer, (last, 0, (self, "", 0), key, windows, None, last, PANE_INFO_UNKNOWN))

    def encode_to_stream(self, timer: Any, stream: Any, nested: bool) -> None:
        """Implement the SDK's coder: user code of an SDK operation has set or cleared a timer."""
        windows, tag = timer.windows, timer.dynamic_timer_tag
        if timer.clear_bit:
            self.timers.unset(self, tag, windows)
            return
        at, hold = timer.fire_timestamp, timer.hold_timestamp.micros
        self.timers.set(self, tag, timer.user_key, windows, at.micros, at, hold, timer.paneinfo)

    def maybe_flush(self) -> None:
        """Implement the SDK's stream."""

    def close(self) -> None:
        """Implement the SDK's stream."""


class TimerHandle(BaseTimer):  # type: ignore[misc]  # Beam is untyped
    """See the SDK's class.

    Args:
        info: the SDK's information on the family, as `Family` has registered it.
        domain: a value of the SDK's `TimeDomain`.
        key: the timer's key.
        window: the timer's window.
        micros: time of the current element.
        pane: pane of the current element.
    """

    __slots__ = ("_family", "_follows_watermark", "_key", "_micros", "_pane", "_timers", "_windows")

    def __init__(self, info: Any, domain: str, key: Any, window: Any, micros: int, pane: Any) -> None:
        self._family: Family = info.timer_coder_impl
        self._timers = self._family.timers
        self._follows_watermark = domain == TimeDomain.WATERMARK
        self._key, self._windows, self._micros, self._pane = key, (window,), micros, pane

    def given_at(self, micros: int) -> None:
        """Set the time of the current element."""
        self._micros = micros

    def set(self, timestamp: Any, dynamic_timer_tag: str = "") -> None:
        """Set the timer, and replace its previous setting."""
        if type(timestamp) is int:
            at, micros = None, timestamp * 1_000_000
        else:
            at = Timestamp.of(timestamp)
            micros = micros_from(at)
        hold = micros if self._follows_watermark else self._micros
        self._timers.set(self._family, dynamic_timer_tag, self._key, self._windows, micros, at, hold, self._pane)

    def clear(self, dynamic_timer_tag: str = "") -> None:
        """Clear the timer, if it is set."""
        self._timers.unset(self._family, dynamic_timer_tag, self._windows)
