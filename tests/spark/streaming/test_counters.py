"""What counts as attempted, and what as committed; who is told of what, and when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from apache_beam.metrics import monitoring_infos
from apache_beam.metrics.metric import MetricsFilter

from arcbeam.engine.coordinator import Command, EndState, Event, MicroBatchReported
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import Times
from arcbeam.harness.operations.taskcontext import Settings
from arcbeam.jobs.metrics import JobMetrics
from arcbeam.model.plan import Plan
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import MAX_TIMESTAMP, Duration, Timestamp
from arcbeam.spark.streaming.counters import Counters
from arcbeam.spark.streaming.streamingjob import StreamRun
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.log.requests import Asked
from arcbeam.streaming.assignment import TaskAssignment
from arcbeam.streaming.driver.requests import RequestDesk, Ticket
from tests.streaming.driver.test_driver import World

_TIMES = Times({"read": MAX_TIMESTAMP, "sum": Timestamp(0)}, {Port("read", "out"): Timestamp(1_000_000)})


def report(count: int) -> BundleReport:
    info = monitoring_infos.int64_user_counter("ns", "words", count, ptransform="Count")
    return BundleReport("s0", 0, metrics=[info.SerializeToString()], elements_in=count)


def values(counters: Counters) -> list[tuple[int | None, int | None]]:
    found = JobMetrics(counters.real(), True, counters.attempted()).query(MetricsFilter().with_name("words"))[
        "counters"
    ]
    return [(each.attempted, each.committed) for each in found]


@pytest.mark.contract("API-06")
def test_a_run_that_came_to_nothing_was_attempted() -> None:
    counters = Counters()
    counters.ran(1, [report(3)])
    assert values(counters) == [(3, None)]
    counters.ran(1, [report(4)])
    reports, line = counters.committed(1, _TIMES, Duration(1_500_000))
    assert [each.elements_in for each in reports] == [4]
    assert line == "micro-batch 1: 1.50 s, 4 elements, watermark 1970-01-01T00:00:00Z"
    assert values(counters) == [(7, 4)]
    counters.ran(2, [report(1)])
    counters.committed(2, _TIMES, Duration(0))
    assert values(counters) == [(8, 5)]
    assert (counters.micro_batches, counters.progress().elements, counters.standing().tasks) == (2, 5, 2)
    # As the job counts them: this run of it has not made them all.
    counters.committed(486, _TIMES, Duration(0))
    assert counters.progress().stages == ("micro-batch 486, watermark 1970-01-01T00:00:00Z",)


def test_a_commit_without_a_micro_batch_has_no_reports() -> None:
    counters = Counters()
    reports, line = counters.committed(1, Times({}, {}), Duration(0))
    assert (list(reports), line) == ([], "micro-batch 1: 0.00 s, 0 elements, watermark the end of time")


class Listener:
    """Hears of a run; `heard` is whether who has asked for something knew of it when the job turned."""

    def __init__(self) -> None:
        self.ticket: Ticket | None = None
        self.heard: list[tuple[str, bool]] = []

    def opened(self) -> None: ...

    def reported(self, report: object) -> None: ...

    def streaming(self, line: str) -> None: ...

    def warned(self, text: str) -> None: ...

    def turned(self, state: str) -> None:
        assert self.ticket is not None
        self.heard.append((state, self.ticket.heard.is_set()))


class Run(World):
    """A run on Spark, but for its cluster: what is refused of a micro-batch is in `refused`."""

    def __init__(self, folder: Path, *reports: str) -> None:
        super().__init__(*reports)
        self.listener = Listener()
        location = JobLocation(str(folder))
        self.job = StreamRun(Plan("job", (), (), bounded=False), None, Settings(), "job", location, None, self.listener)  # type: ignore[arg-type]
        self.desk = RequestDesk(self, self)
        self.desk.opened(self.blobs, self.log.head)
        self.job._desk, self.job._log, self.job._machine = self.desk, self.log, self.driver.machine
        self.refused: set[int] = set()

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


@pytest.mark.contract("END-02")
def test_who_asks_for_a_drain_hears_of_it_when_the_job_is_draining(tmp_path: Path) -> None:
    world = Run(tmp_path, "more", "more")
    world.driver.handle(world.todo.pop(0))
    world.listener.ticket = world.desk.ask(Asked.DRAIN, "last")
    world.play()
    assert world.listener.ticket.heard.is_set()
    assert world.listener.heard == [("DRAINING", False)]


@pytest.mark.contract("API-06", "END-03")
def test_what_a_refused_run_has_counted_is_not_committed_by_a_suspension_in_its_place(tmp_path: Path) -> None:
    world = Run(tmp_path, "more", "more")
    while world.log.head.micro_batch == 0:
        world.driver.handle(world.todo.pop(0))
    world.refused = {2}
    while world.todo:
        world.driver.handle(world.todo.pop(0))
    world.desk.ask(Asked.SUSPEND, "pause")
    world.play()
    assert world.driver.end is not None
    assert (world.driver.end.state, world.log.head.micro_batch) == (EndState.STOPPED, 2)
    assert values(world.job._counters) == [(6, 3)]
    assert world.job.progress().elements == 3
