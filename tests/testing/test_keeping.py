"""Stages that keep elements use cells of every kind."""

from __future__ import annotations

from dataclasses import dataclass, field

from arcbeam.engine.cells import CellKind, Cells
from arcbeam.engine.clocks import Port
from arcbeam.engine.keyspace import after
from arcbeam.engine.reports import Committable
from arcbeam.engine.timers import Fired
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import IntervalWindow, Window
from arcbeam.testing.simulate.keeping import WAYS
from arcbeam.testing.simulate.kinds import Keep
from arcbeam.testing.simulate.plans import Stage
from arcbeam.testing.simulate.records import Out
from arcbeam.testing.views import MemoryView

WINDOW = IntervalWindow(Timestamp(3), Timestamp(13))


@dataclass
class Alone:
    """A desk with nobody around it."""

    stage: Stage
    now: Timestamp = field(default=Timestamp(0))
    chance: str = ""
    last_event: int = 100
    view: MemoryView = field(default_factory=MemoryView)
    outs: list[Out] = field(default_factory=list)

    def put_out(self, out: Out) -> None:
        self.outs.append(out)

    def timed(self, fired: Fired) -> None:
        pass

    def over(self, window: Window) -> None:
        pass

    def joins(self, window: Window) -> bool:
        return False

    def published(self) -> tuple[Port, ...]:
        return ()

    def part(self) -> Committable | None:
        return None


def rows_of(way: str) -> set[int]:
    """The kinds of the cells that have rows when elements have come."""
    desk = Alone(Stage("keep-1", 1, Keep(way=way)))
    runner = WAYS[way](desk, 1)
    runner.process(b"k", [(b"a1", Timestamp(5), (WINDOW,)), (b"a2", Timestamp(7), (WINDOW,))])
    start = Cells(desk.view, 1).start(b"k", WINDOW.ordered())
    return {row[len(start)] for row, _ in desk.view.scan(start, after(start))}


def test_cells_of_every_kind_are_written() -> None:
    assert set().union(*map(rows_of, WAYS)) == set(CellKind)


def test_the_earlier_half_goes_first() -> None:
    desk = Alone(Stage("keep-1", 1, Keep(way="clock or expiration", pause=10)))
    runner = WAYS["clock or expiration"](desk, 1)
    times = [Timestamp(time) for time in (9, 5, 7)]
    runner.process(b"k", [(b"a%d" % time, time, (WINDOW,)) for time in times])
    desk.now = Timestamp(10)
    did = runner.fire(Fired(b"k", WINDOW.ordered(), "clock", "", Timestamp(10), times[1], b""))
    assert [out.time for out in desk.outs] == [5]
    assert [(timer.fire_at, timer.hold) for timer in did.timers] == [(20, 7)]  # type: ignore[union-attr]
