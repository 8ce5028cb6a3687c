"""All implementations fire the same panes, with the watermark exactly at each decisive moment."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from arcbeam.engine.grouping.composites import AfterWatermark, Repeatedly
from arcbeam.engine.grouping.contents import InMemory
from arcbeam.engine.grouping.effects import DropLate, EmitPane
from arcbeam.engine.grouping.groupings import by_window
from arcbeam.engine.grouping.keywindows import KeyWindows
from arcbeam.engine.grouping.merging import SessionMerging
from arcbeam.engine.grouping.openwindow import Clocks, Rules
from arcbeam.engine.grouping.strategy import PaneTime
from arcbeam.engine.grouping.strategy import Strategy as OurStrategy
from arcbeam.engine.grouping.triggers import AfterCount, Trigger
from arcbeam.engine.protocol.stagekinds import Grouped
from arcbeam.engine.task.bundles import CallResult
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE, IntervalWindow, Window
from arcbeam.testing import windowfns
from tests.boundaries.rules import GLOBAL, Drop, Key, Pane, Span, Strategy
from tests.boundaries.stories import MicroBatch, event_log, strategy_of
from tests.engine.grouping.grouping_shard import Shard
from tests.engine.grouping.grouping_strategies import Concat
from tests.engine.grouping.test_singlepane import Long
from tests.engine.task.test_gathering import Part, unpack
from tests.engine.task.world import World

Outcome = tuple[dict[Span, list[Pane]], Counter[Drop]]
TRIGGERS: dict[str, Trigger] = {
    "each late": Repeatedly(AfterWatermark()),
    "once": AfterWatermark(),
    "late pairs": AfterWatermark(late=AfterCount(2)),
    "early pairs": AfterWatermark(early=AfterCount(2), late=AfterCount(1)),
}
PANE_TIMES = {"end": PaneTime.END_OF_WINDOW, "earliest": PaneTime.EARLIEST, "latest": PaneTime.LATEST}


def outcome(panes: Sequence[Pane], drops: Sequence[Drop]) -> Outcome:
    """The compared results: panes in order by window, and dropped elements."""
    found: defaultdict[Span, list[Pane]] = defaultdict(list)
    for pane in panes:
        found[pane.window].append(pane)
    return dict(found), Counter(drops)


def by_the_rules(strategy: Strategy, micro_batches: Sequence[MicroBatch]) -> Outcome:
    key = Key(strategy)
    for elements, watermark in micro_batches:
        for value, time in elements:
            key.add(value, time)
        key.advance(watermark)
    return outcome(key.panes, key.drops)


# The engine.


def ours(strategy: Strategy, *, combined: bool = False) -> OurStrategy:
    return OurStrategy(
        combiner=Concat() if combined else None,
        trigger=TRIGGERS[strategy.trigger],
        merging=SessionMerging() if strategy.windows == "sessions" else None,
        accumulating=strategy.accumulating,
        pane_time=PANE_TIMES[strategy.pane_time],
        lateness=Duration(strategy.lateness),
        empty_on_time=strategy.empty_on_time,
        empty_last=strategy.empty_last,
    )


def windowfn_of(strategy: Strategy) -> windowfns.WindowFn:
    match strategy.windows:
        case "fixed":
            return windowfns.FixedWindows(Duration(strategy.size), Duration(0))
        case "sliding":
            return windowfns.SlidingWindows(Duration(strategy.size), Duration(strategy.period), Duration(0))
        case "sessions":
            return windowfns.Sessions(Duration(strategy.size))
        case "global":
            return windowfns.GlobalWindows()


def span_of(window: Window) -> Span:
    return (window.start, window.end) if isinstance(window, IntervalWindow) else GLOBAL


def pane_of(pane: EmitPane) -> Pane:
    values = tuple(sorted(int(value) for value in pane.contents))
    timing = pane.pane.timing.value
    assert timing in ("early", "on time", "late")
    return Pane(span_of(pane.window), values, pane.timestamp, timing, pane.pane.index, pane.pane.is_last)


def drop_of(drop: Any) -> Drop:
    assert isinstance(drop, DropLate)
    return Drop(span_of(drop.window), int(drop.value), "expired" if drop.reason.name == "EXPIRED" else "closed")


def of_shard(kind: type[Shard]) -> Callable[[Strategy, Sequence[MicroBatch]], Outcome]:
    """A grouping alone, with short cuts or without."""

    def run(strategy: Strategy, micro_batches: Sequence[MicroBatch]) -> Outcome:
        shard = kind(ours(strategy, combined=micro_batches[0].watermark % 3 == 0), windowfn_of(strategy))
        for elements, watermark in micro_batches:
            if elements:
                shard.add([time for _, time in elements], values=[b"%d" % value for value, _ in elements])
            shard.advance(watermark)
        assert not len(shard.view)
        assert not shard.timers
        assert not shard.holds
        return outcome([pane_of(pane) for pane in shard.panes], [drop_of(drop) for drop in shard.drops])

    return run


class Stage(World):
    """A stage that stores its panes."""

    def __init__(self, kind: Grouped) -> None:
        super().__init__(kind)
        self.put_out: list[Pane] = []

    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        self.put_out += map(pane_of, panes)
        return CallResult(len(panes))


def of_stage(strategy: Strategy, micro_batches: Sequence[MicroBatch]) -> Outcome:
    """A stage in a streaming job: windows are buffered, sessions may pass."""
    windowfn = windowfn_of(strategy)
    decode = (lambda data: GLOBAL_WINDOW) if strategy.windows == "global" else IntervalWindow.from_ordered
    stage = Stage(Grouped(ours(strategy), decode, unpack))
    stage.spec = replace(stage.spec, decode=decode)
    for elements, watermark in micro_batches:
        arrived: list[tuple[bytes, Part]] = []
        for value, time in elements:
            windows = windowfn.assign(Timestamp(time))
            element = (b"%d" % value, Timestamp(time), windows, NO_PANE)
            arrived.append((b"k", Part([element], windows, packed=value % 3 > 0)))
        stage.looks = 1_000_000
        stage.run(watermark, arrived)
    return outcome(stage.put_out, [drop_of(drop) for drop in stage.drops])


# The bounded run.


def of_bounded(strategy: Strategy, micro_batches: Sequence[MicroBatch]) -> Outcome:
    """What bounded pipelines use, with a watermark that moves: windows in memory, and nothing holds the output."""
    windowfn, grouping = windowfn_of(strategy), ours(strategy)
    windows = KeyWindows(
        Rules(grouping), b"k", Clocks(Timestamp(0), MIN_TIMESTAMP, MIN_TIMESTAMP), lambda _: InMemory()
    )
    for elements, watermark in micro_batches:
        arrived = [
            (b"%d" % value, Timestamp(time), windowfn.assign(Timestamp(time)), NO_PANE) for value, time in elements
        ]
        if grouping.merging is None:
            windows.add(by_window(arrived))
        else:
            windows.add_merging([(value, time, window) for value, time, each, _ in arrived for window in each])
        ends = watermark == micro_batches[-1].watermark
        reached = MAX_TIMESTAMP if ends else Timestamp(watermark)
        windows.advance(Clocks(Timestamp(0), reached, reached))
    assert not list(windows.contents())
    panes = [pane_of(effect) for effect in windows.out if isinstance(effect, EmitPane)]
    return outcome(panes, [drop_of(effect) for effect in windows.out if not isinstance(effect, EmitPane)])


def story_of(seed: int) -> tuple[Strategy, list[MicroBatch]]:
    chance = random.Random(seed)
    strategy = strategy_of(chance)
    return strategy, event_log(strategy, chance)


@pytest.mark.contract("ENG-02", "ENG-10", "ENG-11")
@pytest.mark.parametrize("block", range(8))
@pytest.mark.parametrize("way", [of_shard(Shard), of_shard(Long), of_stage], ids=["short", "long", "stage"])
def test_panes_follow_the_rules_at_every_boundary(way: Any, block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        strategy, micro_batches = story_of(seed)
        if way is of_stage:
            # The stage's output watermark stays where it is.
            strategy = replace(strategy, pane_time="end")
        expected, found = by_the_rules(strategy, micro_batches), way(strategy, micro_batches)
        assert found == expected, f"seed {seed}: {strategy}\n{micro_batches}"


@pytest.mark.contract("ENG-10", "ENG-11")
@pytest.mark.parametrize("block", range(8))
def test_panes_of_a_bounded_run_are_those_of_the_rules(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        strategy, micro_batches = story_of(seed)
        strategy = replace(strategy, held_by="input")
        expected, found = by_the_rules(strategy, micro_batches), of_bounded(strategy, micro_batches)
        assert found == expected, f"seed {seed}: {strategy}\n{micro_batches}"
