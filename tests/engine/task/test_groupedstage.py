"""A grouping in a micro-batch."""

from __future__ import annotations

import pickle

import pytest

from arcbeam.engine.grouping.composites import AfterWatermark, Repeatedly
from arcbeam.engine.grouping.delays import Delay
from arcbeam.engine.grouping.effects import DropCombined, DropLate
from arcbeam.engine.grouping.groupings import Combined
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.grouping.triggers import AfterCount, AfterTime, Trigger
from arcbeam.engine.protocol.stagekinds import Grouped
from arcbeam.engine.rows import keyspace
from arcbeam.engine.task.bundles import CallResult, TimerSet
from arcbeam.engine.watermarks.holds import HolderKind
from arcbeam.errors import StateFormatError
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.model.windows import NO_PANE
from tests.engine.task.world import DECODE, V, W, World, stateful


@pytest.mark.contract("ENG-02", "ENG-10", "WM-09")
def test_grouping_fires_passed_windows_and_drops_late_elements() -> None:
    world = World(Grouped(Strategy(Repeatedly(AfterWatermark())), DECODE))
    report = world.micro_batch(9, 7, 3)
    assert world.calls() == []
    assert report.next_event == 9
    hold = report.local.outputs["main"].hold
    assert hold is not None
    assert (hold.time, hold.kind, hold.name, hold.key) == (9, HolderKind.BUFFERED, "", None)
    assert str(hold) == "buffered elements of all keys"

    report = world.micro_batch(10, 8)
    assert world.calls() == ["pane 3 7 8"]
    assert report.local.outputs["main"].hold is None
    assert report.next_event is None

    report = world.micro_batch(11, 5)
    assert world.calls() == []
    assert report.counts.late == 1
    assert isinstance(world.drops[0], DropLate)


@pytest.mark.contract("OPS-04")
def test_accumulators_count_as_the_elements_that_they_stand_for() -> None:
    world = World(Grouped(Strategy(Repeatedly(AfterWatermark()), lateness=Duration(5)), DECODE))
    # The window of the elements ends at 9, the other one at 19; each is late 5 later.
    stands_for = (b"", Combined(12, {W: 2, V: 10}))
    for watermark, late in ((14, 0), (15, 0), (24, 3), (25, 3), (26, 13)):
        # The watermark moves after the elements of a micro-batch.
        counts = world.run(watermark, [(b"k", [(b"7", Timestamp(7), (W,), NO_PANE)]), stands_for]).counts
        assert (counts.read, counts.late) == (13, late), watermark
    assert DropLate in map(type, world.drops)
    assert [drop.count for drop in world.drops if isinstance(drop, DropCombined)] == [2, 2, 12]
    assert world.run(27, [(b"", Combined(-4, {}))]).counts.read == -4


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("trigger", "what"),
    [
        (AfterWatermark(early=AfterCount(100)), "the record of a window, of key k"),
        (AfterWatermark(), "the list of a window's runs,"),
    ],
)
def test_unreadable_record_is_refused_with_its_place(late: bool, trigger: Trigger, what: str) -> None:
    world = World(Grouped(Strategy(Repeatedly(trigger)), DECODE))
    world.micro_batch(0, 7)
    for row, _ in list(world.view.scan(keyspace.prefix(keyspace.RowKind.GROUPING, 1))):
        world.view.put(row, b"\x07")
    message = rf"{what} of 'it' in shard 3, has version 07; this code reads version 0?1"
    with pytest.raises(StateFormatError, match=message) as raised:
        world.micro_batch(50) if late else world.micro_batch(0, 8)
    assert pickle.loads(pickle.dumps(raised.value)).message == raised.value.message


def test_unreadable_record_at_window_end_names_place_once() -> None:
    world = World(Grouped(Strategy(Repeatedly(AfterWatermark()), lateness=Duration(100)), DECODE))
    world.micro_batch(0, 7)
    space = keyspace.prefix(keyspace.RowKind.GROUPING, 1)
    world.view.put(space + (1).to_bytes(4, "big") + b"kw" + W.ordered(), b"\x07")
    with pytest.raises(StateFormatError) as raised:
        world.micro_batch(10)
    assert str(raised.value).count("of 'it' in shard 3,") == 1
    assert "the record of a window, of key k of 'it' in shard 3, has version 07" in str(raised.value)


def test_timer_of_empty_key_holds_as_timer() -> None:
    world = stateful()
    world.on["process"] = CallResult(timers=(TimerSet(b"", W, "event", Timestamp(5), Timestamp(5)),))
    hold = world.micro_batch(0, 3).local.outputs["main"].hold
    assert str(hold) == "timer 'event' of key ''"


def test_processing_time_triggers_fire_by_clock() -> None:
    world = World(Grouped(Strategy(Repeatedly(AfterTime(Delay(Duration(20))))), DECODE))
    assert world.micro_batch(0, 7, now=100).next_due == 120
    world.micro_batch(0, now=119)
    assert world.calls() == []
    assert world.micro_batch(0, 8, now=120).counts.fired == 1
    assert world.calls() == ["pane 7 8"]


def test_exhausted_budget_leaves_work_after_some_progress() -> None:
    world = World(Grouped(Strategy(Repeatedly(AfterWatermark())), DECODE))
    world.micro_batch(0, 7, 12)
    world.looks = 0
    report = world.micro_batch(50)
    assert world.calls() == ["pane 7"]
    assert report.leftover
    assert report.input == 50
    world.looks = 1000
    assert not world.micro_batch(50).leftover
    assert world.calls() == ["pane 12"]
