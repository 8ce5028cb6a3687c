"""A stage with state and timers in a micro-batch."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest

from arcbeam.engine.grouping.effects import DropLate
from arcbeam.engine.grouping.groupings import KeyElements
from arcbeam.engine.protocol.reports import Awaited
from arcbeam.engine.protocol.stagekinds import Stateful
from arcbeam.engine.rows import keyspace
from arcbeam.engine.state.blocked import SideInputWindow
from arcbeam.engine.state.cells import BagCell, Cells, OrderedListCell
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.state.timers import Timers
from arcbeam.engine.task.bundles import BundleResult, CallResult, TimerCleared, TimerSet
from arcbeam.engine.watermarks.clocks import output_time
from arcbeam.engine.watermarks.holds import Holder, HolderKind, Holds
from arcbeam.engine.watermarks.keyrangewatermarks import KeyRangeWatermark, packed
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, Window
from tests.engine.task.world import DECODE, FAMILIES, RATES, V, W, World, end_of, stateful, timer_set


class Writing(World):
    """User code that counts elements, and writes the count when the call returns, or when the bundles end."""

    def __init__(self, late: bool) -> None:
        super().__init__(Stateful(FAMILIES, DECODE, end_of))
        self.late = late
        self.seen = BagCell(Cells(self.view, 1), "seen")
        self.unwritten: list[tuple[bytes, Window]] = []

    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        self.unwritten += [(key, window) for _, _, windows, _ in elements for window in windows]
        if not self.late:
            self.commit()
        return CallResult(timers=(timer_set("event", 8),))

    def finish(self) -> BundleResult:
        self.commit()
        return BundleResult()

    def commit(self) -> None:
        while self.unwritten:
            key, window = self.unwritten.pop()
            self.seen.add(key, window.ordered(), b"one more")


@pytest.mark.contract("ENG-12")
def test_state_is_dropped_with_window_in_same_micro_batch() -> None:
    world = Writing(late=False)
    world.micro_batch(30, 7, 8)
    assert [key for key, _ in world.view.scan(b"") if key[0] == keyspace.RowKind.KEYED] == []


class Global(World):
    """A stage with state in the global window."""

    def __init__(self, **of_kind: Any) -> None:
        super().__init__(Stateful(decode=DECODE, expires=attrgetter("max_timestamp"), **of_kind))

    def timers(self) -> list[bytes]:
        return [
            key for key, _ in self.view.scan(b"") if key[0] in (keyspace.RowKind.EVENT_HELD, keyspace.RowKind.EVENT)
        ]


@pytest.mark.contract("ENG-12")
def test_global_window_end_is_awaited_only_if_needed() -> None:
    world = Global(families={"event": TimeDomain.EVENT})
    assert world.micro_batch(3, (7, GLOBAL_WINDOW)).next_event is None
    assert world.timers() == []
    for of_kind in ({"families": {}, "at_expiration": True}, {"families": {"clock": TimeDomain.PROCESSING}}):
        world = Global(**of_kind)
        assert world.micro_batch(3, (7, GLOBAL_WINDOW)).next_event == END_OF_GLOBAL_WINDOW
        assert len(world.timers()) == 1


@pytest.mark.contract("ENG-12")
def test_window_end_is_awaited_if_time_continues() -> None:
    world = Global(families={})
    world.micro_batch(3, 7)
    assert len(world.timers()) == 1


@pytest.mark.contract("ENG-12")
def test_state_written_at_bundle_end_is_refused() -> None:
    world = Writing(late=True)
    with pytest.raises(ValueError, match="user code of 'it' in shard 3 has written state"):
        world.micro_batch(30, 7, 8)


def test_timer_set_at_bundle_end_is_refused() -> None:
    world = stateful()
    world.finish = lambda: BundleResult(CallResult(timers=(timer_set("event", 8),)))  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="'it' has set a timer of family 'event'"):
        world.micro_batch(3, 7)


@pytest.mark.contract("ENG-04", "ENG-12")
def test_key_has_elements_then_timers_then_expiration() -> None:
    world = stateful(at_expiration=True)
    bag = BagCell(Cells(world.view, 1), "bag")
    bag.add(b"k", W.ordered(), b"state")
    world.on = {
        "process 7": CallResult(1, (timer_set("event", 8), timer_set("clock", 105), timer_set("event", 5, 5))),
        "fire event 5": CallResult(1, (timer_set("event", 6),)),
        "expire": CallResult(1, (timer_set("event", 9),)),
    }
    report = world.micro_batch(3, 7, now=100)
    assert world.calls() == ["process 7"]
    assert (report.next_event, report.next_due) == (5, 105)
    hold = report.local.outputs["main"].hold
    assert hold is not None
    assert hold.time == 5
    report = world.micro_batch(30, 8, now=105)
    assert world.calls() == ["process 8", "fire event 5", "fire event 6", "fire clock 105", "expire 9"]
    assert report.counts.fired == 4
    assert (report.next_event, report.next_due) == (None, None)
    assert list(bag.read(b"k", W.ordered())) == []


@pytest.mark.contract("ENG-12")
def test_expired_window_leaves_nothing_but_neighbours_stay() -> None:
    world = stateful(at_expiration=True)
    cells, timers, holds = Cells(world.view, 1), Timers(world.view, 1, FAMILIES), Holds(world.view, 1)
    bag, ordered = BagCell(cells, "bag"), OrderedListCell(cells, "list")

    def fill(key: bytes, window: bytes) -> None:
        bag.extend(key, window, [b"x" * 600] * 5)
        ordered.add(key, window, Timestamp(3), b"v")
        timers.set(key, window, "clock", Timestamp(1000), Timestamp(3))
        timers.set(key, window, "event", Timestamp(2000), Timestamp(3))
        holds.set(Holder(HolderKind.STATE, "pane", key, window), Timestamp(4))

    at = W.ordered()
    for key, window in ((b"k", at + b"\0"), (b"k\0", at), (b"k", b""), (b"", at)):
        fill(key, window)
    kept = world.view.snapshot()
    fill(b"k", at)
    world.micro_batch(0, 7)
    assert world.view.snapshot() != kept
    world.micro_batch(10)
    clock = keyspace.prefix(keyspace.RowKind.CLOCK, 1)
    assert {row: value for row, value in world.view.snapshot().items() if row != clock} == kept
    timers.validate()


@pytest.mark.contract("ENG-12")
def test_timers_after_window_end_fire_at_end() -> None:
    world = stateful()
    world.on = {
        "process 7": CallResult(0, (timer_set("event", 8), TimerCleared(b"k", W, "event"), timer_set("clock", 50))),
        "process 8": CallResult(0, (timer_set("event", 400),)),
        "fire event": CallResult(0, (timer_set("event", 500),)),
    }
    assert world.micro_batch(0, 7, now=10).next_event == 9
    world.micro_batch(0, 8, now=10)
    report = world.micro_batch(20, now=10)
    assert world.calls() == ["process 7", "process 8", "fire event 9"]
    assert (report.next_event, report.next_due) == (None, None)


@pytest.mark.contract("ENG-12")
@pytest.mark.parametrize(
    ("timer", "fires", "hold"),
    [
        (timer_set("event", 100, 100), 9, 9),
        (timer_set("event", 100, 4), 9, 4),
        (timer_set("event", 5, 8), 5, 5),
        (timer_set("event", 100), 9, None),
        (timer_set("clock", 100, 100), 100, 9),
        (timer_set("clock", 100, 4), 100, 4),
        (timer_set("clock", 100), 100, None),
    ],
)
def test_output_time_of_timer_is_bounded(timer: TimerSet, fires: int, hold: int | None) -> None:
    world = stateful()
    world.on = {"process": CallResult(1, (timer,))}
    reported = world.micro_batch(3, 4).local.outputs["main"].hold
    assert (reported.time if reported else None) == hold
    world.micro_batch(10 if timer.family == "event" else 3, now=100)
    assert [(fired.fire_at, fired.hold) for fired in world.fired] == [(fires, hold)]


@pytest.mark.contract("ENG-12")
@pytest.mark.parametrize("timer", [timer_set("", 5), timer_set("nope", 5), TimerCleared(b"k", W, "")])
def test_timer_of_unknown_family_is_refused_by_name(timer: TimerSet | TimerCleared) -> None:
    world = stateful()
    world.on = {"process": CallResult(1, (timer,))}
    with pytest.raises(ValueError, match=f"no timer family '{timer.family}'; it has 'event', 'clock'"):
        world.micro_batch(3, 4)


@pytest.mark.contract("ENG-05", "ENG-10", "WM-09")
@pytest.mark.parametrize("in_order", [None, Duration(0)])
def test_late_element_is_dropped_and_not_blocked(in_order: Duration | None) -> None:
    world = World(Stateful(FAMILIES, DECODE, end_of, in_order), (("rates", RATES),))
    world.micro_batch(11)
    report = world.micro_batch(11, 7, 12)
    assert world.calls() == []
    assert report.counts.late == len(world.drops) == 1
    assert report.local.pending is not None
    assert report.local.pending.time == 12
    assert report.awaited == (Awaited(RATES, Timestamp(19)),)


@pytest.mark.contract("ENG-10", "WM-09")
def test_element_of_expired_window_is_dropped_and_counted() -> None:
    world = stateful()
    world.micro_batch(10)
    report = world.micro_batch(11, 7, 12)
    assert world.calls() == ["process 12"]
    assert report.counts.late == 1
    (drop,) = world.drops
    assert isinstance(drop, DropLate)
    assert (drop.window, drop.timestamp, drop.watermark) == (W, 7, 10)


@pytest.mark.contract("ENG-13")
def test_sorted_input_interleaves_with_timers() -> None:
    world = stateful(in_order=Duration(2))
    world.on = {"process 3": CallResult(0, (timer_set("event", 5),))}
    report = world.micro_batch(4, 7, 3, 4)
    assert world.calls() == []
    assert report.next_event == 3
    hold = report.local.outputs["main"].hold
    assert hold is not None
    assert (hold.time, hold.kind) == (3, HolderKind.SORTED)
    world.micro_batch(20, 5)
    assert world.calls() == ["process 3", "process 4", "process 5", "fire event 5", "process 7"]
    assert world.micro_batch(20, 6).counts.late == 1
    assert isinstance(world.drops[0], Late)


@pytest.mark.contract("ENG-12")
def test_budget_leaves_timers_for_next_micro_batch() -> None:
    world = stateful(cells=False)
    world.on = {"process": CallResult(0, (timer_set("event", 5), timer_set("clock", 50)))}
    world.micro_batch(0, 1)
    world.looks = 1
    assert world.micro_batch(6, now=50).leftover
    assert world.calls() == ["process 1", "fire event 5"]
    world.looks = 1
    assert not world.micro_batch(6, now=50).leftover
    assert world.calls() == ["fire clock 50"]


@pytest.mark.contract("ENG-13")
def test_budget_leaves_sorted_elements_for_next_micro_batch() -> None:
    world = stateful(in_order=Duration(2))
    world.micro_batch(0, 3, 4)
    world.looks = 1
    assert world.micro_batch(7).leftover
    assert world.calls() == ["process 3"]
    world.looks = 1
    assert not world.micro_batch(7).leftover
    assert world.calls() == ["process 4"]


@pytest.mark.contract("ENG-12")
def test_window_without_state_has_no_expiration() -> None:
    """It can only have event-time timers: they have fired by then, and later elements are late anyway."""
    world = World(Stateful({"event": TimeDomain.EVENT}, DECODE, end_of, cells=False))
    world.on = {"process": CallResult(0, (timer_set("event", 400),)), "fire": CallResult(0, (timer_set("event", 500),))}
    report = world.micro_batch(3, 7)
    assert report.next_event == 9
    report = world.micro_batch(11, 8)
    assert world.calls() == ["process 7", "process 8", "fire event 9"]
    assert (report.next_event, report.counts.fired) == (None, 1)
    assert world.micro_batch(11, 8).counts.late == 1
    assert world.view.empty


@pytest.mark.contract("ENG-12")
def test_processing_timer_is_dropped_with_stateless_window() -> None:
    world = stateful(cells=False)
    world.on = {"process": CallResult(0, (timer_set("clock", 100),))}
    world.micro_batch(3, 7)
    report = world.micro_batch(11)
    assert (report.next_event, report.next_due) == (None, None)


@pytest.mark.contract("ENG-12", "END-01")
def test_at_input_end_window_waits_for_processing_timers() -> None:
    world = stateful(at_expiration=True)
    world.on = {
        "process 1": CallResult(0, (timer_set("clock", 100, 1), timer_set("event", 8))),
        "fire clock 100": CallResult(0, (timer_set("clock", 120, 1), timer_set("event", 9))),
    }
    report = world.micro_batch(5, 1, 11)
    assert (report.next_event, report.next_due) == (8, 100)
    report = world.micro_batch(MAX_TIMESTAMP, now=50)
    # The other window has no processing-time timer and does not wait; waiting work does not count as left over.
    assert world.calls() == ["process 1 11", "fire event 8", "expire 19"]
    assert (report.leftover, report.next_event, report.next_due) == (False, None, 100)
    assert output_time(MAX_TIMESTAMP, report.local, "main") == 1, "its output has the time of its timer's hold"
    report = world.micro_batch(MAX_TIMESTAMP, now=100)
    assert world.calls() == ["fire clock 100", "fire event 9"]
    assert report.next_due == 120
    report = world.micro_batch(MAX_TIMESTAMP, now=130)
    assert world.calls() == ["fire clock 120", "expire 9"]
    assert (report.leftover, report.next_event, report.next_due) == (False, None, None)
    assert world.view.empty


@pytest.mark.contract("ENG-12")
def test_timer_set_past_window_end_fires_at_end() -> None:
    world = stateful()
    world.on = {
        "process 8": CallResult(0, (timer_set("event", 50, 60),)),
        "fire event 9": CallResult(0, (timer_set("event", 70),)),
    }
    report = world.micro_batch(5, 8)
    assert output_time(MAX_TIMESTAMP, report.local, "main") == 9, "it does not hold a later time either"
    world.micro_batch(9)
    world.micro_batch(10)
    world.micro_batch(MAX_TIMESTAMP)
    assert world.calls() == ["process 8", "fire event 9"], "a later timer set by its callback does not fire"


@pytest.mark.contract("ENG-12", "END-01")
def test_keys_without_processing_timers_do_not_wait() -> None:
    world = stateful(at_expiration=True)
    world.on = {
        "process 11": CallResult(0, (timer_set("event", 18, window=V),)),
        "process 1": CallResult(0, (timer_set("clock", 100, 1),)),
    }
    world.micro_batch(5, 1)
    world.micro_batch(5, 11)
    world.calls()
    world.micro_batch(MAX_TIMESTAMP, now=50)
    assert world.calls() == ["fire event 18", "expire 19"]


@pytest.mark.contract("ENG-12", "END-02")
def test_drain_fires_processing_timers_once() -> None:
    world = stateful(at_expiration=True)
    world.on = {
        "process": CallResult(0, (timer_set("clock", 100, 1), timer_set("clock", 50, 1, V))),
        "fire clock": CallResult(0, (timer_set("clock", 120, 1), timer_set("event", 9))),
    }
    world.micro_batch(5, 1, 11, drain=True)
    assert world.calls() == ["process 1 11"]
    report = world.micro_batch(MAX_TIMESTAMP, now=10, drain=True)
    assert world.calls() == ["fire clock 50", "fire event 9", "fire clock 100", "fire event 9", "expire 9", "expire 19"]
    assert (report.leftover, report.next_event, report.next_due) == (False, None, None)
    assert world.view.empty


@pytest.mark.contract("ENG-12")
def test_callback_affects_following_timers() -> None:
    world = stateful()
    world.on = {
        "process": CallResult(0, (timer_set("event", 5), timer_set("other", 7))),
        "fire event 5": CallResult(0, (timer_set("event", 6), TimerCleared(b"k", W, "other"), timer_set("clock", 3))),
    }
    world.spec = replace(world.spec, kind=Stateful({**FAMILIES, "other": TimeDomain.EVENT}, DECODE, end_of))
    world.micro_batch(9, 4, now=4)
    assert world.calls() == ["process 4", "fire event 5", "fire event 6", "fire clock 3"]


@pytest.mark.contract("ENG-12")
def test_timer_fired_in_its_micro_batch_has_no_rows() -> None:
    world = World(Stateful({"event": TimeDomain.EVENT}, DECODE, end_of, cells=False))
    world.on = {"process": CallResult(0, (timer_set("event", 5, 5), timer_set("event", 6, 6, V)))}
    written = world.view.written
    world.micro_batch(7, 1)
    assert world.calls() == ["process 1", "fire event 5", "fire event 6"]
    assert world.view.written - written < 30
    world.on = {"process": CallResult(0, (timer_set("event", 8, 8), timer_set("event", 19, 19, V)))}
    world.looks = 1
    report = world.micro_batch(20, 8)
    assert world.calls() == ["process 8", "fire event 8"]
    hold = report.local.outputs["main"].hold
    assert hold is not None
    assert (report.leftover, report.next_event, hold.time) == (True, 19, 19)
    world.looks = 1000
    assert world.micro_batch(20).next_event is None
    assert world.calls() == ["fire event 19"]


@pytest.mark.contract("ENG-12")
def test_budget_ends_timers_without_rows() -> None:
    families = dict.fromkeys(("first", "second", "third", "fourth"), TimeDomain.EVENT)
    world = World(Stateful(families, DECODE, end_of, cells=False))
    world.on = {"process": CallResult(0, tuple(timer_set(family, 3 + i) for i, family in enumerate(families)))}
    world.looks = 2
    assert world.micro_batch(30, 2).leftover
    assert world.calls() == ["process 2", "fire first 3", "fire second 4"]
    world.looks = 10
    assert not world.micro_batch(30).leftover
    assert world.calls() == ["fire third 5", "fire fourth 6"]


@pytest.mark.contract("STORE-12")
@pytest.mark.parametrize("in_order", [None, Duration(0)])
def test_floor_drops_late_arrivals_but_not_blocked_elements(in_order: Duration | None) -> None:
    world = World(Stateful(FAMILIES, DECODE, end_of, in_order), (("rates", RATES),))
    world.micro_batch(5, 7)
    row = keyspace.prefix(keyspace.RowKind.KEY_RANGES, 1)
    world.view.put(row, packed([KeyRangeWatermark(1, 0, Timestamp(11))]))
    assert world.micro_batch(6, 8, 12).counts.late == 1, "the window ends at the floor"
    world.full = {SideInputWindow("rates", window.ordered()) for window in (W, V)}
    assert world.micro_batch(8, 9).counts.late == 1
    assert world.view.get(row) is not None
    world.micro_batch(20)
    assert world.view.get(row) is None
    assert world.calls() == ["process 7", "process 12"]
