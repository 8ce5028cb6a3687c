"""The grouping of a key, beyond transcripts: state, combiners, timers that do not fire, errors."""

from __future__ import annotations

import pickle

import pytest

from arcbeam.engine.grouping.composites import AfterAny, AfterWatermark, Repeatedly
from arcbeam.engine.grouping.contents import EncodedPaneValues
from arcbeam.engine.grouping.delays import Delay
from arcbeam.engine.grouping.effects import ClearHold, DropLate, DropReason, EmitPane, SetHold, SetTimer
from arcbeam.engine.grouping.groupings import Clocks, Grouping, KeyElement
from arcbeam.engine.grouping.merging import SessionMerging
from arcbeam.engine.grouping.strategy import PaneTime, Strategy
from arcbeam.engine.grouping.triggers import AfterCount, AfterSynchronizedTime, AfterTime
from arcbeam.engine.rows import keyspace
from arcbeam.errors import StateFormatError
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, CustomWindow, IntervalWindow, PaneInfo, Timing
from arcbeam.testing.views import MemoryView
from arcbeam.testing.windowfns import FixedWindows, GlobalWindows, Sessions
from tests.engine.grouping.grouping_shard import EVENT, PROCESSING, Shard
from tests.engine.grouping.grouping_strategies import Concat

pytestmark = pytest.mark.contract("ENG-11")

FIXED = FixedWindows(Duration(10), Duration(0))
WINDOW = IntervalWindow(Timestamp(0), Timestamp(10))
DEFAULT = Repeatedly(AfterWatermark())


def clocks(watermark: int = MIN_TIMESTAMP, now: int = 0, output: int | None = None) -> Clocks:
    return Clocks(Timestamp(now), Timestamp(watermark), Timestamp(watermark if output is None else output))


def release(effect: object) -> None:
    """Remove the rows of a pane, as when user code has returned."""
    if (
        isinstance(effect, EmitPane)
        and isinstance(effect.contents, EncodedPaneValues)
        and effect.contents.lent is not None
    ):
        effect.contents.lent.release()


def elements(*times: int) -> list[KeyElement]:
    return [KeyElement(str(time).encode(), Timestamp(time), FIXED.assign(Timestamp(time))) for time in times]


def test_grouping_emits_values() -> None:
    grouping = Grouping(Strategy(DEFAULT, pane_time=PaneTime.EARLIEST), MemoryView())
    assert grouping.add(b"k", elements(4, 3), clocks()) == [
        SetHold(b"k", WINDOW, Timestamp(3)),
        SetTimer(b"k", WINDOW, TimeDomain.EVENT, Timestamp(9)),
    ]
    assert grouping.add(b"k", elements(5), clocks()) == []
    assert grouping.add(b"k", elements(2), clocks()) == [SetHold(b"k", WINDOW, Timestamp(2))]
    pane, clear = grouping.fire(b"k", WINDOW, TimeDomain.EVENT, clocks(10))
    assert isinstance(pane, EmitPane)
    assert list(pane.contents) == [b"4", b"3", b"5", b"2"]
    assert pane.timestamp == 2
    assert pane.pane == PaneInfo(0, 0, Timing.ON_TIME, True, True)
    assert clear == ClearHold(b"k", WINDOW)


@pytest.mark.contract("WM-09")
def test_drop_has_element_watermark_and_reason() -> None:
    grouping = Grouping(Strategy(DEFAULT), MemoryView())
    assert grouping.add(b"k", elements(3), clocks(20)) == [
        DropLate(b"k", WINDOW, b"3", Timestamp(3), Timestamp(20), DropReason.EXPIRED)
    ]
    assert pickle.loads(pickle.dumps(grouping.add(b"k", elements(3), clocks(20))))


@pytest.mark.contract("ENG-08")
def test_due_work_precedes_elements_without_timer() -> None:
    strategy = Strategy(AfterWatermark(late=AfterCount(1)), lateness=Duration(5))
    grouping = Grouping(strategy, MemoryView())
    grouping.add(b"k", elements(1), clocks())
    out = [one for one in grouping.add(b"k", elements(2), clocks(12)) if isinstance(one, EmitPane)]
    assert [(list(one.contents), one.pane.timing) for one in out] == [([b"1"], Timing.ON_TIME), ([b"2"], Timing.LATE)]


@pytest.mark.contract("ENG-10")
def test_element_after_expiry_is_dropped_from_open_window() -> None:
    view = MemoryView()
    grouping = Grouping(Strategy(DEFAULT), view)
    grouping.add(b"k", elements(1), clocks())
    out = grouping.add(b"k", elements(2), clocks(10))
    assert [type(one) for one in out] == [DropLate]
    # Its timer, or an element of another window, ends it.
    (pane, hold) = grouping.fire(b"k", WINDOW, EVENT, clocks(10))
    assert (type(pane), type(hold)) == (EmitPane, ClearHold)
    release(pane)
    assert not len(view)


def test_early_timer_is_set_again() -> None:
    grouping = Grouping(Strategy(DEFAULT), MemoryView())
    grouping.add(b"k", elements(1), clocks())
    assert grouping.fire(b"k", WINDOW, EVENT, clocks(9)) == [SetTimer(b"k", WINDOW, EVENT, Timestamp(9))]


def test_timer_of_removed_window_does_nothing() -> None:
    grouping = Grouping(Strategy(DEFAULT), MemoryView())
    assert grouping.fire(b"k", WINDOW, EVENT, clocks(100)) == []
    assert grouping.fire(b"k", WINDOW, PROCESSING, clocks(100)) == []


def test_processing_timer_is_set_once_and_cleared() -> None:
    grouping = Grouping(Strategy(Repeatedly(AfterAny(AfterCount(3), AfterTime(Delay(Duration(10)))))), MemoryView())
    first = grouping.add(b"k", elements(1), clocks(now=5))
    assert SetTimer(b"k", WINDOW, PROCESSING, Timestamp(15)) in first
    assert grouping.add(b"k", elements(2), clocks(now=7)) == []
    out = grouping.add(b"k", elements(3), clocks(now=8))
    assert [list(one.contents) for one in out if isinstance(one, EmitPane)] == [[b"1", b"2", b"3"]]
    assert [(type(one).__name__, one.domain) for one in out if hasattr(one, "domain")] == [("ClearTimer", PROCESSING)]


@pytest.mark.contract("ENG-04", "ENG-08")
def test_elements_precede_processing_timer_of_same_time() -> None:
    grouping = Grouping(Strategy(Repeatedly(AfterSynchronizedTime())), MemoryView())
    grouping.add(b"k", elements(1), clocks(now=5))
    assert grouping.add(b"k", elements(2), clocks(now=5)) == []
    out = grouping.fire(b"k", WINDOW, PROCESSING, clocks(now=5))
    assert [list(one.contents) for one in out if isinstance(one, EmitPane)] == [[b"1", b"2"]]


@pytest.mark.parametrize("accumulating", [False, True])
def test_accumulators_are_stored_instead_of_elements(accumulating: bool) -> None:
    strategy = Strategy(
        Repeatedly(AfterCount(2)), combiner=Concat(), accumulating=accumulating, empty_last=True, lateness=Duration(5)
    )
    shard = Shard(strategy, FIXED)
    for time in (3, 1, 2, 5):
        shard.add([time])
    shard.finish()
    expected = (
        [["1", "3"], ["1", "2", "3", "5"], ["1", "2", "3", "5"]] if accumulating else [["1", "3"], ["2", "5"], []]
    )
    assert [sorted(pane.contents) for pane in shard.panes] == expected
    assert not len(shard.view)


def test_accumulators_of_sessions_merge() -> None:
    shard = Shard(Strategy(DEFAULT, merging=SessionMerging(), combiner=Concat()), Sessions(Duration(5)))
    for time in (1, 10, 5, 6):
        shard.add([time])
    shard.finish()
    assert [(pane.window, sorted(pane.contents)) for pane in shard.panes] == [
        (IntervalWindow(Timestamp(1), Timestamp(15)), ["1", "10", "5", "6"])
    ]


@pytest.mark.parametrize("length", [keyspace.KEY_LIMIT, 1000])
def test_rows_contain_whole_key(length: int) -> None:
    shard = Shard(Strategy(Repeatedly(AfterWatermark())), FixedWindows(Duration(10), Duration(0)))
    long, other = b"k" * length, b"k" * (length - 1) + b"l"
    shard.add([1], long)
    shard.add([2], other)
    rows = [row for row, _ in shard.view.scan(b"g")]
    assert [long in row for row in rows] == [True, False]
    assert [other in row for row in rows] == [False, True]
    shard.advance(MAX_TIMESTAMP)
    assert {pane.key for pane in shard.panes} == {long, other}


def test_keys_are_independent() -> None:
    shard = Shard(Strategy(DEFAULT, merging=SessionMerging()), Sessions(Duration(5)))
    keys = [b"", b"w", b"k", b"kw", b"k\0", b"\0\0\0\1k"]
    for key in keys:
        shard.add([1, 3], key)
        shard.add([2], key)
    shard.finish()
    assert sorted(pane.key for pane in shard.panes) == sorted(keys)
    assert all(len(list(pane.contents)) == 3 for pane in shard.panes)
    assert not len(shard.view)


def test_spaces_are_independent() -> None:
    view = MemoryView()
    one, other = Grouping(Strategy(DEFAULT), view, b"1"), Grouping(Strategy(DEFAULT), view, b"2")
    one.add(b"k", elements(1), clocks())
    other.add(b"k", elements(2), clocks())
    (pane, _) = one.fire(b"k", WINDOW, EVENT, clocks(10))
    assert list(pane.contents) == [b"1"]  # type: ignore[union-attr]
    assert len(view) == 1


def test_merged_large_sessions_keep_every_element() -> None:
    shard = Shard(Strategy(DEFAULT, merging=SessionMerging()), Sessions(Duration(10)))
    for start in (100, 0, 50, 20, 80):
        for time in range(start, start + 5):
            shard.add([time] * 3, values=[f"{time:0300}".encode()] * 3)
    assert len(shard.view) > 10
    bridges = [11, 29, 38, 47, 59, 68, 77, 92]
    shard.add(bridges)
    shard.finish()
    ((window, contents),) = [(pane.window, list(pane.contents)) for pane in shard.panes]
    assert window == IntervalWindow(Timestamp(0), Timestamp(114))
    assert len(contents) == 5 * 5 * 3 + len(bridges)
    assert not len(shard.view)


@pytest.mark.contract("ENG-01")
def test_session_after_end_of_time_ends_with_it() -> None:
    shard = Shard(Strategy(DEFAULT, merging=SessionMerging()), Sessions(Duration(10**13)))
    shard.add([MAX_TIMESTAMP - 10**12, MIN_TIMESTAMP])
    shard.finish()
    assert len(shard.panes) == 2
    shard.add([MAX_TIMESTAMP])
    assert [drop.value for drop in shard.drops if isinstance(drop, DropLate)] == [str(MAX_TIMESTAMP).encode()]
    assert not len(shard.view)


def test_combined_global_window_continues_over_micro_batches() -> None:
    shard = Shard(Strategy(Repeatedly(AfterCount(3)), combiner=Concat(), accumulating=True), GlobalWindows())
    for time in range(7):
        shard.add([time])
    assert [sorted(pane.contents) for pane in shard.taken()] == [[*"012"], [*"012345"]]
    assert {window for _, window, _ in shard.timers} == {GLOBAL_WINDOW}
    shard.finish()
    assert [sorted(pane.contents) for pane in shard.taken()] == [[*"0123456"]]


def test_custom_windows_without_merging() -> None:
    one, other = CustomWindow(b"\0one" * 100, Timestamp(9)), CustomWindow(b"\0", Timestamp(9))
    view = MemoryView()
    grouping = Grouping(Strategy(DEFAULT), view)
    large = b"1" * 1000
    arrived = [KeyElement(large, Timestamp(1), (one, other)), KeyElement(b"2", Timestamp(2), (other,))]
    effects = grouping.add(b"k", arrived, clocks())
    timers = [(effect.window, effect.at) for effect in effects if isinstance(effect, SetTimer)]
    assert timers == [(one, 9), (other, 9)]
    found = {}
    for window, _ in timers:
        (pane, _) = grouping.fire(b"k", window, EVENT, clocks(10))
        assert isinstance(pane, EmitPane)
        found[pane.window] = list(pane.contents)
        release(pane)
    assert found == {one: [large], other: [large, b"2"]}
    assert not len(view)


def test_damaged_record_is_refused() -> None:
    view = MemoryView()
    grouping = Grouping(Strategy(DEFAULT), view)
    grouping.add(b"k", elements(1), clocks())
    ((key, record),) = view.scan(b"")
    view.put(key, b"\x09" + record[1:])
    with pytest.raises(StateFormatError, match="version 09") as caught:
        grouping.add(b"k", elements(1), clocks())
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_negative_lateness_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed lateness"):
        Strategy(DEFAULT, lateness=Duration(-1))
