"""Buffered windows emit the same panes as windows that are stored separately for each key."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pytest

from arcbeam.engine.coordinator.stalls import moved
from arcbeam.engine.grouping import sortedruns
from arcbeam.engine.grouping.composites import AfterWatermark, Repeatedly
from arcbeam.engine.grouping.effects import DropLate, EmitPane
from arcbeam.engine.grouping.groupings import UniformElements, WindowedElement
from arcbeam.engine.grouping.strategy import PaneTime, Strategy
from arcbeam.engine.grouping.triggers import AfterCount, Never, Trigger
from arcbeam.engine.grouping.windowbuffer import EMITTED_BYTES_MAX
from arcbeam.engine.protocol.stagekinds import Grouped
from arcbeam.engine.task import groupedstage
from arcbeam.engine.task.bundles import CallResult
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.model.windows import NO_PANE, IntervalWindow, Timing, Window
from tests.engine.task.world import DECODE, World

UNREACHED = AfterCount(1_000_000)
"""A trigger that contains this needs each key's window separately; its results do not differ."""
STRATEGIES = [
    (Strategy(Repeatedly(AfterWatermark())), Repeatedly(AfterWatermark(early=UNREACHED))),
    (Strategy(Repeatedly(AfterWatermark()), lateness=Duration(15)), Repeatedly(AfterWatermark(early=UNREACHED))),
    (
        Strategy(AfterWatermark(late=AfterCount(2)), accumulating=True, lateness=Duration(25)),
        AfterWatermark(early=UNREACHED, late=AfterCount(2)),
    ),
    (Strategy(AfterWatermark(), lateness=Duration(15)), AfterWatermark(early=UNREACHED)),
    (Strategy(Never(), lateness=Duration(5), empty_last=True), None),
    (Strategy(Repeatedly(AfterWatermark()), pane_time=PaneTime.EARLIEST), None),
    (Strategy(AfterWatermark(early=AfterCount(3)), accumulating=True), None),
]


SINGLE = [(strategy, on_its_own) for strategy, on_its_own in STRATEGIES if on_its_own is not None]
"""Strategies with buffered windows."""


class Part(UniformElements):
    """Elements whose windows may be known, and which may be packed."""

    def __init__(self, elements: list[WindowedElement], windows: tuple[Window, ...] | None, packed: bool) -> None:
        self._elements, self.windows = elements, windows
        self.packed = b" ".join(value for value, *_ in elements) if packed else None

    def __len__(self) -> int:
        return len(self._elements)

    def __iter__(self) -> Iterator[WindowedElement]:
        return iter(self._elements)


def unpack(packed: bytes) -> Iterable[bytes]:
    return packed.split()


def arrived(
    chance: random.Random, micro_batch: int
) -> list[tuple[bytes, list[WindowedElement], tuple[Window, ...] | None]]:
    """The input of a micro-batch: each time in one window, or in two, which may be known or not."""
    found = []
    for n in range(chance.choice([0, 3, 12])):
        start = 10 * chance.randrange(max(0, micro_batch - 2), micro_batch + 3)
        windows: tuple[Window, ...] = (IntervalWindow(Timestamp(start), Timestamp(start + 10)),)
        if chance.random() < 0.3:
            windows += (IntervalWindow(Timestamp(start), Timestamp(start + 20)),)
        values = [b"%d.%d.%d" % (micro_batch, n, i) for i in range(chance.choice([1, 2, 5]))]
        elements = [(value, Timestamp(start + chance.randrange(10)), windows, NO_PANE) for value in values]
        known = chance.random() < 0.8
        found.append((chance.choice([b"a", b"b", b"c"]), elements, windows if known else None))
    return found


def moved_to(watermark: int, micro_batch: int, chance: random.Random) -> int:
    """The watermark at the end of a micro-batch: often exactly at the last moment of a window, or at its expiration."""
    exact = [10 * micro_batch - 1, 10 * micro_batch + 9, 10 * micro_batch + 4, 10 * micro_batch + 14]
    return max(watermark, chance.choice([10 * micro_batch - 5, 10 * micro_batch + 12, 10 * micro_batch + 40, *exact]))


@pytest.mark.contract("ENG-02", "ENG-08")
@pytest.mark.parametrize("seed", range(80))
def test_buffered_windows_emit_same_panes_as_separate_ones(seed: int) -> None:
    chance = random.Random(seed)
    strategy, on_its_own = chance.choice(STRATEGIES)
    there = World(Grouped(replace(strategy, trigger=on_its_own or strategy.trigger), DECODE))
    here = World(Grouped(strategy, DECODE, unpack))
    watermark = 0
    for micro_batch in range(8):
        coming = arrived(chance, micro_batch)
        watermark = moved_to(watermark, micro_batch, chance)
        expected = there.run(watermark, [(key, elements) for key, elements, _ in coming])
        report = here.run(
            watermark, [(key, Part(elements, windows, chance.random() < 0.7)) for key, elements, windows in coming]
        )
        assert sorted(here.calls()) == sorted(there.calls())
        assert (report.next_event, report.counts.late) == (expected.next_event, expected.counts.late)
        held, meant = report.local.outputs["main"].hold, expected.local.outputs["main"].hold
        assert (held and held.time) == (meant and meant.time)
    for world in here, there:
        world.run(10_000, [])
    assert sorted(here.calls()) == sorted(there.calls())
    assert len(here.drops) == len(there.drops)
    assert here.view.empty


class Reported(World):
    """The panes in order by key and window, and the dropped elements."""

    def __init__(self, kind: Grouped) -> None:
        super().__init__(kind)
        self.went: defaultdict[tuple[bytes, Window], list[tuple[object, ...]]] = defaultdict(list)

    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        for key, window, contents, time, info in panes:
            # A pane that waited until its window had expired is the last.
            self.went[key, window].append((sorted(contents), time, info._replace(is_last=False)))
        return super().panes(panes)

    def dropped(self) -> list[tuple[object, ...]]:
        drops = [drop for drop in self.drops if isinstance(drop, DropLate)]
        return sorted((drop.key, drop.window, drop.value, drop.timestamp, drop.reason.name) for drop in drops)


@pytest.mark.contract("ENG-02", "ENG-08")
@pytest.mark.parametrize("seed", range(120))
def test_late_elements_follow_waiting_ones_under_any_budget(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    for module, name, few in (
        (groupedstage, "PANES_MAX", 1),
        (sortedruns, "ROW_BYTES", 40),
        (sortedruns, "LARGE_RUN_BYTES_MIN", 200),
    ):
        if chance.random() < 0.7:
            monkeypatch.setattr(module, name, few)
    strategy, on_its_own = chance.choice(SINGLE)
    there = Reported(Grouped(replace(strategy, trigger=on_its_own), DECODE))
    here = Reported(Grouped(strategy, DECODE, unpack))
    watermark = 0
    for micro_batch in range(9):
        coming = arrived(chance, micro_batch)
        watermark = moved_to(watermark, micro_batch, chance)
        there.run(watermark, [(key, elements) for key, elements, _ in coming])
        here.looks = chance.choice([0, 1, 2, 5, 1000])
        parts = [(key, Part(elements, windows, chance.random() < 0.7)) for key, elements, windows in coming]
        here.run(watermark, parts)
    for world in here, there:
        world.looks = 1_000_000
        world.run(10_000, [])
    assert here.went == there.went
    assert here.dropped() == there.dropped()
    assert here.view.empty


@pytest.mark.contract("ENG-08")
@pytest.mark.parametrize("later", [26, 1000])
def test_pane_delayed_by_budget_is_on_time(later: int) -> None:
    world = Reported(Grouped(Strategy(Repeatedly(AfterWatermark()), lateness=Duration(100)), DECODE, unpack))
    other = IntervalWindow(Timestamp(10), Timestamp(20))
    world.run(0, [(b"k", elements_of(0, b"one")), (b"k", [(b"two", Timestamp(11), (other,), NO_PANE)])])
    world.looks = 1
    assert world.run(25, []).leftover
    world.looks = 0
    world.run(25, [(b"a", elements_of(0, b"another's")), (b"k", [(b"late", Timestamp(12), (other,), NO_PANE)])])
    world.looks = 1000
    assert not world.run(later, []).leftover
    panes = world.went[b"k", other]
    assert [values for values, *_ in panes] == [[b"two"], [b"late"]]
    assert [info.timing for _, _, info in panes] == [Timing.ON_TIME, Timing.LATE]  # type: ignore[attr-defined]


@pytest.mark.parametrize("trigger", [Repeatedly(AfterWatermark()), Never()])
@pytest.mark.parametrize(("keys", "size"), [(3_500, 1), (35, 100_000)])
def test_keys_continuing_after_window_end_use_budget(trigger: Trigger, keys: int, size: int) -> None:
    world = World(Grouped(Strategy(trigger, lateness=Duration(100)), DECODE, unpack))
    world.run(0, [(b"%05d" % key, Part(elements_of(0, b"1" * size), WINDOW, packed=True)) for key in range(keys)])
    world.looks, micro_batches = 0, 1
    before = world.view.written
    report = world.run(10, [])
    while report.leftover:
        assert world.view.written - before < 2 * EMITTED_BYTES_MAX
        assert moved({("it", 3): report})
        micro_batches, before = micro_batches + 1, world.view.written
        report = world.run(10, [])
    assert micro_batches == 4
    assert len(world.calls()) == (keys if isinstance(trigger, Repeatedly) else 0)


def test_window_within_micro_batch_leaves_nothing() -> None:
    world = World(Grouped(STRATEGIES[0][0], DECODE, unpack))
    report = world.run(50, [(b"%d" % key, Part(elements_of(0, b"1"), WINDOW, packed=True)) for key in range(5)])
    assert world.calls() == ["pane 1"] * 5
    assert not report.leftover
    assert report.counts.fired == 5
    assert world.view.empty


WINDOW: tuple[Window, ...] = (IntervalWindow(Timestamp(0), Timestamp(10)),)


def elements_of(time: int, *values: bytes) -> list[WindowedElement]:
    return [(value, Timestamp(time), WINDOW, NO_PANE) for value in values]


def test_keys_cost_no_rows_of_their_own() -> None:
    world = World(Grouped(STRATEGIES[0][0], DECODE, unpack))
    world.run(0, [(b"%d" % key, Part(elements_of(0, b"1"), WINDOW, packed=True)) for key in range(100)])
    before = sum(1 for _ in world.view.scan(b""))
    assert before < 8
    world.run(0, [(b"%d" % key, Part(elements_of(0, b"2"), WINDOW, packed=True)) for key in range(100)])
    assert sum(1 for _ in world.view.scan(b"")) == before + 1
    world.run(9, [])
    assert world.calls() == []
    world.run(10, [])
    assert world.calls() == ["pane 1 2"] * 100


@pytest.mark.contract("ENG-08")
@pytest.mark.parametrize("before", [1, 3])
def test_budget_splits_panes_of_window_and_keeps_hold(before: int) -> None:
    world = World(Grouped(STRATEGIES[0][0], DECODE, unpack))
    keys = [b"%05d" % key for key in range(3_500)]
    for micro_batch in range(before):
        world.run(0, [(key, Part(elements_of(0, b"%d" % micro_batch), WINDOW, packed=True)) for key in keys])
    world.looks = 0
    counts = []
    report = world.run(10, [(key, elements_of(0, key)) for key in keys])
    while report.leftover:
        held = report.local.outputs["main"].hold
        assert held is not None
        assert held.time == 9
        counts.append(len(world.calls()))
        report = world.run(10, [])
    assert counts == [1000, 1000, 1000]
    assert len(world.calls()) == 500
    assert world.view.empty


def test_budget_used_up_by_last_pane_leaves_nothing() -> None:
    world = World(Grouped(STRATEGIES[0][0], DECODE, unpack))
    world.looks = 0
    report = world.run(10, [(b"%d" % key, elements_of(0, b"1")) for key in range(1000)])
    assert not report.leftover
    assert len(world.calls()) == 1000


def test_budget_does_not_store_elements_of_same_micro_batch() -> None:
    world = World(Grouped(STRATEGIES[0][0], DECODE, unpack))
    window = (IntervalWindow(Timestamp(0), Timestamp(20)),)
    world.run(0, [(b"old", elements_of(0, b"0"))])
    world.looks = 0
    coming = [(b"%d" % key, elements_of(0, b"1")) for key in range(2_000)]
    coming += [(b"%d" % key, [(b"2", Timestamp(15), window, NO_PANE)]) for key in range(2_000)]
    report = world.run(30, coming)
    assert report.leftover
    assert Counter(world.calls()) == {"pane 1": 1_000, "pane 2": 2_000}
    world.looks = 1000
    report = world.run(30, [])
    assert not report.leftover
    assert Counter(world.calls()) == {"pane 1": 1_000, "pane 0": 1}
    assert world.view.empty
