"""How much a task of a step may do."""

from __future__ import annotations

import pytest

from arcbeam.engine.plan.stepplan import StepBudget
from arcbeam.model.timestamps import Duration
from arcbeam.spark.steps.usercode import TaskBudget

HOUR = Duration(3600 * 1_000_000)


@pytest.mark.contract("SDF-06")
@pytest.mark.parametrize(
    ("time", "bytes", "elements", "exhausted"),
    [(HOUR, 9, 9, False), (Duration(0), 9, 9, True), (HOUR, 5, 9, True), (HOUR, 9, 4, True)],
)
def test_a_budget_is_exhausted_by_time_bytes_or_elements(
    time: Duration, bytes: int, elements: int, exhausted: bool
) -> None:
    budget = TaskBudget.of(StepBudget(time, elements, bytes), lambda: 5, lambda: 4)
    assert budget.exhausted() is exhausted


@pytest.mark.contract("SDF-06")
def test_a_part_is_of_what_is_left_and_ends_before_the_whole() -> None:
    written = [40]
    budget = TaskBudget.of(StepBudget(HOUR, 100, 1000), lambda: 0, lambda: written[0])
    third = budget.part(1 / 3)
    written[0] = 59
    assert not third.exhausted()
    written[0] = 60
    assert third.exhausted()
    assert not budget.exhausted()
    assert not budget.part(1 / 2).exhausted()
    assert budget.part(0.0).exhausted()
