"""Windows in memory behave like windows in the state, without access to it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.grouping.composites import AfterWatermark, Repeatedly
from arcbeam.engine.grouping.contents import Accumulated, Contents, InMemory
from arcbeam.engine.grouping.effects import DropLate, EmitPane
from arcbeam.engine.grouping.groupings import by_window
from arcbeam.engine.grouping.keywindows import KeyWindows
from arcbeam.engine.grouping.merging import SessionMerging
from arcbeam.engine.grouping.openwindow import Clocks, Rules
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.grouping.triggers import AfterCount
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import NO_PANE, IntervalWindow
from arcbeam.testing.windowfns import FixedWindows, Sessions, WindowFn
from tests.engine.grouping.grouping_shard import Shard
from tests.engine.grouping.grouping_strategies import groupings

pytestmark = pytest.mark.contract("ENG-11")

BEGIN = Clocks(Timestamp(0), MIN_TIMESTAMP, MIN_TIMESTAMP)
END = Clocks(Timestamp(0), MAX_TIMESTAMP, MAX_TIMESTAMP)


class Memory:
    """Windows in memory, with each element in the windows of its timestamp."""

    def __init__(self, strategy: Strategy, windowfn: WindowFn) -> None:
        self.strategy, self.windowfn = strategy, windowfn
        combiner = strategy.combiner

        def contents(window: Any) -> Contents:
            return InMemory() if combiner is None else Accumulated(combiner)

        self.windows = KeyWindows(Rules(strategy), b"k", BEGIN, contents)

    def add(self, times: list[int], values: list[bytes]) -> None:
        arrived = [
            (v, Timestamp(t), self.windowfn.assign(Timestamp(t)), NO_PANE) for v, t in zip(values, times, strict=True)
        ]
        if self.strategy.merging is None:
            self.windows.add(by_window(arrived))
        else:
            self.windows.add_merging([(value, time, window) for value, time, each, _ in arrived for window in each])


acts = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(-10, 40), min_size=1, max_size=8)),
        st.tuples(st.just("advance"), st.integers(0, 15)),
        st.tuples(st.just("tick"), st.integers(0, 9)),
    ),
    max_size=12,
)


@pytest.mark.contract("ENG-10")
@settings(max_examples=300, deadline=None)
@given(groupings(), acts)
def test_windows_in_memory_equal_windows_in_state(grouping: tuple[Strategy, Any], acts: list[tuple[Any, ...]]) -> None:
    shard, memory = Shard(*grouping), Memory(*grouping)
    for act in [*acts, ("finish",)]:
        # The output watermark depends on holds, which only the state has.
        output = shard.output
        match act:
            case "add", times:
                values = [f"{time}".encode() for time in times]
                memory.add(times, values)
                shard.add(times, values=values)
            case "advance", by:
                shard.advance(max(shard.watermark, -10) + by)
            case "tick", by:
                shard.tick(shard.now + by)
            case _:
                shard.finish()
        memory.windows.advance(Clocks(shard.now, shard.watermark, output), ticked=True)
        memory.windows.advance(shard.clocks(), ticked=True)
    panes = [effect for effect in memory.windows.out if isinstance(effect, EmitPane)]
    drops = [effect for effect in memory.windows.out if not isinstance(effect, EmitPane)]
    assert by_its_window(panes) == by_its_window(shard.panes)
    assert by_its_window(drops) == by_its_window(shard.drops)
    assert not list(memory.windows.contents())


def by_its_window(effects: Any) -> dict[Any, list[Any]]:
    """Return the panes or drops of each window, in order; different windows have no order."""
    found = defaultdict(list)
    for effect in effects:
        if isinstance(effect, DropLate):
            shown: Any = effect
        elif isinstance(effect, EmitPane):
            shown = sorted(effect.contents), effect.timestamp, effect.pane
        else:
            shown = sorted(effect.contents), effect.count, effect.watermark
        found[effect.window].append(shown)
    return found


def test_windows_fire_in_order_of_their_ends() -> None:
    memory = Memory(Strategy(Repeatedly(AfterWatermark())), FixedWindows(Duration(10), Duration(0)))
    memory.add([35, 5, 25, 15], [b"35", b"5", b"25", b"15"])
    memory.windows.advance(END)
    assert [list(effect.contents) for effect in memory.windows.out if isinstance(effect, EmitPane)] == [
        [b"5"], [b"15"], [b"25"], [b"35"],
    ]  # fmt: skip


@pytest.mark.contract("ENG-10")
def test_expired_session_is_not_merged() -> None:
    memory = Memory(Strategy(Repeatedly(AfterWatermark()), merging=SessionMerging()), Sessions(Duration(10)))
    memory.add([30, 0], [b"30", b"0"])
    memory.windows.advance(Clocks(Timestamp(0), Timestamp(12), Timestamp(12)))
    memory.add([9, 22, 13], [b"9", b"22", b"13"])
    memory.windows.advance(END)
    panes = [(effect.window, sorted(effect.contents)) for effect in memory.windows.out if isinstance(effect, EmitPane)]
    assert panes == [
        (IntervalWindow(Timestamp(0), Timestamp(10)), [b"0"]),
        (IntervalWindow(Timestamp(9), Timestamp(40)), [b"13", b"22", b"30", b"9"]),
    ]


def test_later_elements_do_not_change_pane() -> None:
    strategy = Strategy(AfterWatermark(early=AfterCount(2)), accumulating=True)
    memory = Memory(strategy, FixedWindows(Duration(10), Duration(0)))
    memory.add([1, 2], [b"1", b"2"])
    memory.add([3, 4], [b"3", b"4"])
    memory.windows.advance(END)
    panes = [effect.contents for effect in memory.windows.out if isinstance(effect, EmitPane)]
    assert panes == [[b"1", b"2"], [b"1", b"2", b"3", b"4"], [b"1", b"2", b"3", b"4"]]


def test_contents_of_ended_windows_are_released() -> None:
    memory = Memory(Strategy(Repeatedly(AfterWatermark())), FixedWindows(Duration(10), Duration(0)))
    memory.add([5, 15], [b"5", b"15"])
    assert [contents.values for contents in memory.windows.contents()] == [[b"5"], [b"15"]]
    memory.windows.advance(Clocks(Timestamp(0), Timestamp(10), Timestamp(10)))
    assert [contents.values for contents in memory.windows.contents()] == [[b"15"]]
