"""Stages whose results come later, and whose timers fire together: each key sees the same as one by one."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from arcbeam.engine.grouping.groupings import KeyElements
from arcbeam.engine.protocol.stagekinds import Stateful
from arcbeam.engine.state.cells import BagCell, Cells
from arcbeam.engine.state.timers import EXPIRATION, Fired
from arcbeam.engine.task.bundles import CallResult, TimerCleared, TimerSet
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from arcbeam.model.windows import NO_PANE, Window
from tests.engine.task.world import DECODE, FAMILIES, V, W, World, end_of

KEYS = [b"a", b"b", b"c", b"d"]


class Deciding(World):
    """User code that decides by chance what to do: by the seed, the key, and what the key's state has counted.

    Args:
        seed: of all decisions.
        in_lots: results may come later, and timers fire together.
        of_kind: of the stage.
    """

    def __init__(self, seed: int, in_lots: bool, **of_kind: Any) -> None:
        super().__init__(Stateful(FAMILIES, DECODE, end_of, **of_kind))
        self.seed = seed
        self.chance = random.Random(seed)
        if in_lots:
            self.together = self.chance.choice([2, 3, 100])
        self.unsettled: list[tuple[bytes, KeyElements]] = []
        self.lots: list[Sequence[Fired]] = []
        self.stories: dict[bytes, list[Any]] = defaultdict(list)
        self.calls_of_key: dict[bytes, int] = defaultdict(int)

    def decided(self, key: bytes, window: Window, at: int, *what: Any) -> CallResult:
        """Note a call; return what it does."""
        bag = BagCell(Cells(self.view, 1), "calls")
        bag.add(key, window.ordered(), b"x")
        seen = len(list(bag.read(key, window.ordered())))
        self.calls_of_key[key] += 1
        self.stories[key].append((window, seen, *what))
        chance = random.Random(f"{self.seed}/{key!r}/{self.calls_of_key[key]}/{what}/{seen}")
        timers: list[TimerSet | TimerCleared] = []
        for _ in range(chance.choice([0, 1, 1, 2])):
            family, tag = chance.choice(list(FAMILIES)), chance.choice(["", "x"])
            if chance.random() < 0.2:
                timers.append(TimerCleared(key, window, family, tag))
            elif self.calls_of_key[key] < 60:
                fire_at = Timestamp(at + chance.randrange(6))
                timers.append(TimerSet(key, window, family, fire_at, None, tag, b"%d" % chance.randrange(9)))
        return CallResult(1, timers)

    def processed(self, key: bytes, elements: KeyElements) -> Iterator[CallResult]:
        for value, time, windows, _ in elements:
            for window in windows:
                yield self.decided(key, window, time, "element", value, time)

    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        self.unsettled.append((key, elements))
        return self.settled(1 if self.together == 1 else self.chance.choice([0, 0, 1, len(self.unsettled)]))

    def settle(self) -> CallResult:
        assert self.together > 1
        return self.settled(len(self.unsettled))

    def settled(self, count: int) -> CallResult:
        calls, self.unsettled = self.unsettled[:count], self.unsettled[count:]
        return joined([result for call in calls for result in self.processed(*call)])

    def fire(self, due: Iterator[Fired], led_to: Callable[[CallResult], None]) -> None:
        assert self.together == 1
        super().fire(due, led_to)

    def call(self, fired: Fired) -> CallResult:
        what = fired.family, fired.tag, fired.fire_at, fired.payload
        return self.decided(fired.key, DECODE(fired.window), fired.fire_at, "timer", *what)

    def expire(self, key: bytes, window: Window) -> CallResult:
        return self.decided(key, window, window.max_timestamp, "expiration")

    def fire_together(self, lot: Sequence[Fired]) -> CallResult:
        assert not self.unsettled, "elements come before timers"
        assert len({fired.key for fired in lot}) == len(lot) <= self.together
        self.lots.append(lot)
        return joined(
            [
                self.expire(fired.key, DECODE(fired.window)) if fired.family == EXPIRATION else self.call(fired)
                for fired in self.chance.sample(list(lot), len(lot))
            ]
        )


def joined(results: Sequence[CallResult]) -> CallResult:
    return CallResult(sum(each.written for each in results), [timer for each in results for timer in each.timers])


def played(world: Deciding) -> int:
    """Run micro-batches; return the number of elements that user code has put out."""
    chance = random.Random(f"{world.seed}/input")
    watermark = now = written = 0
    for _ in range(6):
        arrived = []
        for _ in range(chance.randrange(12)):
            time = chance.randrange(20)
            window = W if time < 10 else V
            arrived.append((chance.choice(KEYS), [(b"%d" % time, Timestamp(time), (window,), NO_PANE)]))
        watermark, now = watermark + chance.randrange(6), now + chance.randrange(6)
        written += world.run(watermark, arrived, now).counts.written
    return written + world.run(MAX_TIMESTAMP, [], now + 100).counts.written


@pytest.mark.contract("ENG-12")
@pytest.mark.parametrize("at_expiration", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_keys_see_in_lots_what_they_see_one_by_one(seed: int, at_expiration: bool) -> None:
    single, lots = (Deciding(seed, in_lots, at_expiration=at_expiration) for in_lots in (False, True))
    assert played(single) == played(lots)
    assert lots.stories == single.stories
    assert lots.view.snapshot() == single.view.snapshot()


def test_lots_have_timers_and_expirations_of_many_keys() -> None:
    worlds = [Deciding(seed, True, at_expiration=True) for seed in range(10)]
    for world in worlds:
        played(world)
    lots = [{fired.family == EXPIRATION for fired in lot} for world in worlds for lot in world.lots if len(lot) > 1]
    assert {True, False} in lots
    assert {False} in lots
    assert any(len(lot) == len(KEYS) for world in worlds for lot in world.lots)


def test_stage_in_order_of_time_fires_one_timer_after_the_other() -> None:
    single, lots = (Deciding(5, in_lots, in_order=0, at_expiration=True) for in_lots in (False, True))
    assert played(single) == played(lots)
    assert lots.stories == single.stories
    assert {len(lot) for lot in lots.lots} == {1}


def test_lot_ends_with_the_budget_and_leaves_the_rest() -> None:
    world = Deciding(0, True)
    world.together = 100
    world.decided = lambda key, window, at, what, *more: CallResult(  # type: ignore[method-assign]
        1, [TimerSet(key, window, "event", Timestamp(5), None)] if what == "element" else []
    )
    arrived = [(key, [(b"1", Timestamp(1), (W,), NO_PANE)]) for key in KEYS]
    world.looks = 3
    report = world.run(8, arrived)
    assert report.leftover
    assert [len(lot) for lot in world.lots] == [3]
    world.looks = 1000
    assert not world.run(8, []).leftover
    assert [len(lot) for lot in world.lots] == [3, 1]
