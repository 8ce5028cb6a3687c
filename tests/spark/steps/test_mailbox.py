"""What reaches a driver from outside."""

from __future__ import annotations

import time

import pytest

from arcbeam.model.timestamps import Timestamp
from arcbeam.spark.steps.mailbox import WallClock

SECOND = 1_000_000_000


@pytest.mark.contract("ENG-07")
def test_a_clock_that_is_set_back_goes_on_and_one_that_is_set_forward_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall, running = 1_000 * SECOND, 50 * SECOND
    monkeypatch.setattr(time, "time_ns", lambda: wall)
    monkeypatch.setattr(time, "monotonic_ns", lambda: running)
    clock = WallClock()
    assert clock.now() == 1_000_000_000
    wall, running = wall - 3_600 * SECOND, running + 2 * SECOND
    assert clock.now() == 1_002_000_000
    wall, running = wall + SECOND, running + SECOND
    assert clock.now() == 1_003_000_000
    wall, running = 9_000 * SECOND, running + SECOND
    assert clock.now() == 9_000_000_000


def test_a_driver_begins_where_the_one_before_has_been(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 5 * SECOND)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)
    clock = WallClock()
    clock.start_at(Timestamp(7_000_000))
    assert clock.now() == 7_000_000
