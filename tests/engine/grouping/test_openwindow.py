"""A window that absorbs another: whether its next pane is on time, from what both of them hold."""

from __future__ import annotations

from itertools import product

import pytest

from arcbeam.engine.grouping.composites import Repeatedly
from arcbeam.engine.grouping.contents import InMemory
from arcbeam.engine.grouping.effects import Effect, EmitPane
from arcbeam.engine.grouping.openwindow import Clocks, OpenWindow, Rules
from arcbeam.engine.grouping.record import Record
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.grouping.triggers import AfterCount
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.model.windows import IntervalWindow, Timing

_COUNT = 4
RULES = Rules(Strategy(Repeatedly(AfterCount(_COUNT)), lateness=Duration(1000)))
START, END = IntervalWindow(Timestamp(0), Timestamp(10)), IntervalWindow(Timestamp(5), Timestamp(20))
WHOLE = IntervalWindow(Timestamp(0), Timestamp(20))
BEFORE, PASSED = (Clocks(Timestamp(0), at, at) for at in (Timestamp(3), Timestamp(30)))


class Opened:
    """A window with elements that came in time, or late."""

    def __init__(self, window: IntervalWindow, in_time: int, late: int) -> None:
        self.out: list[Effect] = []
        self.of = OpenWindow(RULES, b"k", window, Record(RULES.first_until_ready), InMemory(), self.out)
        self.of.begin(BEFORE)
        self.add(in_time, BEFORE)
        self.add(late, PASSED)

    def add(self, count: int, clocks: Clocks) -> None:
        self.of.look(clocks)
        if count:
            self.of.add([b"x"] * count, [self.of.end] * count, clocks)

    def panes(self) -> list[EmitPane]:
        return [effect for effect in self.out if isinstance(effect, EmitPane)]


@pytest.mark.contract("ENG-11")
@pytest.mark.parametrize(("mine", "theirs"), [*product([(0, 1), (1, 0), (1, 1), (_COUNT, 0), (_COUNT, 1)], repeat=2)])
def test_pane_is_on_time_if_either_window_held_elements_in_time(mine: tuple[int, int], theirs: tuple[int, int]) -> None:
    """Both windows have ended. Four elements that came in time were an early pane."""
    one, other = Opened(START, *mine), Opened(END, *theirs)
    one.of.grow(WHOLE, PASSED)
    one.of.absorb(other.of, PASSED)
    held = 1 in (mine[0], theirs[0])
    assert one.of.record.passed
    assert one.of.record.on_time == held
    assert one.of.record.fresh == sum(in_time % _COUNT + late for in_time, late in (mine, theirs))
    one.out.clear()
    one.add(_COUNT, PASSED)
    first, *_ = one.panes()
    assert first.pane.timing == (Timing.ON_TIME if held else Timing.LATE)


@pytest.mark.contract("ENG-11")
@pytest.mark.parametrize(("mine", "theirs"), [*product([0, 1, _COUNT, _COUNT + 1], repeat=2)])
def test_merged_window_that_has_not_ended_has_early_panes(mine: int, theirs: int) -> None:
    """The one that absorbs has ended, and the window of both has not."""
    between = Clocks(Timestamp(0), Timestamp(12), Timestamp(12))
    one, other = Opened(START, mine, 0), Opened(END, theirs, 0)
    one.of.look(between)
    other.of.look(between)
    one.of.grow(WHOLE, between)
    one.of.absorb(other.of, between)
    assert (one.of.record.passed, one.of.record.on_time) == (False, False)
    one.out.clear()
    one.add(_COUNT, between)
    assert [pane.pane.timing for pane in one.panes()] == [Timing.EARLY] * len(one.panes())
    assert one.panes()
    one.out.clear()
    one.add(_COUNT, PASSED)
    rest = (mine + theirs) % _COUNT
    assert one.panes()[0].pane.timing == (Timing.ON_TIME if rest else Timing.LATE)
