"""Triggers as machines: their bytes, when they have to be evaluated, and their merges."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.grouping.composites import AfterAll, AfterAny, AfterEach, AfterWatermark, OrFinally, Repeatedly
from arcbeam.engine.grouping.delays import AlignTo, Delay, due
from arcbeam.engine.grouping.triggers import UNLIMITED, AfterCount, AfterSynchronizedTime, AfterTime, Moment, Trigger
from arcbeam.engine.grouping.triggerstate import dump, load
from arcbeam.errors import StateFormatError
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from tests.engine.grouping.grouping_strategies import delayed, triggers

pytestmark = pytest.mark.contract("ENG-11")


def at(now: int, passed: bool = False, ticked: bool = False) -> Moment:
    return Moment(Timestamp(now), passed, ticked)


stories = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 5), st.booleans(), st.booleans()), max_size=12)


def lived(trigger: Trigger, event_log: list[tuple[int, int, bool, bool]], now: int = -20) -> Trigger:
    """The trigger after some elements, times and firings."""
    passed = False
    for count, later, passes, ticked in event_log:
        if trigger.finished():
            break
        now, passed = now + later, passed or passes
        trigger.add(count, Timestamp(now))
        if trigger.ready(at(now, passed, ticked)):
            trigger.fire(at(now, passed, ticked))
    return trigger


@settings(max_examples=200, deadline=None)
@given(tree=triggers, event_log=stories, further=stories)
def test_trigger_continues_from_its_bytes(tree: Trigger, event_log: list[Any], further: list[Any]) -> None:
    machine = lived(tree.fresh(), event_log)
    again = load(tree, dump(machine))
    assert dump(again) == dump(machine)
    assert again.finished() == machine.finished()
    assert dump(lived(again, further)) == dump(lived(machine, further))


@given(tree=triggers)
def test_first_state_takes_no_bytes(tree: Trigger) -> None:
    assert dump(tree) == b""
    assert dump(load(tree, b"")) == b""


def test_states_take_few_bytes() -> None:
    tree = AfterWatermark(early=AfterAny(AfterCount(1000), delayed(5)), late=AfterCount(1))
    machine = lived(tree, [(100, 0, False, False)])
    assert len(dump(machine)) <= 6


@pytest.mark.parametrize("fired", [False, True])
@pytest.mark.parametrize("due", [MIN_TIMESTAMP, -1, 0, 1, 1 << 62, MAX_TIMESTAMP])
def test_time_of_trigger_is_read_as_written(due: int, fired: bool) -> None:
    trigger = AfterTime()
    trigger.due, trigger.fired = Timestamp(due), fired
    found = load(AfterTime(), dump(trigger))
    assert (found.due, found.fired) == (due, fired)


@pytest.mark.parametrize(("seen", "fired"), [(0, False), (0, True), (1, False), (127, True), (1 << 40, False)])
def test_count_of_trigger_is_read_as_written(seen: int, fired: bool) -> None:
    trigger = AfterCount(3)
    trigger.seen, trigger.fired = seen, fired
    found = load(AfterCount(3), dump(trigger))
    assert (found.seen, found.fired) == (seen, fired)


@given(due=st.integers(-(2**62), 2**62))
def test_due_time_survives_encoding(due: int) -> None:
    machine = delayed(0)
    machine.add(1, Timestamp(due))
    again = load(delayed(0), dump(machine))
    assert isinstance(again, AfterTime)
    assert again.due == due


@pytest.mark.parametrize("data", [b"\x02\x02", b"\x01", b"\x01\x02\x00", b"\x01\x80"])
def test_invalid_state_is_refused(data: bytes) -> None:
    with pytest.raises(StateFormatError, match="a trigger's state"):
        load(AfterCount(3), data)


@settings(max_examples=200, deadline=None)
@given(tree=triggers, event_log=stories, passed=st.booleans())
def test_trigger_with_room_is_not_ready(tree: Trigger, event_log: list[Any], passed: bool) -> None:
    machine = lived(tree, event_log)
    if machine.finished() or machine.eager():
        return
    moment = at(1000, passed)
    elements_until_ready = machine.elements_until_ready(moment)
    if elements_until_ready == UNLIMITED:
        machine.add(100_000, moment.now)
        assert not machine.ready(moment)
    elif elements_until_ready > 1:
        machine.add(elements_until_ready - 1, moment.now)
        assert not machine.ready(moment)


@settings(max_examples=200, deadline=None)
@given(tree=triggers, event_log=stories)
def test_time_matters_only_at_an_alarm(tree: Trigger, event_log: list[Any]) -> None:
    machine = lived(tree, event_log)
    if machine.finished():
        return
    moment = at(100)
    next_timer = machine.next_timer(moment)
    if not machine.ready(moment) and next_timer is not None:
        assert next_timer >= moment.now
        assert not machine.ready(at(next_timer - 1))
    if not machine.ready(at(100, ticked=True)) and machine.next_timer(at(100, ticked=True)) is None:
        assert not machine.ready(at(MAX_TIMESTAMP, ticked=True))


@settings(max_examples=200, deadline=None)
@given(tree=triggers, mine=stories, theirs=stories, rewound=st.booleans())
def test_merged_trigger_keeps_invariants(tree: Trigger, mine: list[Any], theirs: list[Any], rewound: bool) -> None:
    one, other = lived(tree.fresh(), mine), lived(tree.fresh(), theirs)
    one.merge(other)
    if rewound:
        one.rewind()
    assert dump(load(tree, dump(one))) == dump(one)
    assert one.finished() or isinstance(one.ready(at(500, True)), bool)


def test_trigger_finished_by_elements_stays_finished_after_merge() -> None:
    one, other = AfterCount(2), AfterCount(2)
    one.add(2, Timestamp(0))
    one.fire(at(0))
    other.merge(one)
    assert other.finished()


def test_watermark_fires_merged_window_again() -> None:
    one, other = AfterWatermark(late=AfterCount(1)), AfterWatermark(late=AfterCount(1))
    one.fire(at(0, passed=True))
    one.merge(other)
    assert not one.ready(at(0))
    assert one.ready(at(0, passed=True))
    third = AfterWatermark(late=AfterCount(1))
    one.fire(at(0, passed=True))
    third.fire(at(0, passed=True))
    one.merge(third)
    assert not one.ready(at(0, passed=True))


def test_grown_window_waits_for_its_end_again() -> None:
    machine = AfterEach(AfterWatermark(), AfterCount(2), AfterCount(3))
    machine.fire(at(0, passed=True))
    machine.add(1, Timestamp(0))
    machine.rewind()
    assert not machine.ready(at(0))
    machine.fire(at(0, passed=True))
    assert machine.elements_until_ready(at(0, passed=True)) == 2


@pytest.mark.parametrize("final", [AfterWatermark(), Repeatedly(AfterWatermark())])
def test_trigger_ended_by_watermark_continues_in_grown_window(final: Trigger) -> None:
    machine = OrFinally(Repeatedly(AfterCount(2)), final)
    assert machine.fire(at(0, passed=True))
    machine.rewind()
    assert not machine.finished()


def test_after_all_waits_repeatedly() -> None:
    machine = AfterAll(Repeatedly(AfterCount(2)), AfterWatermark())
    machine.add(2, Timestamp(0))
    assert not machine.ready(at(0))
    assert machine.ready(at(0, passed=True))
    assert not machine.fire(at(0, passed=True))
    machine.add(2, Timestamp(0))
    assert machine.ready(at(0, passed=True))


def test_synchronized_time_waits_for_simultaneous_elements() -> None:
    machine = Repeatedly(AfterSynchronizedTime())
    machine.add(1, Timestamp(5))
    assert not machine.ready(at(5))
    assert machine.next_timer(at(5)) == 5
    assert machine.ready(at(5, ticked=True))
    assert machine.ready(at(6))


@pytest.mark.parametrize(
    ("first", "expected"), [(0, 3), (9, 13), (10, 13), (11, 23), (-20, -17), (MAX_TIMESTAMP, MAX_TIMESTAMP)]
)
def test_time_is_delayed_then_aligned(first: int, expected: int) -> None:
    transforms = (Delay(Duration(3)), AlignTo(Duration(10), Duration(3)))
    assert due(transforms, Timestamp(first)) == expected


def test_empty_period_aligns_nothing() -> None:
    assert due((AlignTo(Duration(0), Duration(3)),), Timestamp(8)) == 8


def test_negative_delay_is_refused() -> None:
    with pytest.raises(ValueError, match="a trigger's delay of -1 µs is negative"):
        Delay(Duration(-1))


def test_empty_triggers_are_refused() -> None:
    with pytest.raises(ValueError, match="after 0 elements"):
        AfterCount(0)
    for kind in (AfterAny, AfterAll, AfterEach):
        with pytest.raises(ValueError, match="at least one trigger"):
            kind()
