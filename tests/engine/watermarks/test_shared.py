"""Observers that share what they see: the latest of their inputs, or the earliest that is not idle."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.idleness import mark_idle
from arcbeam.engine.watermarks.observed import together
from arcbeam.engine.watermarks.stages import StageFlow, Watermarks, WatermarkTimes
from arcbeam.model.observers import Observer, Policy
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, NOT_BEGUN, Duration, Timestamp
from arcbeam.testing.views import MemoryView

pytestmark = pytest.mark.contract("WM-02")

_A, _B = Port("a", "main"), Port("b", "main")
_CLICKS = Observer("clicks", Duration(10))
_END = MAX_TIMESTAMP


def _shared(policy: Policy, part: str, *upstream: Observer | None, idle_after: int | None = None) -> Observer:
    idle = None if idle_after is None else Duration(idle_after)
    return Observer("both", Duration(0), Policy.MAX, upstream or (None,), idle, shared=policy, part=part)


def _marks(policy: Policy, before: WatermarkTimes | None = None, idle_after: int | None = None) -> Watermarks:
    """Two sources, the first of which is observed, and a stage that reads both."""
    first, second = _shared(policy, "a", _CLICKS, idle_after=idle_after), _shared(policy, "b", idle_after=idle_after)
    return Watermarks(
        [
            StageFlow("a", (), ("main",), 1, {"main": (first,)}),
            StageFlow("b", (), ("main",), 1, {"main": (second,)}),
            StageFlow("sum", (_A, _B), (), 1),
        ],
        before,
    )


def _micro_batch(marks: Watermarks, seen: int | None, reported: int, idle: str = "") -> WatermarkTimes:
    """A micro-batch in which the first source's observer sees a time, and the second source reports one."""
    for stage, time in (("a", MIN_TIMESTAMP), ("b", reported)):
        hold = None if time == _END else Hold(Timestamp(time), HolderKind.RESIDUAL, stage)
        known = OutputTime(hold, idle=frozenset([stage]) if stage in idle else frozenset())
        times = {"clicks": Timestamp(seen)} if stage == "a" and seen is not None else {}
        marks.report(stage, 0, Local(hold, {"main": known}, None, times))
    marks.report("sum", 0, Local())
    return marks.advance()


def _there(times: WatermarkTimes) -> tuple[int, int]:
    return times.outputs[_A], times.outputs[_B]


def test_each_part_is_at_latest_input_after_commit() -> None:
    marks = _marks(Policy.MAX)
    times = _micro_batch(marks, 50, 5)
    assert _there(times) == (40, 40)
    assert (times.seen["both"], times.inputs["sum"]) == (40, MIN_TIMESTAMP)
    assert "observed by 'clicks'" in str(marks.explain_output(_B)), "it waits for the latest input"
    times = _micro_batch(marks, None, 60)
    assert (_there(times), times.inputs["sum"]) == ((60, 60), 40)
    assert str(marks.explain_output(_A)).endswith("held by restriction 'b' in shard 0")
    again = _micro_batch(_marks(Policy.MAX, times), None, MIN_TIMESTAMP)
    again.check_after(times)
    assert _there(again) == (60, 60)


def test_ended_input_is_ignored_while_another_continues() -> None:
    marks = _marks(Policy.MAX)
    assert _there(_micro_batch(marks, 50, 70)) == (70, 70)
    times = _micro_batch(marks, 60, _END)
    assert (_there(times), times.seen["both"]) == ((70, _END), 70)
    assert "'both' share, which is 1970-01-01T00:00:00.000070Z" in str(marks.explain_output(_A))
    assert _there(_micro_batch(marks, 95, _END)) == (85, _END)


def test_idle_input_is_ignored_until_it_moves() -> None:
    marks = _marks(Policy.MIN, idle_after=7)
    assert _micro_batch(marks, 50, 5).outputs == {_A: 40, _B: 5}
    assert _micro_batch(marks, 60, 5, idle="b").outputs == {_A: 50, _B: 50}
    times = _micro_batch(marks, 70, 6)
    assert times.outputs == {_A: 60, _B: 50}, "it lags, and its elements are late"
    assert _micro_batch(_marks(Policy.MIN, times, 7), 80, 55).outputs == {_A: 70, _B: 55}
    marks = _marks(Policy.MIN, times, 7)
    assert _micro_batch(marks, None, 55, idle="ab").outputs == {_A: 60, _B: 55}, "all inputs are idle"
    assert _micro_batch(marks, None, 90, idle="a").outputs == {_A: 90, _B: 90}
    assert _micro_batch(marks, None, _END, idle="a").outputs == {_A: 90, _B: _END}


def test_earliest_input_is_unknown_until_all_have_reported() -> None:
    marks = _marks(Policy.MIN, idle_after=7)
    hold = Hold(Timestamp(5), HolderKind.RESIDUAL, "b")
    marks.report("b", 0, Local(hold, {"main": OutputTime(hold)}))
    assert "both" not in marks.advance().seen


@pytest.mark.parametrize(
    ("policy", "inputs", "there"),
    [
        (Policy.MAX, [(5, False), (9, True)], 9),
        (Policy.MAX, [(5, False), (_END, False)], 5),
        (Policy.MAX, [(MIN_TIMESTAMP, False), (NOT_BEGUN, False)], None),
        (Policy.MAX, [(_END, False)], None),
        (Policy.MIN, [(5, True), (9, False)], 9),
        (Policy.MIN, [(5, False), (9, False)], 5),
        (Policy.MIN, [(5, False), (_END, False)], 5),
        (Policy.MIN, [(5, True), (_END, False)], None),
        (Policy.MIN, [(5, False), (NOT_BEGUN, False)], None),
    ],
)
def test_end_of_one_input_does_not_affect_others(
    policy: Policy, inputs: list[tuple[int, bool]], there: int | None
) -> None:
    assert together(policy, ((Timestamp(time), idle) for time, idle in inputs)) == there


def test_input_is_idle_if_source_and_observer_do_not_move() -> None:
    first, second = _shared(Policy.MIN, "a", _CLICKS, idle_after=10), _shared(Policy.MIN, "b", idle_after=500)
    view, observed = MemoryView(), {"main": (first, second)}

    def look(now: int, seen: int | None, reported: int = MIN_TIMESTAMP) -> tuple[frozenset[str], int | None]:
        hold = Hold(Timestamp(reported), HolderKind.RESIDUAL, "it")
        known = {} if seen is None else {"clicks": Timestamp(seen)}
        local = Local(hold, {"main": OutputTime(hold)})
        marked, due = mark_idle(view, 7, observed, MAX_TIMESTAMP, local, Timestamp(now), known)
        return marked.outputs["main"].idle, due

    busy, idle = frozenset[str](), frozenset(["a"])
    assert look(100, None) == (busy, 110)
    assert look(110, None) == (idle, 600), "also without any watermark"
    assert look(115, 50) == (busy, 125)
    assert look(120, 60) == (busy, 130)
    assert look(129, 60) == (busy, 130)
    assert look(130, 60) == (idle, 600)
    assert look(131, 60, reported=30) == (busy, 141)
    assert look(132, 70, reported=30) == (busy, 141), "what the source says is earlier, and stands"


def test_waiting_work_is_not_idle() -> None:
    view, observed = MemoryView(), {"main": (_shared(Policy.MIN, "a", idle_after=10),)}
    blocked = Hold(Timestamp(5), HolderKind.BLOCKED, "it")
    local = Local(blocked, {"main": OutputTime(blocked)})
    for now in (100, 200):
        assert mark_idle(view, 7, observed, MAX_TIMESTAMP, local, Timestamp(now))[1] is None
    assert mark_idle(
        view, 7, observed, MAX_TIMESTAMP, replace(local, outputs={"main": OutputTime()}), Timestamp(300)
    ) == (
        replace(local, outputs={"main": OutputTime()}),
        None,
    ), "neither is an ended input"


_MICRO_BATCHES = st.lists(
    st.tuples(st.none() | st.integers(0, 99), st.integers(0, 99), st.sampled_from(["", "a", "b", "ab"]))
)


@given(st.sampled_from(Policy), _MICRO_BATCHES, st.booleans())
def test_watermarks_never_decrease_across_drivers(
    policy: Policy, micro_batches: list[tuple[int | None, int, str]], resumes: bool
) -> None:
    idle_after = 7 if policy is Policy.MIN else None
    marks, before, latest = _marks(policy, idle_after=idle_after), WatermarkTimes(), MIN_TIMESTAMP
    for seen, reported, idle in micro_batches:
        times = _micro_batch(marks, seen, reported, idle)
        times.check_after(before)
        first = MIN_TIMESTAMP if "clicks" not in times.seen else times.seen["clicks"] - 10
        latest = max(latest, Timestamp(first), Timestamp(reported))
        if policy is Policy.MAX:
            assert _there(times) == (latest, latest)
        assert times.seen.get("both", MIN_TIMESTAMP) <= min(_there(times)) or times.seen["both"] in _there(times)
        before = times
        if resumes:
            marks = _marks(policy, times, idle_after)
