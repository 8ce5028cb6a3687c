"""A driver's current activity as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from arcbeam.engine.coordinator import (
    ClockAdvanced,
    Command,
    CommitDecided,
    CommitRefused,
    Event,
    MicroBatchFailed,
    MicroBatchReported,
    PublishCommittables,
    PublishFailed,
    RunMicroBatch,
    TearDown,
    WaitUntil,
)
from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.streaming.status.activity import Activity
from tests.golden.texts import check_message
from tests.streaming.driver.test_driver import World
from tests.streaming.jobs import proposal

_SECOND = 1_000_000


class Followed(World):
    """Its driver's activity is followed; `texts` has it, a second after each event."""

    def __init__(self, *reports: str) -> None:
        self.activity = Activity(14, 3)
        self.texts: list[str] = []
        super().__init__(*reports)

    def handled(self, event: Event, commands: Sequence[Command]) -> None:
        super().handled(event, commands)
        self.activity.handled(event, commands, self.time)
        self.texts.append(self.activity.text(Timestamp(self.time + _SECOND)))


def test_each_part_of_micro_batch_is_named() -> None:
    world = Followed("more with sink", "nothing left")
    world.play()
    assert world.texts[:2] == ["running micro-batch 1 for 1 s", "committing micro-batch 1 for 1 s"]
    assert "running micro-batch 2 for 1 s; publishing micro-batch 1 for 1 s" in world.texts
    assert world.texts[-2] == "tearing down"


def test_failed_tries_are_counted_and_named() -> None:
    activity, now = Activity(14, 3), Timestamp(0)
    plan = _first_plan()
    activity.handled(ClockAdvanced(now), [RunMicroBatch(plan)], now)
    assert not activity.is_idle
    activity.handled(
        MicroBatchFailed(now, 1, 0, "the disk is full\nmore", True), [WaitUntil(Timestamp(9 * _SECOND))], now
    )
    assert activity.is_idle
    check_message("driver-waits-for-next-try", activity.text(now))
    activity.handled(ClockAdvanced(now), [RunMicroBatch(_first_plan(attempt=1))], now)
    check_message("driver-tries-again", activity.text(Timestamp(42 * _SECOND)))
    activity.handled(MicroBatchReported(now, 1, 1, Duration(1), ()), [proposal(1, 0)], now)
    activity.handled(CommitRefused(now, 1, "no permission"), [], now)
    assert activity.text(now) == "committing micro-batch 1 for 0 s (the last try failed: no permission)"
    activity.handled(CommitDecided(now, 1), [PublishCommittables(1, ())], now)
    activity.handled(PublishFailed(now, 1, "away"), [], now)
    assert activity.text(now) == "publishing micro-batch 1 for 0 s (the last try failed: away)"
    activity.handled(ClockAdvanced(now), [TearDown((), now)], now)
    assert activity.text(now).endswith("; tearing down")


def test_deaths_of_workers_are_counted_separately() -> None:
    activity, now = Activity(14, 3), Timestamp(0)
    activity.handled(MicroBatchFailed(now, 1, 0, "away", True), [], now)
    activity.handled(MicroBatchFailed(now, 1, 1, "killed", True, died=True), [], now)
    assert "for try 2 of 3 of a micro-batch" in activity.text(now)
    activity.handled(MicroBatchFailed(now, 1, 2, "killed", True, died=True), [], now)
    assert "for try 3 of 3 of a micro-batch" in activity.text(now)
    assert activity.failures == 3
    activity.handled(MicroBatchReported(now, 1, 3, Duration(1), ()), [], now)
    activity.handled(MicroBatchFailed(now, 2, 0, "killed", True, died=True), [], now)
    assert "for try 2 of 3 of a micro-batch" in activity.text(now)


def test_idle_driver_shows_until_when_it_waits() -> None:
    activity = Activity(14, 3)
    assert activity.text(Timestamp(0)) == "waiting"
    activity.handled(ClockAdvanced(Timestamp(0)), [WaitUntil(Timestamp(60 * _SECOND))], Timestamp(0))
    assert activity.text(Timestamp(0)) == "waiting until 1970-01-01T00:01:00Z"
    assert activity.text(Timestamp(60 * _SECOND)) == "waiting"


def _first_plan(attempt: int = 0) -> MicroBatchPlan:
    world = World()
    world.driver.handle(world.todo.pop(0))
    (plan,) = [each.plan for _, commands in world.taken for each in commands if isinstance(each, RunMicroBatch)]
    return replace(plan, attempt=attempt)
