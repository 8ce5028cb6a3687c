"""Sessions that begin and end in one micro-batch give the same panes and rows as stored ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from arcbeam.engine.grouping.composites import AfterWatermark, Repeatedly
from arcbeam.engine.grouping.effects import EmitPane
from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.engine.grouping.merging import SessionMerging
from arcbeam.engine.grouping.strategy import PaneTime, Strategy
from arcbeam.engine.grouping.triggers import AfterCount
from arcbeam.engine.protocol.stagekinds import Grouped
from arcbeam.engine.task.bundles import CallResult
from arcbeam.model.timestamps import MAX_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import NO_PANE, IntervalWindow
from tests.engine.task.world import DECODE, World

GAP = 7
SESSIONS = [
    Strategy(Repeatedly(AfterWatermark()), SessionMerging()),
    Strategy(AfterWatermark(), SessionMerging()),
    Strategy(Repeatedly(AfterWatermark()), SessionMerging(), lateness=Duration(15)),
    Strategy(AfterWatermark(late=AfterCount(1)), SessionMerging(), lateness=Duration(4), accumulating=True),
    Strategy(Repeatedly(AfterWatermark()), SessionMerging(), empty_last=True),
    Strategy(Repeatedly(AfterWatermark()), SessionMerging(), pane_time=PaneTime.EARLIEST),
    Strategy(AfterWatermark(early=AfterCount(3)), SessionMerging(), accumulating=True),
]


def in_sessions(chance: random.Random, micro_batch: int) -> list[tuple[bytes, list[WindowedElement]]]:
    """The input of a micro-batch: each element in a window of its own, or in two."""
    found = []
    for n in range(chance.choice([0, 3, 12])):
        elements: list[WindowedElement] = []
        for i in range(chance.choice([1, 2, 5])):
            time = 10 * micro_batch + chance.randrange(-25, 25)
            starts = [time] if chance.random() < 0.9 else [time, time - 30]
            windows = tuple(IntervalWindow(Timestamp(start), Timestamp(start + GAP)) for start in starts)
            elements.append((b"%d.%d.%d" % (micro_batch, n, i), Timestamp(time), windows, NO_PANE))
        found.append((chance.choice([b"a", b"b", b"c", b"d"]), elements))
    return found


class Reported(World):
    """Records everything about panes."""

    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        self.event_log += [
            f"{pane.key!r} {pane.window} {sorted(pane.contents)} {pane.timestamp} {pane.pane}" for pane in panes
        ]
        return CallResult(len(panes))


@pytest.mark.contract("ENG-02", "ENG-08")
@pytest.mark.parametrize("seed", range(100))
def test_passing_sessions_emit_same_panes_as_stored_ones(seed: int) -> None:
    chance = random.Random(seed)
    strategy = chance.choice(SESSIONS)
    there, here = Reported(Grouped(strategy, DECODE)), Reported(Grouped(strategy, DECODE))
    watermark = -100
    for micro_batch in range(8):
        coming = in_sessions(chance, micro_batch)
        before, watermark = (
            watermark,
            max(watermark, chance.choice([10 * micro_batch - 25, 10 * micro_batch + 5, 10 * micro_batch + 40])),
        )
        late = there.run(before, coming).counts.late
        expected = there.run(watermark, [])
        report = here.run(watermark, coming)
        assert sorted(here.calls()) == sorted(there.calls())
        assert list(here.view.scan(b"")) == list(there.view.scan(b""))
        assert (report.next_event, report.local, report.counts.late) == (
            expected.next_event, expected.local, late + expected.counts.late,
        )  # fmt: skip
    assert sorted(here.drops, key=repr) == sorted(there.drops, key=repr)


def test_passing_sessions_write_no_rows_until_withdrawn() -> None:
    def element(start: int) -> WindowedElement:
        return b"%d" % start, Timestamp(start), (IntervalWindow(Timestamp(start), Timestamp(start + GAP)),), NO_PANE

    world = World(Grouped(SESSIONS[0], DECODE))
    written = world.view.written
    world.looks = 0
    report = world.run(50, [(b"a", [element(0), element(20)]), (b"b", [element(3)]), (b"a", [element(5)])])
    assert sorted(world.calls()) == ["pane 0 5", "pane 20", "pane 3"]
    assert (report.leftover, report.counts.fired) == (False, 3)
    assert world.view.written - written < 30
    world.looks = 1000
    # The second session prevents the first from passing: they merge.
    world.run(70, [(b"a", [element(60)]), (b"b", [element(60)]), (b"a", [element(65)])])
    assert world.calls() == ["pane 60"]
    world.run(80, [])
    assert world.calls() == ["pane 60 65"]


def test_sessions_after_end_of_time_are_late() -> None:
    world = World(Grouped(SESSIONS[0], DECODE))
    world.run(MAX_TIMESTAMP, [])
    window = IntervalWindow(Timestamp(MAX_TIMESTAMP - 1), Timestamp(MAX_TIMESTAMP + GAP))
    report = world.run(MAX_TIMESTAMP, [(b"a", [(b"1", Timestamp(MAX_TIMESTAMP - 1), (window,), NO_PANE)])])
    assert (world.calls(), report.counts.late) == ([], 1)
