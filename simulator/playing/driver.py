"""One driver of a simulated job: the real driver, with the clock and the answers of the simulated world.

Owns the order of a driver's events, and what must hold of its commands. What the world decides (faults, requests, other
drivers) it asks for. Must not know what happens to it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from typing_extensions import override

from arcbeam.engine.coordinator import (
    Abandon,
    CallShutdown,
    CancelRequested,
    ClockAdvanced,
    Command,
    CommitConflicted,
    CommitDecided,
    CommitRefused,
    DrainRequested,
    DriverFailed,
    End,
    EndState,
    Event,
    Finalized,
    JobMachine,
    MicroBatchFailed,
    MicroBatchReported,
    Mode,
    Overtaken,
    Phase,
    Propose,
    PublishCommittables,
    Published,
    PublishFailed,
    RunMicroBatch,
    ShutDown,
    SuspendRequested,
    TornDown,
    WaitUntil,
    Warn,
)
from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.model.commits import Committable
from arcbeam.model.timestamps import Duration, Timestamp, shifted
from arcbeam.store.blobs.errors import DeterminateError, IndeterminateError, MissingFileError, StoreError
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.log.sweep import Swept
from arcbeam.streaming import interfaces
from arcbeam.streaming.assignment import TaskAssignment
from arcbeam.streaming.driver.commits import LogCommits
from arcbeam.streaming.driver.driver import TAKEOVER_CHECKS, JobDriver
from arcbeam.streaming.driverstate import started
from arcbeam.streaming.interfaces import Decision
from arcbeam.testing.faults import UnreliableBlobs
from simulator.judging.records import Broken
from simulator.playing.cluster import USER_ERROR, Cluster, Outcome
from simulator.playing.jobs import Job

_OVERTAKEN = "took over"
_MOST_DEATHS = 3
"""The allowed runs of a micro-batch in which a worker dies. A job whose user code kills workers must fail soon."""
_REASONS = (_OVERTAKEN, "in a row", f"try {_MOST_DEATHS} of {_MOST_DEATHS}: ", USER_ERROR)
"""A job may fail with one of these reasons."""
_FAILED_TRIES = (MicroBatchFailed, PublishFailed, CommitRefused)
_REQUESTED_MODES = {
    DrainRequested: Mode.DRAINING,
    SuspendRequested: Mode.SUSPENDING,
    CancelRequested: Mode.CANCELLING,
}
"""The mode of a running job after each request."""


class Surroundings(Protocol):
    """The environment of a driver."""

    now: Timestamp

    def is_overtaken(self, driver: Driver) -> bool:
        """Return whether a later driver has committed its opening, and the store would report that."""

    def before(self, driver: Driver, command: Command) -> None:
        """Inject faults before a command is carried out. May raise `Killed`."""

    def handled(self, driver: Driver, event: Event, commands: Sequence[Command]) -> None:
        """Check an event and the commands that answer it."""

    def publish(self, ids: list[bytes]) -> bool:
        """Publish committables; return whether that succeeded."""

    def committed(self, driver: Driver) -> None:
        """Handle that a driver has learnt of a commit."""

    def outcome(self, name: str) -> None:
        """Count an answer of the store to a proposal."""

    def swept(self) -> None:
        """Handle that files were deleted."""

    def report_again(self) -> bool:
        """Return whether the report of the running micro-batch comes a second time, later."""

    def gives_up(self) -> bool:
        """Return whether the driver gives up the running micro-batch, though its report will come."""

    def stalls(self) -> int:
        """Return the seconds that the next micro-batch waits for its cluster while another driver begins; 0: none."""

    def worker_dies(self) -> bool:
        """Return whether a worker dies in the running micro-batch, which then fails."""

    def took(self) -> int:
        """Return the duration of the next action, in microseconds."""

    def tell(self, text: str) -> None:
        """Add a line to the story."""


class Killed(Exception):
    """The driver's process has died."""


@dataclass
class Driver(interfaces.Clock, interfaces.Cluster, interfaces.Sinks, interfaces.DriverObserver):
    """A driver: the environment of the real one, and checks of its behaviour.

    Attributes:
        name: its name in the story.
        job: the job that it runs.
        log: its commit log.
        blobs: its access to the store.
        cluster: runs its micro-batches.
        around: its environment.
        killed: whether its process has died.
    """

    name: str
    job: Job
    log: CommitLog
    blobs: UnreliableBlobs
    cluster: Cluster
    around: Surroundings
    machine: JobMachine
    keep: int
    killed: bool = False

    def __post_init__(self) -> None:
        """Start the driver."""
        self._events: list[tuple[int, int, Event]] = []
        self._order = count()
        self._torn: set[bytes] = set()
        self._deaths: Counter[int] = Counter()
        # A micro-batch that waits for its cluster, and the end of the wait.
        self._stalled: tuple[Timestamp, TaskAssignment] | None = None
        self._broken_off = self._shut_down = self._prepared = self._must_know = False
        self._commits = LogCommits(self.log, self.job.layout, self.job.readers, self.warn, keep=self.keep)
        self._driver = JobDriver(self.machine, self._commits, self, self, self, self, self, sweep_every=2)
        self.schedule(started(self.log.head, self.job.layout, self.around.now), 0)

    @property
    def end(self) -> End | None:
        """Return its end; None before that."""
        return self._driver.end

    @property
    def over(self) -> bool:
        """Return whether it has died or ended."""
        return self.killed or self.end is not None

    @property
    def ended_well(self) -> bool:
        """Return whether the job is done or drained."""
        return self.end is not None and self.end.state in (EndState.DONE, EndState.DRAINED)

    def next_at(self) -> Timestamp | None:
        """Return the time of its next event; None if there is none."""
        times = [Timestamp(self._events[0][0])] if self._events else []
        if self._driver.wake is not None:
            times.append(self._driver.wake)
        if self._stalled is not None:
            times.append(self._stalled[0])
        return min(times, default=None)

    def schedule(self, event: Event, after: int) -> None:
        """Schedule an event for the driver."""
        heapq.heappush(self._events, (self.around.now + after, next(self._order), event))

    def release(self, savepoint: str) -> None:
        """Release a savepoint."""
        self._commits.release(savepoint)

    def _die(self) -> None:
        self.killed = True
        self.around.tell(f"{self.name} is dead")

    def advance(self) -> None:
        """Handle the next event, and carry out the commands that follow."""
        now = self.around.now
        if self._stalled is not None and self._stalled[0] <= now:
            order, self._stalled = self._stalled[1], None
            try:
                self._run(order)
            except Killed:
                self._die()
            return
        event = heapq.heappop(self._events)[2] if self._events and self._events[0][0] <= now else ClockAdvanced(now)
        open_to = self.machine.phase is Phase.RUNNING and self.machine.mode is Mode.RUNNING
        try:
            self._driver.handle(event)
        except Killed:
            self._die()
        if open_to and self.machine.mode is not _REQUESTED_MODES.get(type(event), self.machine.mode):
            raise Broken(f"{self.name} got {type(event).__name__}, but its mode is {self.machine.mode.value}")
        if isinstance(event, CommitDecided):
            if not self.killed:
                self.cluster.end_late()
            self.around.committed(self)

    def check_fenced(self, since: Timestamp) -> None:
        """Check that it ends in time if another driver took over at `since` and the store was reliable after that."""
        if self._may_go_on() and self.around.now - since > TAKEOVER_CHECKS:
            raise Broken(f"{self.name} does not know that another driver took the job over at {since}")

    def _may_go_on(self) -> bool:
        """Return whether it may still run micro-batches; not if the outcome of a proposal is unknown."""
        return not self.over and self.machine.phase in (Phase.RUNNING, Phase.CLOSING) and self.log.pending is None

    # `Clock`, `Inbox`.

    @override
    def now(self) -> Timestamp:
        return self.around.now

    def put(self, event: Event) -> None:
        """See `Inbox`: this takes an answer of the store."""
        assert isinstance(event, Decision)
        if isinstance(event, DriverFailed):
            raise Broken(f"{self.name} cannot propose: {event.why}")
        self._decided(event, event.micro_batch)
        self._answer(event)

    def _decided(self, event: Event, micro_batch: int) -> None:
        conflict = self.log._conflict
        if isinstance(event, CommitConflicted | Overtaken) and conflict and conflict.found.epoch == self.log.epoch:
            raise Broken(f"{self.name} is fenced by its own manifest, at micro-batch {conflict.found.micro_batch}")
        self.around.outcome(type(event).__name__)
        self.around.tell(f"{self.name}: {type(event).__name__} (micro-batch {micro_batch})")

    def _answer(self, event: Event) -> None:
        self.schedule(event, self.around.took())

    # `DriverObserver`.

    def handled(self, event: Event, commands: Sequence[Command]) -> None:
        """See `DriverObserver`. Checks that nothing is committed, published or shut down after an error, and that no
        consistent micro-batch is refused.
        """
        self.machine.validate()
        if isinstance(event, Overtaken):
            self._decided(event, self.log.head.micro_batch + 1)
        if isinstance(event, _FAILED_TRIES) and self.around.is_overtaken(self) and self.log.pending is None:
            self._must_know = True
            if self._may_go_on():
                raise Broken(f"{self.name} retries, but another driver has taken over the job: {event}")
        self.around.handled(self, event, commands)
        reports = event.reports if isinstance(event, MicroBatchReported) else ()
        torn = bool(self._torn & {report.token for report in reports})
        for command in commands:
            if isinstance(command, Warn) and "is not consistent" in command.text and not torn:
                raise Broken(f"{self.name} refuses a consistent micro-batch: {command.text}")
        if self._broken_off and any(
            isinstance(each, (Propose, PublishCommittables, RunMicroBatch, CallShutdown)) for each in commands
        ):
            raise Broken(f"{self.name} continues after its error: {commands}")
        self._broken_off |= self.machine.mode in (Mode.FAILING, Mode.CANCELLING)
        if self._broken_off and any(isinstance(each, (Propose, CallShutdown)) for each in commands):
            raise Broken(f"{self.name} commits after its error: {commands}")

    @override
    def begins(self, command: Command) -> None:
        match command:
            case WaitUntil():
                return
            case Propose():
                if self._torn & {each.token for each in command.reports}:
                    raise Broken(f"micro-batch {command.micro_batch} was torn, but is proposed")
            case End(state, why):
                if state is EndState.FAILED and not any(reason in why for reason in _REASONS):
                    raise Broken(f"{self.name} fails: {why}")
                if state is EndState.FAILED and self._must_know and _OVERTAKEN not in why:
                    raise Broken(f"{self.name} does not name the driver that took the job over: {why}")
                if self._shut_down != (state in (EndState.DONE, EndState.DRAINED)):
                    raise Broken(
                        f"{self.name} is {state.value}, but shutdown was {'' if self._shut_down else 'not '}called"
                    )
        self.around.tell(f"{self.name}: {_described(command)}")
        self.around.before(self, command)

    def warn(self, text: str) -> None:
        """See `DriverObserver`: the event log already has it as a command."""

    @override
    def swept(self, swept: Swept | StoreError) -> None:
        match swept:
            case Swept():
                if swept.files or swept.manifests:
                    self.around.tell(f"{self.name} swept {len(swept.files)} files, {len(swept.manifests)} manifests")
            case IndeterminateError() | DeterminateError() | MissingFileError():
                self.around.tell(f"{self.name} could not sweep: {swept}")
            case _:
                raise Broken(f"{self.name} could not sweep: {swept}")
        self.around.swept()

    # `Cluster`, `Sinks`.

    @override
    def run(self, order: TaskAssignment) -> None:
        plan = order.plan
        if self._prepared and not plan.prepare:
            self.around.outcome("preparing made new work")
        self._prepared = bool(plan.preparing)
        if self.around.worker_dies():
            self._worker_died(plan)
            return
        if seconds := self.around.stalls():
            self._stalled = shifted(self.around.now, Duration(seconds * 1_000_000)), order
        else:
            self._run(order)

    def _run(self, order: TaskAssignment) -> None:
        plan = order.plan
        outcome: Outcome = self.cluster.run(self.job, order)
        took = self.around.took()
        if outcome.why:
            self.around.tell(f"micro-batch {plan.micro_batch} failed: {outcome.why}")
            self.schedule(
                MicroBatchFailed(self.around.now, plan.micro_batch, plan.attempt, outcome.why, outcome.again), took
            )
            return
        if outcome.torn:
            self._torn |= {report.token for report in outcome.reports}
        if self.around.gives_up():
            given_up = MicroBatchFailed(
                self.around.now, plan.micro_batch, plan.attempt, "it has not reported in time", True
            )
            self.schedule(given_up, took)
            # The report comes after the pause before the next run.
            took += 100_000 + self.around.took()
        event = MicroBatchReported(self.around.now, plan.micro_batch, plan.attempt, Duration(took), outcome.reports)
        self.schedule(event, took)
        if self.around.report_again():
            self.schedule(event, took + 200_000)

    def _worker_died(self, plan: MicroBatchPlan) -> None:
        self._deaths[plan.micro_batch] += 1
        if self._deaths[plan.micro_batch] > _MOST_DEATHS:
            raise Broken(
                f"{self.name} runs micro-batch {plan.micro_batch} again, though a worker died in "
                f"{_MOST_DEATHS} runs of it"
            )
        self.around.tell(f"micro-batch {plan.micro_batch} failed: a worker died")
        failed = MicroBatchFailed(self.around.now, plan.micro_batch, plan.attempt, "a worker died", True, died=True)
        self.schedule(failed, self.around.took())

    def abandon(self, micro_batch: int, attempt: int) -> None:
        """See `Cluster`: a simulated run is never in progress here."""
        self._stalled = None

    @override
    def finalize(self, micro_batch: int, tokens: Sequence[bytes]) -> None:
        if not tokens:
            raise Broken(f"{self.name} finalizes micro-batch {micro_batch}, but no bundle requested it")
        self._answer(Finalized(self.around.now, micro_batch))

    @override
    def shut_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        self._shut_down = True
        self._answer(ShutDown(self.around.now))

    @override
    def tear_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        self._answer(TornDown(self.around.now))

    @override
    def publish(self, micro_batch: int, committables: Sequence[Committable]) -> None:
        if self.around.publish([committable.payload for committable in committables]):
            self._answer(Published(self.around.now, micro_batch))
        else:
            self._answer(PublishFailed(self.around.now, micro_batch, "the sink does not answer"))


def _described(command: Command) -> str:
    match command:
        case RunMicroBatch(plan):
            marks = [
                text
                for text, is_so in (("beginning", plan.beginning), ("drain", plan.drain), ("prepare", plan.prepare))
                if is_so
            ]
            return f"runs micro-batch {plan.micro_batch}, run {plan.attempt} at {plan.time} {' '.join(marks)}"
        case Propose():
            return f"proposes micro-batch {command.micro_batch} ({command.mode.value}) {' '.join(command.savepoints)}"
        case PublishCommittables(micro_batch, committables):
            return (
                f"publishes micro-batch {micro_batch}: "
                f"{'what the head has' if committables is None else len(committables)}"
            )
        case Abandon(micro_batch, attempt):
            return f"abandons micro-batch {micro_batch}, run {attempt}"
        case End(state, why):
            return f"ends: {state.value} {why}"
        case Warn(text):
            return f"warns: {text}"
        case _:
            return type(command).__name__
