"""Triggers as machines: their bytes, when they have to be asked, and what they become when windows merge."""

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
from arcbeam.model.timestamps import MAX_TIMESTAMP, Duration, Timestamp
from tests.engine.grouping.grouping_strategies import delayed, triggers

pytestmark = pytest.mark.contract("ENG-11")


def at(now: int, passed: bool = False, ticked: bool = False) -> Moment:
    return Moment(Timestamp(now), passed, ticked)


stories = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 5), st.booleans(), st.booleans()), max_size=12)


def lived(trigger: Trigger, story: list[tuple[int, int, bool, bool]], now: int = -20) -> Trigger:
    """The trigger after some elements, times and firings."""
    passed = False
    for count, later, passes, ticked in story:
        if trigger.finished():
            break
        now, passed = now + later, passed or passes
        trigger.add(count, Timestamp(now))
        if trigger.ready(at(now, passed, ticked)):
            trigger.fire(at(now, passed, ticked))
    return trigger


@settings(max_examples=200, deadline=None)
@given(tree=triggers, story=stories, further=stories)
def test_a_trigger_goes_on_from_its_bytes(tree: Trigger, story: list[Any], further: list[Any]) -> None:
    machine = lived(tree.fresh(), story)
    again = load(tree, dump(machine))
    assert dump(again) == dump(machine)
    assert again.finished() == machine.finished()
    assert dump(lived(again, further)) == dump(lived(machine, further))


@given(tree=triggers)
def test_the_first_state_takes_no_bytes(tree: Trigger) -> None:
    assert dump(tree) == b""
    assert dump(load(tree, b"")) == b""


def test_the_bytes_are_few() -> None:
    tree = AfterWatermark(early=AfterAny(AfterCount(1000), delayed(5)), late=AfterCount(1))
    machine = lived(tree, [(100, 0, False, False)])
    assert len(dump(machine)) <= 6


@given(due=st.integers(-(2**62), 2**62))
def test_a_time_survives(due: int) -> None:
    machine = delayed(0)
    machine.add(1, Timestamp(due))
    again = load(delayed(0), dump(machine))
    assert isinstance(again, AfterTime)
    assert again.due == due


@pytest.mark.parametrize("data", [b"\x02\x02", b"\x01", b"\x01\x02\x00", b"\x01\x80"])
def test_bytes_of_something_else_are_refused(data: bytes) -> None:
    with pytest.raises(StateFormatError, match="a trigger's state"):
        load(AfterCount(3), data)


@settings(max_examples=200, deadline=None)
@given(tree=triggers, story=stories, passed=st.booleans())
def test_nothing_is_due_while_there_is_room(tree: Trigger, story: list[Any], passed: bool) -> None:
    machine = lived(tree, story)
    if machine.finished() or machine.eager():
        return
    moment = at(1000, passed)
    room = machine.room(moment)
    if room == UNLIMITED:
        machine.add(100_000, moment.now)
        assert not machine.ready(moment)
    elif room > 1:
        machine.add(room - 1, moment.now)
        assert not machine.ready(moment)


@settings(max_examples=200, deadline=None)
@given(tree=triggers, story=stories)
def test_only_an_alarm_lets_time_change_anything(tree: Trigger, story: list[Any]) -> None:
    machine = lived(tree, story)
    if machine.finished():
        return
    moment = at(100)
    alarm = machine.alarm(moment)
    if not machine.ready(moment) and alarm is not None:
        assert alarm >= moment.now
        assert not machine.ready(at(alarm - 1))
    if not machine.ready(at(100, ticked=True)) and machine.alarm(at(100, ticked=True)) is None:
        assert not machine.ready(at(MAX_TIMESTAMP, ticked=True))


@settings(max_examples=200, deadline=None)
@given(tree=triggers, mine=stories, theirs=stories, rewound=st.booleans())
def test_a_merged_trigger_is_a_trigger(tree: Trigger, mine: list[Any], theirs: list[Any], rewound: bool) -> None:
    one, other = lived(tree.fresh(), mine), lived(tree.fresh(), theirs)
    one.merge(other)
    if rewound:
        one.rewind()
    assert dump(load(tree, dump(one))) == dump(one)
    assert one.finished() or isinstance(one.ready(at(500, True)), bool)


def test_what_elements_have_finished_in_one_window_is_finished_in_both() -> None:
    one, other = AfterCount(2), AfterCount(2)
    one.add(2, Timestamp(0))
    one.fire(at(0))
    other.merge(one)
    assert other.finished()


def test_the_watermark_passes_a_merged_window_again_unless_it_has_passed_both() -> None:
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


def test_a_window_that_grows_has_its_end_ahead_of_it() -> None:
    machine = AfterEach(AfterWatermark(), AfterCount(2), AfterCount(3))
    machine.fire(at(0, passed=True))
    machine.add(1, Timestamp(0))
    machine.rewind()
    assert not machine.ready(at(0))
    machine.fire(at(0, passed=True))
    assert machine.room(at(0, passed=True)) == 2


@pytest.mark.parametrize("final", [AfterWatermark(), Repeatedly(AfterWatermark())])
def test_what_the_watermark_has_ended_goes_on_in_a_window_that_grows(final: Trigger) -> None:
    machine = OrFinally(Repeatedly(AfterCount(2)), final)
    assert machine.fire(at(0, passed=True))
    machine.rewind()
    assert not machine.finished()


def test_all_of_several_wait_for_each_other_again_and_again() -> None:
    machine = AfterAll(Repeatedly(AfterCount(2)), AfterWatermark())
    machine.add(2, Timestamp(0))
    assert not machine.ready(at(0))
    assert machine.ready(at(0, passed=True))
    assert not machine.fire(at(0, passed=True))
    machine.add(2, Timestamp(0))
    assert machine.ready(at(0, passed=True))


def test_synchronized_time_waits_for_what_comes_at_the_same_time() -> None:
    machine = Repeatedly(AfterSynchronizedTime())
    machine.add(1, Timestamp(5))
    assert not machine.ready(at(5))
    assert machine.alarm(at(5)) == 5
    assert machine.ready(at(5, ticked=True))
    assert machine.ready(at(6))


@pytest.mark.parametrize(
    ("first", "expected"), [(0, 3), (9, 13), (10, 13), (11, 23), (-20, -17), (MAX_TIMESTAMP, MAX_TIMESTAMP)]
)
def test_a_time_is_delayed_then_aligned(first: int, expected: int) -> None:
    transforms = (Delay(Duration(3)), AlignTo(Duration(10), Duration(3)))
    assert due(transforms, Timestamp(first)) == expected


def test_no_period_aligns_nothing() -> None:
    assert due((AlignTo(Duration(0), Duration(3)),), Timestamp(8)) == 8


def test_a_delay_is_not_negative() -> None:
    with pytest.raises(ValueError, match="a trigger's delay of -1 µs is negative"):
        Delay(Duration(-1))


def test_triggers_that_say_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="after 0 elements"):
        AfterCount(0)
    for kind in (AfterAny, AfterAll, AfterEach):
        with pytest.raises(ValueError, match="of no triggers"):
            kind()
