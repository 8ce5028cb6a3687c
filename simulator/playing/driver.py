"""One driver of a simulated job: the real driver, and a clock and answers that are the world's.

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
    Publish,
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
"""Runs of a micro-batch in which a worker dies: a job whose user code kills it is to end soon."""
_REASONS = (_OVERTAKEN, "in a row", f"try {_MOST_DEATHS} of {_MOST_DEATHS}: ", USER_ERROR)
"""Why a job may fail."""
_FAILED_TRIES = (MicroBatchFailed, PublishFailed, CommitRefused)
_ASKED = {
    DrainRequested: Mode.DRAINING,
    SuspendRequested: Mode.SUSPENDING,
    CancelRequested: Mode.CANCELLING,
}
"""What a job that is running is heading for when it was asked."""


class Surroundings(Protocol):
    """What a driver has around it."""

    now: Timestamp

    def is_overtaken(self, driver: Driver) -> bool:
        """Whether a later driver has committed its opening, and the store would say so."""

    def before(self, driver: Driver, command: Command) -> None:
        """A command is about to be carried out. `Killed` may come out of it."""

    def handled(self, driver: Driver, event: Event, commands: Sequence[Command]) -> None:
        """An event was taken in, and that is what is to be done."""

    def publish(self, ids: list[bytes]) -> bool:
        """Publishes parts; whether it went well."""

    def committed(self, driver: Driver) -> None:
        """A driver was told that a micro-batch is real."""

    def outcome(self, name: str) -> None:
        """The store has answered a proposal."""

    def swept(self) -> None:
        """Files were removed."""

    def report_again(self) -> bool:
        """Whether the report of the micro-batch that runs comes a second time, later."""

    def gives_up(self) -> bool:
        """Whether nobody waits for the micro-batch that runs, though it will report."""

    def stalls(self) -> int:
        """Seconds for which the micro-batch that is to run waits for its cluster, while another driver has begun; 0:
        none.
        """

    def worker_dies(self) -> bool:
        """Whether a worker dies in the micro-batch that runs, and the micro-batch with it."""

    def took(self) -> int:
        """How long the next thing takes, in microseconds."""

    def tell(self, text: str) -> None:
        """For the story."""


class Killed(Exception):
    """The driver's process is gone."""


@dataclass
class Driver(interfaces.Clock, interfaces.Cluster, interfaces.Sinks, interfaces.Watch):
    """A driver: what the real one has around it, and what it may not do.

    Attributes:
        name: for the story.
        job: what it runs, where.
        log: its hold on the job.
        blobs: its way to the store.
        cluster: where its micro-batches run.
        around: what it has around it.
        killed: it is dead.
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
        """Starts."""
        self._events: list[tuple[int, int, Event]] = []
        self._order = count()
        self._torn: set[bytes] = set()
        self._deaths: Counter[int] = Counter()
        # A micro-batch that waits for its cluster, and until when.
        self._stalled: tuple[Timestamp, TaskAssignment] | None = None
        self._broken_off = self._shut_down = self._prepared = self._must_know = False
        self._commits = LogCommits(self.log, self.job.layout, self.job.readers, self.warn, keep=self.keep)
        self._driver = JobDriver(self.machine, self._commits, self, self, self, self, self, sweep_every=2)
        self.tell_later(started(self.log.head, self.job.layout, self.around.now), 0)

    @property
    def end(self) -> End | None:
        """How it ended; None while it lives."""
        return self._driver.end

    @property
    def over(self) -> bool:
        """Whether it does nothing any more."""
        return self.killed or self.end is not None

    @property
    def ended_well(self) -> bool:
        """Whether the job is done, or drained."""
        return self.end is not None and self.end.state in (EndState.DONE, EndState.DRAINED)

    def next_at(self) -> Timestamp | None:
        """When something happens to it next; None if nothing does."""
        times = [Timestamp(self._events[0][0])] if self._events else []
        if self._driver.wake is not None:
            times.append(self._driver.wake)
        if self._stalled is not None:
            times.append(self._stalled[0])
        return min(times, default=None)

    def tell_later(self, event: Event, after: int) -> None:
        """Something happens to it after a while."""
        heapq.heappush(self._events, (self.around.now + after, next(self._order), event))

    def release(self, savepoint: str) -> None:
        """A savepoint's name is to be given up."""
        self._commits.release(savepoint)

    def advance(self) -> None:
        """Takes in what happens next, and carries out what follows."""
        now = self.around.now
        if self._stalled is not None and self._stalled[0] <= now:
            order, self._stalled = self._stalled[1], None
            self._run(order)
            return
        event = heapq.heappop(self._events)[2] if self._events and self._events[0][0] <= now else ClockAdvanced(now)
        open_to = self.machine.phase is Phase.RUNNING and self.machine.mode is Mode.RUNNING
        try:
            self._driver.handle(event)
        except Killed:
            self.killed = True
            self.around.tell(f"{self.name} is dead")
        if open_to and self.machine.mode is not _ASKED.get(type(event), self.machine.mode):
            raise Broken(f"{self.name} was asked to {type(event).__name__}, and is {self.machine.mode.value}")
        if isinstance(event, CommitDecided):
            if not self.killed:
                self.cluster.end_late()
            self.around.committed(self)

    def check_fenced(self, since: Timestamp) -> None:
        """It ends in time, if it was overtaken at that moment, and the store has kept its word since."""
        if self._may_go_on() and self.around.now - since > TAKEOVER_CHECKS:
            raise Broken(f"{self.name} does not know that another driver took the job over at {since}")

    def _may_go_on(self) -> bool:
        """Whether it does more than to end; not while only the store can tell how a proposal went."""
        return not self.over and self.machine.phase in (Phase.RUNNING, Phase.CLOSING) and self.log.pending is None

    # `Clock`, `Inbox`.

    @override
    def now(self) -> Timestamp:
        return self.around.now

    def put(self, event: Event) -> None:
        """See `seams.Inbox`: what the store has answered."""
        assert isinstance(event, Decision)
        if isinstance(event, DriverFailed):
            raise Broken(f"{self.name} cannot propose: {event.why}")
        self._decided(event, event.micro_batch)
        self._answer(event)

    def _decided(self, event: Event, micro_batch: int) -> None:
        conflict = self.log._conflict
        if isinstance(event, CommitConflicted | Overtaken) and conflict and conflict.found.epoch == self.log.epoch:
            raise Broken(f"{self.name} is fenced out by itself, at micro-batch {conflict.found.micro_batch}")
        self.around.outcome(type(event).__name__)
        self.around.tell(f"{self.name}: {type(event).__name__} (micro-batch {micro_batch})")

    def _answer(self, event: Event) -> None:
        self.tell_later(event, self.around.took())

    # `Watch`.

    def handled(self, event: Event, commands: Sequence[Command]) -> None:
        """See `seams.Watch`: nothing is committed, published or shut down behind an error; no whole micro-batch is
        refused.
        """
        self.machine.validate()
        if isinstance(event, Overtaken):
            self._decided(event, self.log.head.micro_batch + 1)
        if isinstance(event, _FAILED_TRIES) and self.around.is_overtaken(self) and self.log.pending is None:
            self._must_know = True
            if self._may_go_on():
                raise Broken(f"{self.name} tries again, and another driver has the job: {event}")
        self.around.handled(self, event, commands)
        reports = event.reports if isinstance(event, MicroBatchReported) else ()
        torn = bool(self._torn & {report.token for report in reports})
        for command in commands:
            if isinstance(command, Warn) and "is not consistent" in command.text and not torn:
                raise Broken(f"{self.name} refuses a micro-batch that is whole: {command.text}")
        if self._broken_off and any(
            isinstance(each, (Propose, Publish, RunMicroBatch, CallShutdown)) for each in commands
        ):
            raise Broken(f"{self.name} goes on behind its error: {commands}")
        self._broken_off |= self.machine.mode in (Mode.FAILING, Mode.CANCELLING)
        if self._broken_off and any(isinstance(each, (Propose, CallShutdown)) for each in commands):
            raise Broken(f"{self.name} commits behind its error: {commands}")

    @override
    def begins(self, command: Command) -> None:
        match command:
            case WaitUntil():
                return
            case Propose():
                if self._torn & {each.token for each in command.reports}:
                    raise Broken(f"micro-batch {command.micro_batch} was torn, and is proposed")
            case End(state, why):
                if state is EndState.FAILED and not any(reason in why for reason in _REASONS):
                    raise Broken(f"{self.name} fails: {why}")
                if state is EndState.FAILED and self._must_know and _OVERTAKEN not in why:
                    raise Broken(f"{self.name} does not name the driver that took the job over: {why}")
                if self._shut_down != (state in (EndState.DONE, EndState.DRAINED)):
                    raise Broken(
                        f"{self.name} is {state.value}, and shutdown was {'' if self._shut_down else 'not '}called"
                    )
        self.around.tell(f"{self.name}: {_told(command)}")
        self.around.before(self, command)

    def warn(self, text: str) -> None:
        """See `seams.Watch`: it is in the story as a command."""

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
            self.tell_later(
                MicroBatchFailed(self.around.now, plan.micro_batch, plan.attempt, outcome.why, outcome.again), took
            )
            return
        if outcome.torn:
            self._torn |= {report.token for report in outcome.reports}
        if self.around.gives_up():
            given_up = MicroBatchFailed(
                self.around.now, plan.micro_batch, plan.attempt, "it has not reported in time", True
            )
            self.tell_later(given_up, took)
            # When the pause before the next run is over.
            took += 100_000 + self.around.took()
        event = MicroBatchReported(self.around.now, plan.micro_batch, plan.attempt, Duration(took), outcome.reports)
        self.tell_later(event, took)
        if self.around.report_again():
            self.tell_later(event, took + 200_000)

    def _worker_died(self, plan: MicroBatchPlan) -> None:
        self._deaths[plan.micro_batch] += 1
        if self._deaths[plan.micro_batch] > _MOST_DEATHS:
            raise Broken(
                f"{self.name} runs micro-batch {plan.micro_batch} again, though a worker died in "
                f"{_MOST_DEATHS} runs of it"
            )
        self.around.tell(f"micro-batch {plan.micro_batch} failed: a worker died")
        failed = MicroBatchFailed(self.around.now, plan.micro_batch, plan.attempt, "a worker died", True, died=True)
        self.tell_later(failed, self.around.took())

    def abandon(self, micro_batch: int, attempt: int) -> None:
        """See `seams.Cluster`: what runs has run."""
        self._stalled = None

    @override
    def finalize(self, micro_batch: int, tokens: Sequence[bytes]) -> None:
        if not tokens:
            raise Broken(f"{self.name} finalizes micro-batch {micro_batch}, and nobody waits for it")
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


def _told(command: Command) -> str:
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
        case Publish(micro_batch, committables):
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
