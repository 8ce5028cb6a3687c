"""The reported change of a stage's state: keys, timers, waiting elements."""

from __future__ import annotations

import pytest

from arcbeam.engine.grouping.composites import AfterWatermark, Repeatedly
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.grouping.triggers import AfterCount
from arcbeam.engine.protocol.stagekinds import Grouped, Plain
from arcbeam.engine.state.cells import BagCell, Cells
from arcbeam.engine.state.statemetrics import NO_STATE, StateMetrics
from arcbeam.engine.task.bundles import BundleResult, CallResult, TimerCleared
from arcbeam.model.timestamps import MAX_TIMESTAMP, Duration
from arcbeam.testing.views import MemoryView
from tests.engine.task.world import DECODE, NAMES, RATES, W, World, stateful, timer_set

pytestmark = pytest.mark.contract("WM-06")


def test_keys_and_timers_count_until_removed() -> None:
    world = stateful()
    world.on["process 2"] = CallResult(timers=(timer_set("event", 8), timer_set("clock", 50)))
    assert world.micro_batch(0, 2).kept == StateMetrics(1, event_timers=1, clock_timers=1)
    # Setting a timer again does not count; clearing it does.
    world.on["process 3"] = CallResult(timers=(timer_set("event", 7), TimerCleared(b"k", W, "clock")))
    assert world.micro_batch(0, 3).kept == StateMetrics(clock_timers=-1)
    assert world.micro_batch(9).kept == StateMetrics(event_timers=-1)
    assert world.micro_batch(30).kept == StateMetrics(-1)


def test_timers_fired_in_their_micro_batch_are_not_counted() -> None:
    world = stateful()
    world.on["process 2"] = CallResult(timers=(timer_set("event", 4),))
    assert world.micro_batch(9, 2).kept == StateMetrics(1)


def test_buffered_window_counts_key_per_run() -> None:
    world = World(Grouped(Strategy(Repeatedly(AfterWatermark())), DECODE))
    assert world.micro_batch(0, 2, 3).kept == StateMetrics(1, event_timers=1)
    assert world.micro_batch(0, 4).kept == StateMetrics(1)
    assert world.micro_batch(30).kept == StateMetrics(-2, event_timers=-1)
    world = World(Grouped(Strategy(AfterWatermark(early=AfterCount(9))), DECODE))
    assert world.micro_batch(0, 2, 3).kept == StateMetrics(1, event_timers=1)
    assert world.micro_batch(0, 4, 12).kept == StateMetrics(1, event_timers=1)
    assert world.micro_batch(30).kept == StateMetrics(-2, event_timers=-2)


def test_blocked_and_sorted_elements_are_counted() -> None:
    world = World(Plain(), (("rates", RATES), ("names", NAMES)))
    kept = world.micro_batch(0, 2, 3).kept
    assert (kept.blocked, kept.keys) == (2, 0)
    assert kept.waiting_bytes > 0
    world.committed_outputs = dict.fromkeys(world.committed_outputs, MAX_TIMESTAMP)
    assert kept + world.micro_batch(0).kept == NO_STATE
    world = stateful(in_order=Duration(0))
    waiting = world.micro_batch(0, 5, 4).kept
    assert (waiting.ordered, waiting.keys) == (2, 0)
    assert waiting + world.micro_batch(5).kept == StateMetrics(1, ordered=1, waiting_bytes=waiting.waiting_bytes // 2)


def test_cells_of_endless_global_window_count_by_name() -> None:
    view = MemoryView()
    cells = Cells(view, 1)
    seen, last = BagCell(cells, "seen"), BagCell(cells, "last")
    for key in (b"a", b"b"):
        seen.add(key, b"", b"1")
        seen.add(key, b"", b"2")
        last.replace(key, b"", [b"3"])
        seen.add(key, W.ordered(), b"1")
    last.extend(b"c", b"", [])
    last.extend(b"c", b"", [b"4"])
    last.clear(b"a", b"")
    last.clear(b"a", b"")
    assert cells.more == {"seen": 2, "last": 2}
    last.replace(b"b", b"", [b"5"])
    assert cells.more == {"seen": 2, "last": 2}
    world = World(stateful().spec.kind)
    world.closed = BundleResult(cells={"seen": 2})
    assert world.micro_batch(0).kept == NO_STATE, "with processing-time timers, the end of the global window is awaited"


def test_metrics_are_added() -> None:
    both = StateMetrics(1, {"a": 2}, 3, 4, 5, 6, 7) + StateMetrics(1, {"a": -1, "b": 5}, 1, 1, 1, 1, 1)
    assert both == StateMetrics(2, {"a": 1, "b": 5}, 4, 5, 6, 7, 8)
    assert both.keys == 7
