"""The budget of a task in a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from arcbeam.engine.protocol.microbatchplan import MicroBatchBudget
from arcbeam.model.timestamps import Duration
from arcbeam.streaming.task.taskbudget import TaskBudget

HOUR = Duration(3600 * 1_000_000)


@dataclass
class Done:
    """The work of a task so far."""

    bytes: int = 100
    elements: int = 1_000
    seconds: float = 7.0


def budget_of(done: Done, elements: int, bytes: int = 1_000_000, time: Duration = HOUR) -> TaskBudget:
    return TaskBudget(
        MicroBatchBudget(time, elements, bytes), lambda: done.bytes, lambda: done.elements, lambda: done.seconds
    )


@pytest.mark.contract("SDF-06")
@pytest.mark.parametrize(
    ("time", "bytes", "elements", "exhausted"),
    [(HOUR, 9, 9, False), (Duration(0), 9, 9, True), (HOUR, 5, 9, True), (HOUR, 9, 4, True)],
)
def test_time_bytes_or_elements_exhaust_budget(time: Duration, bytes: int, elements: int, exhausted: bool) -> None:
    done = Done()
    budget = budget_of(done, elements, bytes, time)
    part = budget.part(1.0)
    assert part.exhausted() is (time == 0)
    done.bytes, done.elements = 105, 1004
    assert part.exhausted() is exhausted
    assert budget.exhausted() is exhausted


def test_elements_of_exchange_use_no_budget() -> None:
    done = Done()
    budget = budget_of(done, 10)
    for places in (2, 1):
        part = budget.part(1 / places)
        done.elements += 1_000_000
        assert not part.exhausted()
        done.elements += 4
        assert not part.exhausted()
        done.elements += 1
        assert part.exhausted()
    assert budget.exhausted()


def test_timers_get_time_that_their_elements_took() -> None:
    done = Done()
    budget = budget_of(done, 1_000, time=Duration(8_000_000))
    part = budget.part(1 / 2)
    done.seconds += 60  # what came
    assert not part.exhausted()
    done.seconds += 59
    assert not part.exhausted()
    done.seconds += 1
    assert part.exhausted()
    # Others have what they would have had.
    part = budget.part(1.0)
    done.seconds += 1
    assert not part.exhausted()
    done.seconds += 4
    assert part.exhausted()


def test_restrictions_get_no_additional_time() -> None:
    done = Done()
    part = budget_of(done, 1_000, time=Duration(8_000_000)).part(1.0)
    done.seconds += 60
    one = part.part(1 / 2)
    assert not one.exhausted()
    done.seconds += 4
    assert one.exhausted()
    assert not part.exhausted()
    done.seconds += 8
    assert part.exhausted()


@pytest.mark.contract("SDF-06")
def test_later_part_gets_rest_of_budget() -> None:
    done = Done()
    budget = budget_of(done, 12)
    shares = []
    for places, wants in ((3, 1), (2, 100), (1, 100)):
        part, before = budget.part(1 / places), done.elements
        while not part.exhausted() and done.elements - before < wants:
            done.elements += 1
        shares.append(done.elements - before)
    assert shares == [1, 6, 5]


def test_part_of_a_part_has_fraction_of_it() -> None:
    done = Done()
    quarter = budget_of(done, 16).part(1 / 2).part(1 / 2)
    assert not quarter.exhausted()
    done.elements += 4
    assert quarter.exhausted()
