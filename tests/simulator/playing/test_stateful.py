"""Stages that buffer elements use cells of every kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from arcbeam.engine.rows.keyspace import after
from arcbeam.engine.state.cells import CellKind, Cells
from arcbeam.engine.state.residuals import Remainder, Restriction
from arcbeam.engine.state.timers import Fired
from arcbeam.engine.task.bundles import CallResult, TimerCleared, TimerSet
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.commits import Committable
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE, IntervalWindow, Window
from arcbeam.testing.views import MemoryView
from simulator.judging.records import Broken, Out
from simulator.playing.debouncing import ALL_WAYS, Debounced
from simulator.playing.stateful import WAYS
from simulator.playing.usercode import Expanding, Reading
from simulator.scenario.kinds import Event, Expand, Keep, Kind, Source
from simulator.scenario.plans import Stage
from simulator.scenario.windowings import Windowing

WINDOW = IntervalWindow(Timestamp(3), Timestamp(13))


@dataclass
class Alone:
    """A context without a task."""

    stage: Stage
    now: Timestamp = field(default=Timestamp(0))
    draining: bool = False
    chance: str = ""
    last_event: int = 100
    view: MemoryView = field(default_factory=MemoryView)
    outs: list[Out] = field(default_factory=list)
    waiting: list[Timestamp] = field(default_factory=list)

    def put_out(self, out: Out) -> None:
        self.outs.append(out)

    def timed(self, fired: Fired) -> None:
        pass

    def over(self, window: Window) -> None:
        pass

    def not_over(self, moment: Timestamp) -> None:
        self.waiting.append(moment)

    def side_input(self, window: Window) -> None:
        return None

    def published(self) -> tuple[Port, ...]:
        return ()

    def part(self) -> Committable | None:
        return None


class Plenty:
    """An unlimited budget."""

    def exhausted(self) -> bool:
        return False

    def part(self, fraction: float) -> Plenty:
        return self


def rows_of(way: str) -> set[int]:
    """Return the kinds of the cells that have rows after some elements."""
    context = Alone(Stage("keep-1", 1, Keep(way=way)))
    runner = WAYS[way](context, 1)
    runner.process(b"k", [(b"a1", Timestamp(5), (WINDOW,), NO_PANE), (b"a2", Timestamp(7), (WINDOW,), NO_PANE)])
    start = Cells(context.view, 1).start(b"k", WINDOW.ordered())
    return {row[len(start)] for row, _ in context.view.scan(start, after(start))}


def test_all_kinds_of_cells_are_written() -> None:
    assert set().union(*map(rows_of, WAYS)) == set(CellKind)


def test_debounced_elements_set_one_timer_repeatedly() -> None:
    context = Alone(Stage("keep-1", 1, Keep(way="debounce", pause=10)))
    runner = Debounced(context, 1)
    elements = [(b"a%d" % n, Timestamp(4 + n), (WINDOW,), NO_PANE) for n in range(6)]
    changes = [(type(change), change.family) for change in runner.process(b"k", elements).timers]
    assert min(Counter(changes).values()) >= 3
    assert set(changes) == {(of, family) for of in (TimerSet, TimerCleared) for family in ("quiet", "clock")}


@pytest.mark.parametrize(("fire_at", "payload"), [(12, b"1"), (8, b"1"), (12, b"0")])
def test_debounced_timer_fires_once_as_last_set(fire_at: int, payload: bytes) -> None:
    context = Alone(Stage("keep-1", 1, Keep(way="debounce", delay=7)))
    runner = ALL_WAYS["debounce"](context, 1)
    runner.process(b"k", [(b"a1", Timestamp(5), (WINDOW,), NO_PANE)])
    fired = Fired(b"k", WINDOW.ordered(), "quiet", "", Timestamp(fire_at), Timestamp(5), payload)
    if (fire_at, payload) == (12, b"1"):
        runner.fired(fired)
        assert [(out.atoms, out.time) for out in context.outs] == [((b"a1",), 5)]
    with pytest.raises(Broken, match="was moved, cleared or had fired"):
        runner.fired(fired)


def test_earlier_half_is_released_first() -> None:
    context = Alone(Stage("keep-1", 1, Keep(way="clock or expiration", pause=10)))
    runner = WAYS["clock or expiration"](context, 1)
    times = [Timestamp(time) for time in (9, 5, 7)]
    runner.process(b"k", [(b"a%d" % time, time, (WINDOW,), NO_PANE) for time in times])
    context.now = Timestamp(10)
    results: list[CallResult] = []
    runner.fire(iter([Fired(b"k", WINDOW.ordered(), "clock", "", Timestamp(10), times[1], b"3")]), results.append)
    (did,) = results
    assert [out.time for out in context.outs] == [5]
    assert [(timer.fire_at, timer.hold) for timer in did.timers] == [(20, 7)]  # type: ignore[union-attr]


@pytest.mark.parametrize(("windowing", "waiting"), [("global", [GLOBAL_WINDOW.max_timestamp]), ("fixed", [])])
def test_processing_timer_sees_pending_event_timers(windowing: str, waiting: list[Timestamp]) -> None:
    kind = Keep(Windowing(windowing, 10), "clock", pause=10)
    (window,) = kind.windowing.fn.assign(Timestamp(5))
    context = Alone(Stage("keep-1", 1, kind))
    runner = WAYS["clock"](context, 1)
    runner.process(b"k", [(b"a1", Timestamp(5), (window,), NO_PANE)])
    context.now = Timestamp(10)
    runner.fire(iter([Fired(b"k", window.ordered(), "clock", "", Timestamp(10), Timestamp(5), b"1")]), lambda did: None)
    assert context.waiting == waiting


@pytest.mark.parametrize("kind", [Expand(), Source((Event(b"a0", b"k", 1),), bounded=True)])
def test_drain_runs_only_truncated_restrictions_truncated_once(kind: Kind) -> None:
    context = Alone(Stage("it-1", 1, kind))
    runner = Expanding(context) if isinstance(kind, Expand) else Reading(context)
    arrived = (b"0:1" if isinstance(kind, Source) else b"a0", Timestamp(1), (GLOBAL_WINDOW,), NO_PANE)
    admitted = Restriction(b"id", "root", runner.restriction(b"k", arrived))
    with pytest.raises(Broken, match="without a drain"):
        runner.truncate(admitted)
    context.draining = True
    with pytest.raises(Broken, match="was not truncated"):
        runner.resume(admitted, Plenty(), 1)
    kept = runner.truncate(admitted)
    assert isinstance(kept, Remainder)
    truncated = replace(admitted, remainder=kept)
    with pytest.raises(Broken, match="twice"):
        runner.truncate(truncated)
    runner.resume(truncated, Plenty(), 1)
    assert context.outs
