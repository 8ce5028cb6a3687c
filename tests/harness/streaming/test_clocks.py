"""The clock of a task whose host has another time than the job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import userstate
from apache_beam.utils.timestamp import Duration as SdkDuration
from apache_beam.utils.timestamp import Timestamp as SdkTimestamp

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.harness.streaming.clocks import TaskClock
from arcbeam.model.timestamps import Duration, Timestamp
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard
from tests.offsets import UpTo

SECOND = 1_000_000


@dataclass
class Host:
    """The readings of a host's clocks."""

    wall: int = 100 * SECOND
    running: int = 7_000

    def passes(self, seconds: int) -> None:
        self.wall += seconds * SECOND
        self.running += seconds * SECOND * 1000

    def clock(self, job_time: int | None) -> TaskClock:
        return TaskClock(
            None if job_time is None else Timestamp(job_time), lambda: Timestamp(self.wall), lambda: self.running
        )


@pytest.mark.contract("ENG-07")
def test_lagging_host_uses_time_of_job() -> None:
    host = Host()
    clock = host.clock(job_time=160 * SECOND)
    assert (clock.now(), clock.lag()) == (160 * SECOND, 60 * SECOND)
    host.passes(5)
    assert (clock.now(), clock.lag()) == (165 * SECOND, 60 * SECOND)
    host.wall -= 3600 * SECOND
    assert (clock.now(), clock.lag()) == (165 * SECOND, 3660 * SECOND)


@pytest.mark.parametrize("job_time", [None, 99 * SECOND, 100 * SECOND])
def test_host_that_does_not_lag_is_trusted(job_time: int | None) -> None:
    host = Host()
    clock = host.clock(job_time)
    host.passes(5)
    assert (clock.now(), clock.lag()) == (105 * SECOND, 0)
    host.wall += 86_400 * SECOND
    assert (clock.now(), clock.lag()) == (86_505 * SECOND, 0)


class InTenSeconds(beam.DoFn):
    """Defers for ten seconds."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(UpTo())) -> Iterator[int]:
        at = tracker.current_restriction().start
        if tracker.try_claim(at):
            yield at
            tracker.defer_remainder(SdkDuration(10))


class FiresInTenSeconds(beam.DoFn):
    """Sets a timer for ten seconds from now, on a host that lags an hour; the job's time begins at 0."""

    FIRE = userstate.TimerSpec("fire", userstate.TimeDomain.REAL_TIME)

    def process(self, element: Any, fire: Any = beam.DoFn.TimerParam(FIRE)) -> None:
        fire.set(SdkTimestamp(10 - 3600))

    @userstate.on_timer(FIRE)
    def fired(self) -> Iterator[int]:
        yield 0


@pytest.mark.contract("SDF-04", "ENG-12")
@pytest.mark.parametrize(("element", "dofn"), [(2, InTenSeconds), ((1, 2), FiresInTenSeconds)])
def test_delay_is_kept_with_lagging_clock(element: Any, dofn: Any) -> None:
    due: list[int] = []

    def run(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        lagging = MicroBatch([(key, [one]) for key, one in arrived], Timestamp(0), late=Duration(3600 * SECOND))
        next_due = shard.run(lagging).next_due
        assert next_due is not None
        due.append(next_due)

    with InMicroBatches(run) as p:
        given = p | beam.Create([element], reshuffle=False)
        _ = given | beam.ParDo(dofn()).with_output_types(int) | Collect()
    # The time since the micro-batch was planned counts.
    assert 9 * SECOND < due[0] <= 10 * SECOND
