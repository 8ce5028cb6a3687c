"""Windows that begin and end in one step: the same panes, and the same rows, as if they had been in the state."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from arcbeam.engine.grouping.composites import AfterWatermark, Repeatedly
from arcbeam.engine.grouping.groupings import Together, WindowedElement
from arcbeam.engine.grouping.strategy import PaneTime, Strategy
from arcbeam.engine.grouping.triggers import AfterCount
from arcbeam.engine.plan.stagekinds import Grouped
from arcbeam.engine.rows.keyspace import Kind
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.model.windows import NO_PANE, IntervalWindow, Window
from tests.engine.step.world import DECODE, World

STRATEGIES = [
    Strategy(Repeatedly(AfterWatermark())),
    Strategy(Repeatedly(AfterWatermark()), lateness=Duration(15)),
    Strategy(Repeatedly(AfterWatermark()), pane_time=PaneTime.EARLIEST),
    Strategy(AfterWatermark(early=AfterCount(3)), accumulating=True),
]


class Part(Together):
    """Elements that may be known to be of one window."""

    def __init__(self, elements: list[WindowedElement], window: Window | None) -> None:
        self._elements, self.window, self.size = elements, window, len(elements)

    def __len__(self) -> int:
        return len(self._elements)

    def __iter__(self) -> Iterator[WindowedElement]:
        return iter(self._elements)


def came(chance: random.Random, step: int) -> list[tuple[bytes, list[WindowedElement], Window | None]]:
    """What comes in a step: each time to one window, which may be known or not; or to two."""
    found = []
    for n in range(chance.choice([0, 3, 12])):
        start = 10 * chance.randrange(max(0, step - 2), step + 3)
        window = IntervalWindow(Timestamp(start), Timestamp(start + 10))
        windows: tuple[Window, ...] = window, IntervalWindow(Timestamp(start), Timestamp(start + 20))
        known = chance.random() < 0.8
        if known or chance.random() < 0.5:
            windows = (window,)
        values = [b"%d.%d.%d" % (step, n, i) for i in range(chance.choice([1, 2, 5]))]
        elements = [(value, Timestamp(start + chance.randrange(10)), windows, NO_PANE) for value in values]
        found.append((chance.choice([b"a", b"b", b"c"]), elements, window if known else None))
    return found


@pytest.mark.contract("ENG-02", "ENG-08")
@pytest.mark.parametrize("seed", range(60))
def test_what_passes_is_what_would_have_come_of_the_state(seed: int) -> None:
    chance = random.Random(seed)
    strategy = chance.choice(STRATEGIES)
    there, here = World(Grouped(strategy, DECODE)), World(Grouped(strategy, DECODE))
    watermark = 0
    for step in range(8):
        coming = came(chance, step)
        watermark = max(watermark, chance.choice([10 * step - 5, 10 * step + 12, 10 * step + 40]))
        expected = there.run(watermark, [(key, elements) for key, elements, _ in coming])
        report = here.run(watermark, [(key, Part(elements, window)) for key, elements, window in coming])
        assert sorted(here.told()) == sorted(there.told())
        assert list(here.view.scan(b"")) == list(there.view.scan(b""))
        assert (report.next_event, report.local, report.counts.late) == (
            expected.next_event, expected.local, expected.counts.late,
        )  # fmt: skip
    assert len(here.drops) == len(there.drops)


def test_nothing_of_what_passes_is_written_and_a_budget_does_not_keep_it() -> None:
    world = World(Grouped(STRATEGIES[0], DECODE))
    world.looks = 0
    window = IntervalWindow(Timestamp(0), Timestamp(10))
    elements = [(b"1", Timestamp(3), (window,), NO_PANE)]
    written = world.view.written
    report = world.run(50, [(b"%d" % key, Part(elements, window)) for key in range(5)])
    assert world.told() == ["pane 1"] * 5
    assert not report.leftover
    assert report.counts.fired == 5
    assert {row[0] for row, _ in world.view.scan(b"")} == {Kind.CLOCK}
    assert world.view.written - written < 30
