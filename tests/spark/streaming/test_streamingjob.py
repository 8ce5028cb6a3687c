"""What a run on Spark reports to its listener, and which of it counts as committed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from arcbeam.engine.coordinator import Command, EndState, Event, MicroBatchReported
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.plan import Plan
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.spark.streaming.streamingjob import StreamRun
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.log.requests import RequestKind
from arcbeam.streaming.assignment import TaskAssignment
from arcbeam.streaming.driver.requests import PendingRequest, RequestQueue
from arcbeam.streaming.interfaces import JobListener
from tests.harness.streaming.test_counters import report, values
from tests.streaming.driver.test_driver import World


class Listener(JobListener):
    """Records a run; `heard` has each state, and whether the request was answered before it."""

    def __init__(self) -> None:
        self.pending: PendingRequest | None = None
        self.heard: list[tuple[str, bool]] = []

    def turned(self, state: str) -> None:
        assert self.pending is not None
        self.heard.append((state, self.pending.heard.is_set()))


class Run(World):
    """A run on Spark without its cluster.

    Attributes:
        refused: the refused micro-batches.
        over: whether the run had ended at each teardown: the answer that its cluster gets.
    """

    def __init__(self, folder: Path, *reports: str) -> None:
        super().__init__(*reports)
        self.listener = Listener()
        location = JobLocation(str(folder))
        self.job = StreamRun(
            Plan("job", (), (), bounded=False), None, TaskSettings(), "job", location, None, self.listener
        )  # type: ignore[arg-type]
        self.requests = RequestQueue(self, self)
        self.requests.opened(self.blobs, self.log.head)
        self.job._requests, self.job._log, self.job._machine = self.requests, self.log, self.driver.machine
        self.refused: set[int] = set()
        self.over: list[bool] = []

    def handled(self, event: Event, commands: Sequence[Command]) -> None:
        super().handled(event, commands)
        self.job.handled(event, commands)

    def run(self, order: TaskAssignment) -> None:
        plan = order.plan
        self.job._counters.ran(plan.micro_batch, [report(3)])
        if plan.micro_batch in self.refused:
            self.put(MicroBatchReported(Timestamp(0), plan.micro_batch, plan.attempt, Duration(1), ()))
        else:
            super().run(order)

    def tear_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        self.over.append(self.job._is_over())
        super().tear_down(stages, deadline)


@pytest.mark.contract("END-02")
def test_drain_request_is_answered_when_job_is_draining(tmp_path: Path) -> None:
    world = Run(tmp_path, "more", "more")
    world.driver.handle(world.todo.pop(0))
    world.listener.pending = world.requests.ask(RequestKind.DRAIN, "last")
    world.play()
    assert world.listener.pending.heard.is_set()
    assert world.listener.heard == [("DRAINING", False)]


@pytest.mark.contract("API-06", "END-03")
def test_suspension_does_not_commit_refused_runs_counters(tmp_path: Path) -> None:
    world = Run(tmp_path, "more", "more")
    while world.log.head.micro_batch == 0:
        world.driver.handle(world.todo.pop(0))
    world.refused = {2}
    while world.todo:
        world.driver.handle(world.todo.pop(0))
    world.requests.ask(RequestKind.SUSPEND, "pause")
    world.play()
    assert world.driver.end is not None
    assert (world.driver.end.state, world.log.head.micro_batch) == (EndState.STOPPED, 2)
    assert values(world.job._counters) == [(6, 3)]
    assert world.job.progress().elements == 3


@pytest.mark.parametrize(
    ("kept", "suspended", "over"), [(True, False, True), (True, True, False), (False, True, True), (False, False, True)]
)
def test_copies_stay_on_hosts_if_job_may_resume(tmp_path: Path, kept: bool, suspended: bool, over: bool) -> None:
    world = Run(tmp_path, "more", *["more"] * suspended, "nothing left")
    world.job.kept = kept
    world.driver.handle(world.todo.pop(0))
    if suspended:
        world.requests.ask(RequestKind.SUSPEND, "pause")
    world.play()
    assert world.driver.end is not None
    assert world.driver.end.state is (EndState.STOPPED if suspended else EndState.DONE)
    assert world.over == [over]
