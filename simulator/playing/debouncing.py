"""User code that debounces: it sets, moves and clears the same timers several times within one call.

Owns the order of these calls, and what must be pending after each of them. Must not know micro-batches, attempts and
files.

Every element moves both timers of its window: to a time that the watermark may pass in this micro-batch, to the
window's end, and back. Only the last call counts. State records what that was, so a timer that fires without being set,
or that was moved or cleared since, is a failure. If a timer is lost, its elements never come out, and the reference
reports that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from typing_extensions import override

from arcbeam.engine.state.timers import Fired
from arcbeam.engine.task.bundles import CallResult, TimerCleared, TimerSet
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, Window
from simulator.judging.records import Broken
from simulator.playing.stateful import WAYS, StatefulRunner
from simulator.playing.usercode import RunnerContext
from simulator.scenario.combining import atoms_of

_CHANGES = 6
"""The number of ways in which an element moves the timers; elements use them in turn."""


class _Pending(NamedTuple):
    """The timers after the last calls.

    Attributes:
        quiet, clock: the due time of each timer; None: it is not pending.
        turn: the number of elements so far.
    """

    quiet: Timestamp | None = None
    clock: Timestamp | None = None
    turn: int = 0

    @staticmethod
    def of(data: bytes | None) -> _Pending:
        if data is None:
            return _Pending()
        quiet, clock, turn = data.split(b":")
        return _Pending(_time(quiet), _time(clock), int(turn))

    def encoded(self) -> bytes:
        quiet, clock = (b"" if time is None else b"%d" % time for time in (self.quiet, self.clock))
        return b"%b:%b:%d" % (quiet, clock, self.turn)


def _time(data: bytes) -> Timestamp | None:
    return Timestamp(int(data)) if data else None


class Debounced(StatefulRunner):
    """Release all elements of a window, each with its own timestamp, when one of two timers fires; clear the other."""

    @override
    def take_in(self, key: bytes, window: Window, time: Timestamp, value: bytes) -> Iterator[TimerSet | TimerCleared]:
        at = window.ordered()
        self.in_time.add(key, at, time, value)
        times = [each for each, _ in self.in_time.read(key, at)]
        turn = _Pending.of(self.last.get(key, at)).turn + 1
        first, payload = times[0], b"%d" % turn
        expires = self.kind.expires(window)
        near, far = Timestamp(min(times[-1] + self.kind.delay, expires)), expires
        now, later = self.context.now, Timestamp(self.context.now + self.kind.pause)

        def quiet(fire_at: Timestamp, reported: bytes = b"moved since") -> TimerSet:
            return TimerSet(key, window, "quiet", fire_at, first, payload=reported)

        def clock(fire_at: Timestamp, reported: bytes = b"moved since") -> TimerSet:
            return TimerSet(key, window, "clock", fire_at, first, payload=reported)

        no_quiet, no_clock = (TimerCleared(key, window, family) for family in ("quiet", "clock"))
        due: Timestamp | None = later
        match turn % _CHANGES:
            case 0:
                yield from (quiet(near), clock(now), quiet(far, payload), clock(later, payload))
                until = far
            case 1:
                yield from (quiet(far), clock(later), no_clock, quiet(near, payload))
                until, due = near, None
            case 2:
                yield from (quiet(near), no_quiet, clock(now), no_clock, quiet(far, payload), clock(later, payload))
                until = far
            case 3:
                yield from (
                    quiet(far),
                    quiet(near),
                    quiet(far),
                    quiet(near, payload),
                    clock(later),
                    clock(now),
                    no_clock,
                )
                until, due = near, None
            case 4:
                yield from (quiet(near), quiet(far), no_quiet, quiet(near, payload), no_clock, clock(later, payload))
                until = near
            case _:
                yield from (clock(later), clock(now), quiet(near), quiet(far), no_quiet, no_clock, quiet(far, payload))
                until, due = far, None
        self.last.set(key, at, _Pending(until, due, turn).encoded())

    @override
    def fired(self, fired: Fired) -> CallResult:
        key, at, window = fired.key, fired.window, self.window_of(fired)
        pending = _Pending.of(self.last.get(key, at))
        due = pending.clock if fired.family == "clock" else pending.quiet
        if due is None or (fired.fire_at, fired.payload) != (due, b"%d" % pending.turn):
            raise Broken(f"a timer of {self.name} fired that was moved, cleared or had fired: {fired}, {pending}")
        values = list(self.in_time.read(key, at))
        if not values or fired.hold != values[0][0]:
            raise Broken(f"a timer of {self.name} holds at {fired.hold}, but {values} are buffered")
        if fired.family == "clock" and window == GLOBAL_WINDOW and pending.quiet is not None:
            # As in `stateful.ByTheClock`: in other windows, the expiration of an earlier window may precede it.
            self.context.not_over(pending.quiet)
        for time, value in values:
            self.put_out(key, atoms_of(value), time, window)
        self.in_time.clear_range(key, at, None, None)
        self.last.set(key, at, _Pending(None, None, pending.turn).encoded())
        again = [TimerSet(key, window, family, fired.fire_at, None) for family in ("quiet", "clock")]
        return CallResult(len(values), [*again, *(TimerCleared(key, window, each.family) for each in again)])


ALL_WAYS: Mapping[str, Callable[[RunnerContext, int], StatefulRunner]] = {**WAYS, "debounce": Debounced}
"""The class of each `Keep.way`."""
