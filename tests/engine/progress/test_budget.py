"""The budget follows the steps' durations, within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.engine.progress import Pace, StepBudget
from arcbeam.model.timestamps import Duration

_PACE = Pace(Duration(1000), Duration(10), Duration(5000))


def _budget(time: int) -> StepBudget:
    return StepBudget(Duration(time), 100, 100)


@given(fixed=st.integers(0, 900), slope=st.floats(0.2, 5))
def test_steps_come_to_their_target_whatever_they_cost(fixed: int, slope: float) -> None:
    budget = _budget(10)
    for _ in range(60):
        budget = _PACE.after(budget, Duration(round(fixed + slope * budget.time)), used_up=True)
    took = fixed + slope * budget.time
    assert abs(took - 1000) < 100 or budget.time in (10, 5000)


def test_a_budget_stays_within_its_bounds_and_moves_by_half_or_twice_at_most() -> None:
    assert _PACE.after(_budget(100), Duration(1_000_000), used_up=True).time == 50
    assert _PACE.after(_budget(100), Duration(0), used_up=True).time == 200
    assert _PACE.after(_budget(10), Duration(1_000_000), used_up=True).time == 10
    assert _PACE.after(_budget(5000), Duration(1), used_up=True).time == 5000


def test_a_short_step_that_had_nothing_more_to_do_says_nothing() -> None:
    assert _PACE.after(_budget(100), Duration(1), used_up=False).time == 100
    assert _PACE.after(_budget(100), Duration(4000), used_up=False).time == 50


def test_bounds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="budget from 20 to 10 µs"):
        Pace(Duration(1000), Duration(20), Duration(10))
