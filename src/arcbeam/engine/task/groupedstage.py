"""A grouping stage in a shard: a grouping's effects are stored as holds and timers in the shard's indexes.

Owns their names there. Must not know windows and triggers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, assert_never

from typing_extensions import override

from arcbeam.engine.grouping.contents import EncodedPaneValues
from arcbeam.engine.grouping.effects import (
    ClearHold,
    ClearTimer,
    DropCombined,
    DropHeld,
    DropLate,
    Effect,
    EmitPane,
    SetHold,
    SetTimer,
)
from arcbeam.engine.grouping.groupings import Clocks, Combined, Grouping, KeyElements, UniformElements
from arcbeam.engine.grouping.passingsessions import PassingSessions
from arcbeam.engine.grouping.singlepane import ONLY
from arcbeam.engine.grouping.windowbuffer import EMITTED_BYTES_MAX, PANES_MAX, BufferedPane, Groups, WindowBuffer
from arcbeam.engine.protocol.microbatchplan import Handover, MicroBatchPlan
from arcbeam.engine.protocol.reports import Restrictions
from arcbeam.engine.protocol.stagekinds import Grouped
from arcbeam.engine.rows.keyspace import RowKind, part, parts, prefix, shown
from arcbeam.engine.state.keyqueue import KeyQueue
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.engine.state.timers import Fired, Timers
from arcbeam.engine.task.bundles import BundleResult
from arcbeam.engine.task.stagecontext import StageContext, StageLogic
from arcbeam.engine.watermarks.comparison import passed
from arcbeam.engine.watermarks.holds import WINDOW_END, Holder, HolderKind, Holds
from arcbeam.errors import StateFormatError
from arcbeam.model import plan
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import Window

_DOMAIN: Final = {"window": TimeDomain.EVENT, "clock": TimeDomain.PROCESSING}
_NO_KEY: Final = b""
_FAMILIES: Final = {
    "window": plan.TimeDomain.EVENT,
    "clock": plan.TimeDomain.PROCESSING,
    WINDOW_END: plan.TimeDomain.EVENT,
}
_STATE: Final = HolderKind.STATE
_PANE: Final = "pane"


class GroupedLogic(StageLogic):
    """Elements are grouped.

    Args:
        place: the stage's context.
        kind: the kind of grouping.
    """

    def __init__(self, place: StageContext, kind: Grouped) -> None:
        number = place.placed.number
        self._place = place
        self._decode = kind.decode
        space = prefix(RowKind.GROUPING, number)
        self._grouping = Grouping(kind.strategy, place.view, space)
        rules = self._grouping.rules
        self._buffer = WindowBuffer(rules, place.view, space, kind.unpack) if rules.gathers else None
        self._timers = Timers(place.view, number, _FAMILIES)
        self._queue = KeyQueue(self._timers)
        self._holds = Holds(place.view, number)
        # Most effects and timers have the same window as the one before.
        self._window: Window | None = None
        self._encoded = b""
        self._sessions: PassingSessions | None = None
        self._panes: list[EmitPane] = []
        self._pane_bytes = 0
        self._before: Clocks | None = None
        """The clocks until the watermark moves."""

    @override
    def begin(self, plan: MicroBatchPlan, moves: Sequence[Handover], upstream: Timestamp) -> None:
        if (sessions := self._grouping.sessions) is not None:
            clock = self._place.clock
            self._sessions = PassingSessions(self._grouping, sessions, clock.input, clock.ahead(upstream))

    def timely(self, key: bytes, elements: KeyElements) -> KeyElements:
        """See `StageLogic`: it has no side inputs, so nothing is blocked."""
        return elements

    @override
    def deliver(self, key: bytes, elements: KeyElements) -> None:
        if self._before is None:
            self._before = self._clocks(self._place.clock.input)
        if self._buffer is not None:
            watermark = self._before.input_watermark
            if isinstance(elements, UniformElements) and self._buffer.take(key, elements, watermark):
                return
            elements = self._buffer.take_each(key, elements, watermark)
            if not elements:
                return
        elif self._sessions is not None:
            elements = list(elements)  # decoded once, for all uses
            if self._sessions.take(key, elements):
                return
            for taken in self._sessions.withdraw(key):
                self._add(key, taken, self._before)
        self._add(key, elements, self._before)

    @override
    def combined(self, combined: Combined) -> None:
        # All elements of a window have the same fate: before its expiry, no trigger of accumulators closes it.
        watermark, expiry = self._place.clock.input, self._grouping.rules.expiry
        if late := sum(count for window, count in combined.windows.items() if watermark > expiry(window)):
            self._place.drop(DropCombined(late))

    def _add(self, key: bytes, elements: KeyElements, clocks: Clocks) -> None:
        try:
            effects = self._grouping.add(key, elements, clocks)
        except StateFormatError as e:
            raise self._located(e, key) from e
        self._carry_out(effects)

    @override
    def resume(self) -> bool:
        self._emit()
        return False

    @override
    def fire(self, watermark: Timestamp) -> bool:
        self._keep(watermark)
        exhausted = self._fire(watermark)
        if exhausted and self._buffer is not None:
            self._finish(self._buffer, watermark)
        self._emit()
        return exhausted and self._queue.is_due(watermark, self._place.now)

    def _finish(self, buffer: WindowBuffer, watermark: Timestamp) -> None:
        """Emit the windows of this micro-batch although the budget is used up: storing them would cost more."""
        clocks = self._clocks(watermark)
        for window in buffer.windows():
            if buffer.is_stored(window):
                self._store(window)
            else:
                self._timers.clear(_NO_KEY, self._ordered(window), WINDOW_END)
                self._end(window, clocks)

    def _keep(self, watermark: Timestamp) -> None:
        """Store buffered elements until the end of their window, unless the watermark has passed it.

        Sessions that have passed are emitted.
        """
        place, buffer = self._place, self._buffer
        for panes in () if self._sessions is None else self._sessions.panes():
            place.tally.fired += len(panes)
            place.record(place.runner.panes(panes))
        for window in () if buffer is None else buffer.windows():
            end = self._grouping.rules.bounds(window).end
            self._timers.set(_NO_KEY, self._ordered(window), WINDOW_END, end, end)
            if not passed(watermark, end):
                self._store(window)

    def _store(self, window: Window) -> None:
        assert self._buffer is not None
        try:
            self._buffer.store(window)
        except StateFormatError as e:
            raise self._located(e) from e

    def _fire(self, watermark: Timestamp) -> bool:
        place, clocks = self._place, self._clocks(watermark)
        while (fired := self._queue.next(watermark, place.now)) is not None:
            assert isinstance(fired, Fired)
            if self._window is None or fired.window != self._encoded:
                self._window, self._encoded = self._decode(fired.window), fired.window
            if fired.family == WINDOW_END:
                if not self._end(self._window, clocks):
                    return True
            else:
                place.tally.fired += 1
                try:
                    effects = self._grouping.fire(fired.key, self._window, _DOMAIN[fired.family], clocks)
                except StateFormatError as e:
                    raise self._located(e, fired.key) from e
                self._carry_out(effects)
            if place.budget.exhausted():
                return True
        return False

    def _end(self, window: Window, clocks: Clocks) -> bool:
        """Fire a window whose end the watermark has passed; return whether all buffered elements were emitted.

        If the window has not expired, each key's window then continues separately, because late elements may follow.
        """
        buffer, place = self._buffer, self._place
        assert buffer is not None
        end, expiry, _ = self._grouping.rules.bounds(window)
        over = clocks.input_watermark > expiry
        groups = self._groups(buffer, window)
        waiting, size = len(self._panes), self._pane_bytes
        for key, contents in self._read(groups):
            if over and not contents.behind:
                self._panes.append(EmitPane(key, window, contents, end, ONLY))
                self._pane_bytes += contents.size
            else:
                self._continue(key, window, contents, clocks)
            place.tally.fired += 1
            waiting += 1
            size += contents.size
            if waiting >= PANES_MAX or size >= EMITTED_BYTES_MAX or contents.lent is not None:
                waiting = size = 0
                self._emit()
                if groups.stored and place.budget.exhausted() and groups.stop_reading():
                    self._timers.set(_NO_KEY, self._ordered(window), WINDOW_END, end, end)
                    return False
        return True

    def _groups(self, buffer: WindowBuffer, window: Window) -> Groups:
        try:
            return buffer.groups(window)
        except StateFormatError as e:
            raise self._located(e) from e

    def _read(self, groups: Groups) -> Iterator[tuple[bytes, BufferedPane]]:
        try:
            yield from groups
        except StateFormatError as e:
            raise self._located(e) from e

    def _continue(self, key: bytes, window: Window, contents: BufferedPane, clocks: Clocks) -> None:
        grouping = self._grouping
        try:
            if contents.lent is not None:
                count = sum(1 for _ in contents)
                effects = grouping.end_large(key, window, contents, count, clocks)
            else:
                arrived, late = list(contents), contents.late()
                count = len(arrived) + len(late[0])
                times = [grouping.rules.bounds(window).end] * len(arrived)
                effects = grouping.end(key, window, (arrived, times), late, clocks)
        except StateFormatError as e:
            raise self._located(e, key) from e
        self._place.tally.unblocked += count
        self._carry_out(effects)

    @override
    def next_event(self) -> Timestamp | None:
        return self._timers.next_event()

    @override
    def next_due(self) -> Timestamp | None:
        return self._timers.next_processing()

    @override
    def restrictions(self) -> Restrictions:
        return Restrictions()

    @override
    def kept(self, closed: BundleResult) -> StateMetrics:
        gathered = 0 if self._buffer is None else self._buffer.many.more
        return StateMetrics(
            self._grouping.more + gathered, event_timers=self._timers.more_event, clock_timers=self._timers.more_clock
        )

    def _located(self, error: StateFormatError, key: bytes | None = None) -> StateFormatError:
        """Return the error with the location of the state."""
        what, why = error.args
        place = self._place
        of_key = "" if key is None else f" of key {shown(parts(part(key))[0])}"
        return StateFormatError(f"{what},{of_key} of {place.placed.name!r} in shard {place.shard},", why)

    def _clocks(self, watermark: Timestamp) -> Clocks:
        # The output watermark never exceeds the input's; an output without a watermark is at the beginning.
        return Clocks(self._place.now, watermark, min(self._place.committed_output, watermark))

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        place, lends = self._place, False
        for effect in effects:
            # Unpacked as tuples: a pattern with fields looks up each of them by its name.
            match effect:
                case EmitPane():
                    self._panes.append(effect)
                    if isinstance(effect.contents, EncodedPaneValues | BufferedPane):
                        self._pane_bytes += effect.contents.size
                        lends = lends or effect.contents.lent is not None
                case SetHold():
                    key, window, at = effect
                    self._holds.set(
                        Holder(_STATE, _PANE, key, self._ordered(window)), at, reported=place.committed_output
                    )
                case SetTimer():
                    key, window, domain, at = effect
                    self._timers.set(key, self._ordered(window), _family(domain), at, None)
                case ClearHold():
                    key, window = effect
                    self._holds.clear(Holder(_STATE, _PANE, key, self._ordered(window)))
                case ClearTimer():
                    key, window, domain = effect
                    self._timers.clear(key, self._ordered(window), _family(domain))
                case DropLate() | DropHeld():
                    place.drop(effect)
                case _:
                    assert_never(effect)
        # A lent pane is emitted before the grouping changes the rows that it is in.
        if len(self._panes) >= PANES_MAX or self._pane_bytes >= EMITTED_BYTES_MAX or lends:
            self._emit()

    def _emit(self) -> None:
        """Emit the waiting panes together: one by one, each would cost as much as several together."""
        panes, self._panes, self._pane_bytes = self._panes, [], 0
        if panes:
            self._place.record(self._place.runner.panes(panes))
            for pane in panes:
                if isinstance(pane.contents, EncodedPaneValues | BufferedPane) and pane.contents.lent is not None:
                    pane.contents.lent.release()

    def _ordered(self, window: Window) -> bytes:
        if window is not self._window:
            self._window, self._encoded = window, window.ordered()
        return self._encoded


def _family(domain: TimeDomain) -> str:
    return "window" if domain is TimeDomain.EVENT else "clock"
