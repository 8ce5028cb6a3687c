"""Timers, the end of state, and holds: with the watermark exactly at each moment, and one microsecond beside.

The rules are restated here, for one key: a timer fires when its time is passed, at the latest with its window's
end and lateness; then the state of the window goes; what comes after that is dropped.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from arcbeam.engine.grouping.groupings import KeyElements
from arcbeam.engine.protocol.stagekinds import Stateful
from arcbeam.engine.rows import keyspace
from arcbeam.engine.state.cells import BagCell, Cells
from arcbeam.engine.state.timers import Fired
from arcbeam.engine.task.bundles import CallResult, TimerSet
from arcbeam.model.timestamps import MAX_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import NO_PANE, IntervalWindow, Window
from tests.boundaries.stories import beside
from tests.engine.task.world import DECODE, FAMILIES, NAMES, RATES, V, W, World

SIZE = 10


class Comes(NamedTuple):
    """An element: its time, and the timer that it sets: tag, time, and hold."""

    number: int
    time: int
    tag: str
    fire_at: int
    hold: int | None


@dataclass
class Rules:
    """The expected calls for the key.

    Attributes:
        calls: everything, in order.
        timers: that are pending, by window and tag: their time, and the hold.
        ends: the windows that have state.
    """

    lateness: int
    at_expiration: bool
    watermark: int = -1000
    calls: list[str] = field(default_factory=list)
    timers: dict[tuple[int, str], tuple[int, int | None]] = field(default_factory=dict)
    ends: set[int] = field(default_factory=set)

    def expiry(self, start: int) -> int:
        return start + SIZE - 1 + self.lateness

    def add(self, element: Comes) -> None:
        start = element.time // SIZE * SIZE
        if self.watermark > self.expiry(start):
            self.calls.append(f"late {element.number}")
            return
        self.calls.append(f"process {element.number}")
        self.ends.add(start)
        fire_at = min(element.fire_at, self.expiry(start))
        hold = None if element.hold is None else min(element.hold, fire_at)
        self.timers[start, element.tag] = fire_at, hold

    def advance(self, watermark: int) -> None:
        self.watermark = watermark
        # Timers of one moment come before the ends of that moment.
        due = [(at, 0, start, tag) for (start, tag), (at, _) in self.timers.items() if at < watermark]
        due += [(self.expiry(start), 1, start, "") for start in self.ends if self.expiry(start) < watermark]
        moments: dict[int, list[str]] = {}
        for at, is_end, start, tag in sorted(due):
            if is_end:
                self.ends.remove(start)
                if self.at_expiration:
                    moments.setdefault(at, []).append(f"expire {start}")
            else:
                _, hold = self.timers.pop((start, tag))
                moments.setdefault(at, []).append(f"fire {start} {tag} {at} {hold}")
        for at in sorted(moments):
            self.calls += sorted(moments[at], key=lambda line: (line.startswith("expire"), line))

    def hold(self) -> int | None:
        """The earliest hold of the output watermark."""
        holds = [hold for _, hold in self.timers.values() if hold is not None]
        if self.at_expiration:
            holds += [start + SIZE - 1 for start in self.ends]
        return min(holds, default=None)

    def next_event(self) -> int | None:
        return min([*(at for at, _ in self.timers.values()), *map(self.expiry, self.ends)], default=None)


class Key(World):
    """A stage whose user code stores an element of each window, and sets a timer for each."""

    def __init__(self, lateness: int, at_expiration: bool) -> None:
        def expires(window: Window) -> Timestamp:
            return Timestamp(window.max_timestamp + lateness)

        super().__init__(Stateful(FAMILIES, DECODE, expires, at_expiration=at_expiration))
        self.seen = BagCell(Cells(self.view, 1), "seen")
        self.coming: dict[bytes, Comes] = {}
        self.reported: list[str] = []

    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        timers = []
        for value, _, (window,), _ in elements:
            element = self.coming[value]
            self.reported.append(f"process {element.number}")
            self.seen.add(key, window.ordered(), value)
            hold = None if element.hold is None else Timestamp(element.hold)
            timers.append(TimerSet(key, window, "event", Timestamp(element.fire_at), hold, element.tag))
        return CallResult(len(timers), tuple(timers))

    def call(self, fired: Fired) -> CallResult:
        start = DECODE(fired.window).start
        self.reported.append(f"fire {start} {fired.tag} {fired.fire_at} {fired.hold}")
        return CallResult()

    def expire(self, key: bytes, window: Window) -> CallResult:
        assert isinstance(window, IntervalWindow)
        assert list(self.seen.read(key, window.ordered())), "the state was dropped before the callback"
        self.reported.append(f"expire {window.start}")
        return CallResult()

    def move(self, elements: list[Comes], watermark: int) -> Any:
        arrived = []
        for element in elements:
            value = b"%d" % element.number
            start = element.time // SIZE * SIZE
            window = IntervalWindow(Timestamp(start), Timestamp(start + SIZE))
            self.coming[value] = element
            arrived.append((b"k", [(value, Timestamp(element.time), (window,), NO_PANE)]))
        before = len(self.drops)
        self.looks = 1_000_000
        report = self.run(watermark, arrived)
        self.reported += [f"late {drop.value.decode()}" for drop in self.drops[before:]]  # type: ignore[union-attr]
        return report

    def kept(self) -> set[int]:
        """The windows that have state."""
        starts = {element.time // SIZE * SIZE for element in self.coming.values()}
        windows = {start: IntervalWindow(Timestamp(start), Timestamp(start + SIZE)) for start in starts}
        return {start for start, window in windows.items() if list(self.seen.read(b"k", window.ordered()))}


def moments_of(calls: list[str], lateness: int) -> list[tuple[int, bool]]:
    """The times of timers and ends, in order; at the same moment, timers come first."""
    found = []
    for what, start, *rest in map(str.split, calls):
        if what == "fire":
            found.append((int(rest[-2]), False))
        elif what == "expire":
            found.append((int(start) + SIZE - 1 + lateness, True))
    return found


def elements_of(chance: random.Random, now: int, lateness: int, first: int) -> list[Comes]:
    """The input of a micro-batch: times near the watermark, and timers at and beside decisive moments."""
    found = []
    for n in range(chance.choice([0, 1, 2, 3])):
        edge = chance.choice([now, now - lateness, now // SIZE * SIZE, now + 5])
        time = beside(edge, chance)
        end = time // SIZE * SIZE + SIZE - 1
        fire_at = beside(chance.choice([now, end, end + lateness, time, now + 4]), chance)
        hold = chance.choice([None, fire_at, beside(fire_at, chance), beside(time, chance), beside(end, chance)])
        found.append(Comes(first + n, time, chance.choice(["s", "t"]), fire_at, hold))
    return found


@pytest.mark.contract("ENG-02", "ENG-12")
@pytest.mark.parametrize("block", range(6))
def test_timers_and_state_follow_the_rules_at_every_boundary(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        chance = random.Random(seed)
        lateness, at_expiration = chance.choice([0, 1, 4, 12]), chance.random() < 0.5
        rules, key = Rules(lateness, at_expiration), Key(lateness, at_expiration)
        now, number = 0, 0
        key.move([], now)
        rules.advance(now)
        for _ in range(8):
            elements = elements_of(chance, now, lateness, number)
            number += len(elements)
            for element in elements:
                rules.add(element)
            moments = [at for at, _ in rules.timers.values()] + [rules.expiry(start) for start in rules.ends]
            moments += [start + SIZE - 1 for start in rules.ends] + [each.time for each in elements]
            ahead = sorted(moment for moment in moments if moment >= now)[:3]
            now = max(now, beside(chance.choice(ahead), chance)) if ahead else now + 1
            rules.advance(now)
            report = key.move(elements, now)
            where = f"seed {seed} at {now}: {elements}"
            assert sorted(key.reported) == sorted(rules.calls), where
            assert moments_of(key.reported, lateness) == moments_of(rules.calls, lateness), where
            hold = report.local.outputs["main"].hold
            assert (hold and hold.time) == rules.hold(), where
            assert report.next_event == rules.next_event(), where
            assert key.kept() == rules.ends, where
        key.move([], MAX_TIMESTAMP)
        rules.advance(MAX_TIMESTAMP)
        assert sorted(key.reported) == sorted(rules.calls), seed
        assert {row[0] for row, _ in key.view.scan(b"")} <= {keyspace.RowKind.CLOCK}, seed


# Blocked elements.


@pytest.mark.contract("ENG-05")
@pytest.mark.parametrize(("watermark", "processed"), [(8, False), (9, False), (10, True)])
def test_blocked_element_is_processed_after_side_input_window(watermark: int, processed: bool) -> None:
    world = World(Stateful(FAMILIES, DECODE, lambda window: Timestamp(window.max_timestamp + 100)), (("a", RATES),))
    world.micro_batch(0, 5)
    world.committed_outputs[RATES] = Timestamp(watermark)
    world.micro_batch(0)
    assert (world.calls() == ["process 5"]) is processed


@pytest.mark.contract("ENG-05")
@pytest.mark.parametrize(("watermark", "processed"), [(8, False), (9, False), (10, True)])
def test_element_is_blocked_until_side_input_window_passed(watermark: int, processed: bool) -> None:
    world = World(Stateful(FAMILIES, DECODE, lambda window: Timestamp(window.max_timestamp + 100)), (("a", RATES),))
    world.committed_outputs[RATES] = Timestamp(watermark)
    world.committed_outputs[NAMES] = Timestamp(1000)
    world.micro_batch(0, 5)
    assert (world.calls() == ["process 5"]) is processed


@pytest.mark.parametrize("lateness", [0, 1, 3])
@pytest.mark.parametrize("beside_it", [-1, 0, 1])
def test_sorted_element_waits_for_time_plus_lateness(lateness: int, beside_it: int) -> None:
    kind = Stateful(FAMILIES, DECODE, lambda window: window.max_timestamp, in_order=Duration(lateness))
    world = World(kind)
    world.micro_batch(0, 5)
    world.micro_batch(5 + lateness + beside_it)
    assert world.calls() == (["process 5"] if beside_it > 0 else [])
    # Another element of the same time may arrive while that one waits.
    world.micro_batch(5 + lateness + beside_it, 5)
    assert (len(world.drops) == 0) is (beside_it <= 0)
    world.micro_batch(5 + lateness + 1)
    assert world.calls() == ([] if beside_it > 0 else ["process 5", "process 5"])


@pytest.mark.parametrize("window", [W, V])
@pytest.mark.parametrize("beside_it", [-1, 0, 1])
def test_elements_are_live_until_their_window_has_expired(window: IntervalWindow, beside_it: int) -> None:
    world = World(Stateful(FAMILIES, DECODE, lambda window: Timestamp(window.max_timestamp + 3)))
    world.micro_batch(window.max_timestamp + 3 + beside_it)
    world.micro_batch(window.max_timestamp + 3 + beside_it, (window.start, window))
    assert world.calls() == ([] if beside_it > 0 else [f"process {window.start}"])
