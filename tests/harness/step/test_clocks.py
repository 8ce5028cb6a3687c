"""The clock of a task, whose host may have another time than the job."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from arcbeam.harness.step.clocks import TaskClock
from arcbeam.model.timestamps import Timestamp

SECOND = 1_000_000


@dataclass
class Host:
    """What a host's clocks show."""

    wall: int = 100 * SECOND
    running: int = 7_000

    def passes(self, seconds: int) -> None:
        self.wall += seconds * SECOND
        self.running += seconds * SECOND * 1000

    def clock(self, told: int | None) -> TaskClock:
        return TaskClock(None if told is None else Timestamp(told), lambda: Timestamp(self.wall), lambda: self.running)


@pytest.mark.contract("ENG-07")
def test_a_host_whose_clock_is_behind_the_jobs_has_that_of_the_job() -> None:
    host = Host()
    clock = host.clock(told=160 * SECOND)
    assert (clock.now(), clock.behind()) == (160 * SECOND, 60 * SECOND)
    host.passes(5)
    assert (clock.now(), clock.behind()) == (165 * SECOND, 60 * SECOND)
    host.wall -= 3600 * SECOND
    assert (clock.now(), clock.behind()) == (165 * SECOND, 3660 * SECOND)


@pytest.mark.parametrize("told", [None, 99 * SECOND, 100 * SECOND])
def test_a_host_whose_clock_is_not_behind_is_believed(told: int | None) -> None:
    host = Host()
    clock = host.clock(told)
    host.passes(5)
    assert (clock.now(), clock.behind()) == (105 * SECOND, 0)
    host.wall += 86_400 * SECOND
    assert (clock.now(), clock.behind()) == (86_505 * SECOND, 0)
