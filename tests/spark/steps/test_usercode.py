"""How much a task of a step may do."""

from __future__ import annotations

from dataclasses import dataclass

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
    done = Done()
    budget = TaskBudget(StepBudget(time, elements, bytes), 1, lambda: done.bytes, lambda: done.elements)
    budget.begin()
    assert budget.exhausted() is (time == 0)
    done.bytes, done.elements = 105, 1004
    assert budget.exhausted() is exhausted


def test_what_came_by_the_exchange_uses_up_nothing() -> None:
    done = Done()
    budget = TaskBudget(StepBudget(HOUR, 10, 1_000_000), 2, lambda: done.bytes, lambda: done.elements)
    for _ in range(2):
        budget.begin()
        done.elements += 1_000_000
        assert not budget.exhausted()
        done.elements += 4
        assert not budget.exhausted()
        done.elements += 1
        assert budget.exhausted()


def test_who_comes_later_has_what_others_have_left() -> None:
    done = Done()
    budget = TaskBudget(StepBudget(HOUR, 12, 1_000_000), 3, lambda: done.bytes, lambda: done.elements)
    shares = []
    for wants in (1, 100, 100):
        budget.begin()
        before = done.elements
        while not budget.exhausted() and done.elements - before < wants:
            done.elements += 1
        shares.append(done.elements - before)
    assert shares == [1, 6, 5]


@dataclass
class Done:
    """What a task has done."""

    bytes: int = 100
    elements: int = 1_000
