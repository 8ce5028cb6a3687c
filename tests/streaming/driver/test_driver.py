"""Each command of the machine is carried out by exactly one part of the environment."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from arcbeam.engine.coordinator import (
    CancelRequested,
    ClockAdvanced,
    Command,
    DrainRequested,
    EndState,
    Event,
    Finalized,
    JobMachine,
    MicroBatchFailed,
    MicroBatchReported,
    Propose,
    Published,
    PublishFailed,
    RunMicroBatch,
    ShutDown,
    TornDown,
)
from arcbeam.model.commits import CommitMode, Committable
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.store.blobs.errors import IndeterminateError, StoreError
from arcbeam.store.log.sweep import Swept
from arcbeam.streaming.assignment import TaskAssignment
from arcbeam.streaming.driver.commits import LogCommits
from arcbeam.streaming.driver.driver import TAKEOVER_CHECKS, JobDriver, drive
from arcbeam.streaming.driverstate import started
from arcbeam.testing import Faults, UnreliableBlobs
from arcbeam.testing.blobs import MemoryBlobs
from tests.engine.coordinator.script import REPORTS, SETTINGS, reported, source
from tests.streaming.jobs import LAYOUT, READERS, opened


class World:
    """The environment of a driver; its calls are in `event_log`. Micro-batches report `reports`, one by one."""

    def __init__(self, *reports: str, blobs: MemoryBlobs | None = None, sweep_every: int = 2) -> None:
        self.blobs = UnreliableBlobs(blobs or MemoryBlobs(), 0)
        self.log = opened(self.blobs)
        self.reports = list(reports)
        self.time = Timestamp(0)
        self.todo: list[Event] = [started(self.log.head, LAYOUT, self.time)]
        self.event_log: list[str] = []
        self.taken: list[tuple[Event, Sequence[Command]]] = []
        self.tokens: list[Sequence[bytes]] = []
        self.commits = LogCommits(self.log, LAYOUT, READERS, self.warn)
        machine = JobMachine(LAYOUT, SETTINGS)
        self.driver = JobDriver(machine, self.commits, self, self, self, self, self, sweep_every=sweep_every)

    def play(self) -> list[str]:
        drive(self.driver, self, self)
        return self.event_log

    # Clock, inbox.

    def now(self) -> Timestamp:
        return self.time

    def put(self, event: Event) -> None:
        self.todo.append(event)

    def next(self, until: Timestamp | None) -> Event | None:
        if self.todo:
            self.time = Timestamp(self.time + 1)
            return self.todo.pop(0)
        assert until is not None
        self.time = max(self.time, until)
        return None

    # Watch.

    def handled(self, event: Event, commands: Sequence[Command]) -> None:
        self.taken.append((event, commands))

    def begins(self, command: Command) -> None:
        pass

    def warn(self, text: str) -> None:
        self.event_log.append(f"warn {text}")

    def swept(self, swept: Swept | StoreError) -> None:
        self.event_log.append("swept" if isinstance(swept, Swept) else "could not sweep")

    # Cluster, sinks.

    def run(self, order: TaskAssignment) -> None:
        plan = order.plan
        self.event_log.append(f"run {plan.micro_batch}")
        what, _, extra = (self.reports.pop(0) if self.reports else "nothing left").partition(" with ")
        of_task: dict[str, object] = {}
        if "sink" in extra:
            of_task["committables"] = (Committable("join", b"part"),)
        if "callbacks" in extra:
            of_task["finalizations"] = 1
        change = source(5, int(what[4:])) if what.startswith("due ") else REPORTS[what]
        reports = reported(plan, change, LAYOUT, **of_task)
        self.put(MicroBatchReported(Timestamp(0), plan.micro_batch, plan.attempt, Duration(1), reports))

    def abandon(self, micro_batch: int, attempt: int) -> None:
        self.event_log.append(f"abandon {micro_batch}.{attempt}")

    def finalize(self, micro_batch: int, tokens: Sequence[bytes]) -> None:
        self.tokens.append(tokens)
        self.event_log.append(f"finalize {micro_batch}")
        self.put(Finalized(Timestamp(0), micro_batch))

    def shut_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        self.event_log.append("shut down " + " ".join(stages))
        self.put(ShutDown(Timestamp(0)))

    def tear_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        self.event_log.append("tear down " + " ".join(stages))
        self.put(TornDown(Timestamp(0)))

    def publish(self, micro_batch: int, committables: Sequence[Committable]) -> None:
        self.event_log.append(f"publish {micro_batch}: {len(committables)}")
        self.put(Published(Timestamp(0), micro_batch))


class Failing(World):
    """Each try of a micro-batch fails. The failures are in `failed`."""

    def __init__(self, *reports: str, blobs: MemoryBlobs) -> None:
        self.failed: list[str] = []
        super().__init__(*reports, blobs=blobs)

    def run(self, order: TaskAssignment) -> None:
        self.event_log.append(f"run {order.plan.micro_batch}")
        self.failed.append("step")
        self.put(
            MicroBatchFailed(Timestamp(0), order.plan.micro_batch, order.plan.attempt, "the copy is ahead", again=True)
        )


class Unpublished(Failing):
    """Each try to publish fails."""

    run = World.run

    def publish(self, micro_batch: int, committables: Sequence[Committable]) -> None:
        super().publish(micro_batch, committables)
        self.failed.append("publish")
        self.todo[-1] = PublishFailed(Timestamp(0), micro_batch, "the sink does not answer")


def _ran(*reports: str) -> World:
    world = World(*reports)
    world.play()
    return world


@pytest.mark.contract("END-01", "STORE-02")
def test_job_is_driven_to_its_end() -> None:
    world = _ran("more with sink", "more with callbacks", "more", "nothing left")
    assert world.event_log == [
        "run 1",
        "publish 1: 1",
        "run 2",
        "finalize 2",
        "run 3",
        "swept",
        "run 4",
        "shut down read rates join",
        "tear down join rates read",
    ]
    assert world.driver.end is not None
    assert world.driver.end.state is EndState.DONE
    assert (world.log.head.micro_batch, world.log.head.mode) == (4, CommitMode.DONE)


def test_attempts_with_finalizations_are_named() -> None:
    world = _ran("more with callbacks", "nothing left")
    (proposed,) = [each for _, commands in world.taken for each in commands if isinstance(each, Propose)][:1]
    assert world.tokens == [[report.token for report in proposed.reports if report.finalizations]]
    assert len(world.tokens[0]) == 1


@pytest.mark.contract("ENG-07")
def test_clock_advances_once_when_requested() -> None:
    world = World("due 500", "nothing left")
    world.play()
    times = [event.at for event, _ in world.taken if isinstance(event, ClockAdvanced)]
    assert times == [500]


def test_event_has_time_of_its_handling() -> None:
    world = World()
    world.time = Timestamp(50)
    world.driver.handle(world.todo.pop(0))
    ((event, commands),) = world.taken
    assert event.at == 50
    (run,) = [command for command in commands if isinstance(command, RunMicroBatch)]
    assert run.plan.time == 50


@pytest.mark.contract("STORE-02", "END-01")
def test_next_driver_publishes_unpublished_committables() -> None:
    blobs = MemoryBlobs()
    world = World("more with sink", blobs=blobs)
    while world.log.head.micro_batch == 0:
        world.driver.handle(world.todo.pop(0))
    assert "publish" not in " ".join(world.event_log)
    assert World(blobs=blobs).play()[:2] == ["publish 2: 1", "run 3"]


@pytest.mark.contract("STORE-03")
def test_unknown_outcome_is_resolved_later() -> None:
    world = World("nothing left")
    world.blobs.faults = Faults(lost=1.0)
    while world.log.pending is None:
        world.driver.handle(world.todo.pop(0))
    world.driver.handle(world.todo.pop(0))
    world.blobs.faults = Faults()
    world.play()
    assert world.driver.end is not None
    assert world.driver.end.state is EndState.DONE
    (warned,) = [line for line in world.event_log if line.startswith("warn")]
    assert warned.startswith("warn the outcome of the commit of micro-batch 1 ")


@pytest.mark.contract("END-04")
def test_cancelled_job_abandons_micro_batch_without_proposal() -> None:
    world = World()
    world.driver.handle(world.todo.pop(0))
    late = world.todo.pop(0)
    world.put(CancelRequested(Timestamp(0)))
    world.put(late)
    assert world.play() == ["run 1", "abandon 1.0", "tear down join rates read"]
    assert world.log.head.micro_batch == 0


@pytest.mark.contract("END-02")
def test_drained_job_ends_with_savepoint() -> None:
    world = World("more", "more")
    world.put(DrainRequested(Timestamp(0), "last"))
    world.play()
    assert [pin.name for pin in world.log.head.pins] == ["last"]
    assert world.log.head.mode is CommitMode.DRAINED


def test_failed_sweep_is_reported_and_job_continues() -> None:
    world = World("more", "more", "more", sweep_every=1)

    def fails() -> Swept:
        raise IndeterminateError("no answer")

    world.commits.sweep = fails  # type: ignore[method-assign]
    assert world.play().count("could not sweep") == 3
    assert world.driver.end is not None
    assert world.driver.end.state is EndState.DONE


def _overtaken(world: World, blobs: MemoryBlobs) -> str:
    """Another driver takes over the job; return why the first one ends."""
    other = opened(blobs, driver="host7", force=True)
    world.play()
    assert world.driver.end is not None
    assert world.driver.end.state is EndState.FAILED
    assert f"micro-batch {other.head.micro_batch} is of epoch 2, this driver has epoch 1" in world.driver.end.why
    assert "host7, since" in world.driver.end.why
    return world.driver.end.why


@pytest.mark.contract("STORE-03")
def test_idle_driver_notices_takeover_within_seconds() -> None:
    blobs = MemoryBlobs()
    world = World("due 3600000000", blobs=blobs)
    while world.log.head.micro_batch == 0 or world.todo:
        world.driver.handle(world.todo.pop(0))
    taken = len(world.taken)
    for _ in range(3):
        assert world.driver.wake is not None
        assert world.driver.wake - world.time <= TAKEOVER_CHECKS
        world.time = world.driver.wake
        world.driver.handle(ClockAdvanced(world.time))
    assert len(world.taken) == taken, "the machine did not request the time"
    began = world.time
    why = _overtaken(world, blobs)
    assert world.time - began <= TAKEOVER_CHECKS + 10
    assert world.event_log == ["run 1", f"warn {why}", "tear down join rates read"]


@pytest.mark.contract("STORE-03")
def test_driver_of_long_micro_batch_notices_takeover() -> None:
    blobs = MemoryBlobs()
    world = World(blobs=blobs)
    world.driver.handle(world.todo.pop(0))
    world.todo.clear()  # the micro-batch does not end
    why = _overtaken(world, blobs)
    assert world.event_log == ["run 1", f"warn {why}", "abandon 1.0", "tear down join rates read"]


@pytest.mark.contract("STORE-03")
@pytest.mark.parametrize("failures", [0, 1, SETTINGS.retry.times])
def test_fenced_driver_retries_nothing(failures: int) -> None:
    blobs = MemoryBlobs()
    world = Failing(blobs=blobs)
    while len(world.failed) <= failures:
        world.driver.handle(world.next(world.driver.wake) or ClockAdvanced(world.time))
    runs = world.event_log.count("run 1")
    _overtaken(world, blobs)
    assert world.event_log.count("run 1") == runs


@pytest.mark.contract("STORE-03")
def test_fenced_driver_publishes_nothing_after_last_commit() -> None:
    blobs = MemoryBlobs()
    world = Unpublished("nothing left with sink", blobs=blobs)
    while not world.failed:
        world.driver.handle(world.todo.pop(0))
    assert world.log.head.mode is CommitMode.DONE
    _overtaken(world, blobs)
    assert world.event_log.count("publish 1: 1") == 1


def test_driving_ends_on_request() -> None:
    world = World()
    assert drive(world.driver, world, world, lambda: len(world.taken) < 2) is None
    assert len(world.taken) == 2
