"""The budget of a micro-batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.engine.coordinator import CoordinatorSettings, MicroBatchBudget, Pace, paced
from arcbeam.engine.protocol.reports import Restrictions, StageReport
from arcbeam.engine.watermarks.clocks import Local, Port
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.timestamps import MIN_TIMESTAMP, Duration, Timestamp

_LEAST, _MOST = MicroBatchBudget(Duration(10), 5, 20), MicroBatchBudget(Duration(5000), 1000, 2000)
_PACE = Pace(Duration(1000), _LEAST, _MOST, Duration(5000), Duration(10_000))


def _budget(time: int) -> MicroBatchBudget:
    return MicroBatchBudget(Duration(time), 100, 100)


@given(fixed=st.integers(0, 900), slope=st.floats(0.2, 5))
def test_micro_batches_approach_target_whatever_they_cost(fixed: int, slope: float) -> None:
    budget = _budget(10)
    for _ in range(60):
        budget = _PACE.after(budget, Duration(round(fixed + slope * budget.time)), used_up=True)
    took = fixed + slope * budget.time
    assert abs(took - 1000) < 100 or budget.time in (10, 5000)


def test_budget_stays_in_bounds_and_at_most_doubles() -> None:
    assert _PACE.after(_budget(100), Duration(1_000_000), used_up=True).time == 50
    assert _PACE.after(_budget(100), Duration(0), used_up=True).time == 200
    assert _PACE.after(_budget(10), Duration(1_000_000), used_up=True).time == 10
    assert _PACE.after(_budget(5000), Duration(1), used_up=True).time == 5000


def test_elements_and_bytes_follow_time_within_own_bounds() -> None:
    assert _PACE.after(_budget(1000), Duration(4000), used_up=True) == MicroBatchBudget(Duration(500), 50, 50)
    assert _PACE.after(_budget(1000), Duration(250), used_up=True) == MicroBatchBudget(Duration(2000), 200, 200)
    budget = _budget(1000)
    for _ in range(10):
        budget = _PACE.after(budget, Duration(100_000), used_up=True)
    assert budget == _LEAST
    for _ in range(20):
        budget = _PACE.after(budget, Duration(1), used_up=True)
    assert budget == _MOST


def test_short_micro_batch_without_leftover_keeps_budget() -> None:
    assert _PACE.after(_budget(100), Duration(1), used_up=False).time == 100
    assert _PACE.after(_budget(100), Duration(4000), used_up=False).time == 50


def _report(leftover: bool, live: int) -> StageReport:
    return StageReport("s", 0, MIN_TIMESTAMP, Local(), leftover, restrictions=Restrictions(live))


@pytest.mark.parametrize(
    ("leftover", "live", "output", "is_behind"),
    [
        (False, 0, 0, False),
        (False, 1, 0, False),
        (True, 0, 100_000, True),
        (True, 1, 100_000, False),
        (True, 1, 90_001, False),
        (True, 1, 89_999, True),
        # The output has no watermark.
        (True, 1, MIN_TIMESTAMP, False),
    ],
)
def test_job_lags_if_leftover_work_is_overdue(leftover: bool, live: int, output: int, is_behind: bool) -> None:
    times = WatermarkTimes({}, {Port("s", "main"): Timestamp(output), Port("other", "main"): MIN_TIMESTAMP})
    assert _PACE.is_behind({("s", 0): _report(leftover, live)}, times, Timestamp(100_000)) is is_behind


def test_micro_batches_of_lagging_job_are_longer() -> None:
    assert _PACE.after(_budget(100), Duration(2500), used_up=True).time < 100
    assert _PACE.after(_budget(100), Duration(2500), used_up=True, is_behind=True).time > 100
    # The growth by the ratio is never too much, because the fixed cost does not grow.
    assert _PACE.after(_budget(100), Duration(_PACE.catch_up // 3), used_up=True, is_behind=True).time in (
        299,
        300,
        301,
    )
    assert _PACE.after(_budget(100), Duration(1), used_up=True, is_behind=True).time == 400


def test_contradictory_bounds_are_refused() -> None:
    for least in (
        MicroBatchBudget(Duration(6000), 5, 20),
        MicroBatchBudget(Duration(10), 0, 20),
        MicroBatchBudget(Duration(10), 5, 3000),
    ):
        with pytest.raises(ValueError, match=r"a budget from MicroBatchBudget\(.* to MicroBatchBudget\("):
            Pace(Duration(1000), least, _MOST, Duration(1000), Duration(1))
    with pytest.raises(ValueError, match="a target of 10000000 µs, of 5000000 µs"):
        paced(Duration(10_000_000), Duration(5_000_000))


def test_default_target_is_half_a_second() -> None:
    assert (CoordinatorSettings().pace.target, CoordinatorSettings().pace.catch_up) == (500_000, 5_000_000)
    budget, pace = paced(Duration(60_000_000), Duration(60_000_000))
    assert budget.time == 30_000_000
    assert pace.most.time == 120_000_000
