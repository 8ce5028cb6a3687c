"""One driver of a simulated job: the real machine and the real log, and its commands carried out at once.

Owns the order of a driver's events. What the world decides (faults, requests, other drivers) it asks for. Must not know
what happens to it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from arcbeam.engine.plan.reports import Committable
from arcbeam.engine.plan.stepplan import StepPlan
from arcbeam.engine.progress import (
    Abandon,
    CallShutdown,
    CancelRequested,
    ClockTold,
    Command,
    CommitConflicted,
    CommitDecided,
    CommitRefused,
    CommitUnknown,
    DrainRequested,
    End,
    EndState,
    Event,
    Finalize,
    Finalized,
    JobMachine,
    Mode,
    Phase,
    Propose,
    Publish,
    Published,
    PublishFailed,
    Resolve,
    RunStep,
    ShutDown,
    StepFailed,
    StepReported,
    SuspendRequested,
    TearDown,
    TornDown,
    WaitUntil,
    Warn,
)
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.store.blobs.errors import DeterminateError, FencedError, IndeterminateError, MissingFileError
from arcbeam.store.log.savepoints import unpinned
from arcbeam.store.log.steplog import Committed, Conflict, StepLog, Unknown
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest import values as stored
from arcbeam.testing.faults import UnreliableBlobs
from arcbeam.testing.simulate.judging.records import Broken
from arcbeam.testing.simulate.playing.cluster import USER_ERROR, Cluster, Outcome
from arcbeam.testing.simulate.playing.jobs import Job
from arcbeam.testing.simulate.playing.proposals import draft, started

_REASONS = ("took the job over", "in a row", USER_ERROR)
"""Why a job may fail."""
_ASKED = {
    DrainRequested: Mode.DRAINING,
    SuspendRequested: Mode.SUSPENDING,
    CancelRequested: Mode.CANCELLING,
}
"""What a job that is running is heading for when it was asked."""


class Surroundings(Protocol):
    """What a driver has around it."""

    now: Timestamp

    def before(self, driver: Driver, command: Command) -> None:
        """A command is about to be carried out. `Killed` may come out of it."""

    def handled(self, driver: Driver, event: Event, commands: list[Command]) -> None:
        """An event was taken in, and that is what is to be done."""

    def publish(self, ids: list[bytes]) -> bool:
        """Publishes parts; whether it went well."""

    def committed(self, driver: Driver) -> None:
        """A driver was told that a step is real."""

    def outcome(self, name: str) -> None:
        """The store has answered a proposal."""

    def swept(self) -> None:
        """Files were removed."""

    def report_again(self) -> bool:
        """Whether the report of the step that runs comes a second time, later."""

    def gives_up(self) -> bool:
        """Whether nobody waits for the step that runs, though it will report."""

    def took(self) -> int:
        """How long the next thing takes, in microseconds."""

    def tell(self, text: str) -> None:
        """For the story."""


class Killed(Exception):
    """The driver's process is gone."""


@dataclass
class Driver:
    """A driver.

    Attributes:
        name: for the story.
        job: what it runs, where.
        log: its hold on the job.
        blobs: its way to the store.
        cluster: where its steps run.
        around: what it has around it.
        end: how it ended; None while it lives.
        killed: it is dead.
    """

    name: str
    job: Job
    log: StepLog
    blobs: UnreliableBlobs
    cluster: Cluster
    around: Surroundings
    machine: JobMachine
    keep: int
    end: End | None = None
    killed: bool = False

    def __post_init__(self) -> None:
        """Starts."""
        self._events: list[tuple[int, int, Event]] = []
        self._order = count()
        self._wake: Timestamp | None = None
        self._sweeper = Sweeper(self.log, keep=self.keep)
        self._torn: set[bytes] = set()
        self._released: list[str] = []
        self._broken_off = self._shut_down = self._prepared = False
        self.tell_later(started(self.log.head, self.around.now), 0)

    @property
    def over(self) -> bool:
        """Whether it does nothing any more."""
        return self.killed or self.end is not None

    def next_at(self) -> Timestamp | None:
        """When something happens to it next; None if nothing does."""
        times = [Timestamp(self._events[0][0])] if self._events else []
        if self._wake is not None:
            times.append(self._wake)
        return min(times, default=None)

    def tell_later(self, event: Event, after: int) -> None:
        """Something happens to it after a while."""
        heapq.heappush(self._events, (self.around.now + after, next(self._order), event))

    def release(self, savepoint: str) -> None:
        """A savepoint's name is to be given up, with a commit of its own when there is room for one."""
        self._released.append(savepoint)

    def advance(self) -> None:
        """Takes in what happens next, and carries out what follows."""
        now = self.around.now
        if self._events and self._events[0][0] <= now:
            event = heapq.heappop(self._events)[2]
        else:
            assert self._wake is not None
            self._wake, event = None, ClockTold(now)
        # SUBTLE: an event says when it happened, and the clock has gone on since.
        open_to = self.machine.phase is Phase.STEPPING and self.machine.mode is Mode.RUNNING
        commands = self.machine.handle(_at(event, now))
        self.machine.validate()
        self.around.handled(self, event, commands)
        if open_to and self.machine.mode is not _ASKED.get(type(event), self.machine.mode):
            raise Broken(f"{self.name} was asked to {type(event).__name__}, and is {self.machine.mode.value}")
        reports = event.reports if isinstance(event, StepReported) else ()
        self._check(commands, bool(self._torn & {report.token for report in reports}))
        decided = isinstance(event, CommitDecided)
        try:
            for command in commands:
                if not isinstance(command, WaitUntil):
                    self.around.tell(f"{self.name}: {_told(command)}")
                    self.around.before(self, command)
                self._carry_out(command)
            if decided:
                self._tidy_up()
                self.cluster.end_late()
        except Killed:
            self.killed = True
            self.around.tell(f"{self.name} is dead")
        if decided:
            self.around.committed(self)

    def _check(self, commands: list[Command], torn: bool) -> None:
        """Nothing is committed, published or shut down behind an error; and no step is refused that is whole."""
        for command in commands:
            if isinstance(command, Warn) and "is not consistent" in command.text and not torn:
                raise Broken(f"{self.name} refuses a step that is whole: {command.text}")
        if self._broken_off and any(isinstance(each, (Propose, Publish, RunStep, CallShutdown)) for each in commands):
            raise Broken(f"{self.name} goes on behind its error: {commands}")
        self._broken_off |= self.machine.mode in (Mode.FAILING, Mode.CANCELLING)
        if self._broken_off and any(isinstance(each, (Propose, CallShutdown)) for each in commands):
            raise Broken(f"{self.name} commits behind its error: {commands}")

    def _carry_out(self, command: Command) -> None:
        match command:
            case WaitUntil(moment):
                self._wake = moment
            case RunStep(plan):
                self._run(plan)
            case Propose():
                self._propose(command)
            case Resolve(step):
                self._outcome(step, self.log.resolve)
            case Publish(step, committables):
                self._publish(step, committables)
            case Finalize(step):
                self._answer(lambda at: Finalized(at, step))
            case CallShutdown():
                self._shut_down = True
                self._answer(lambda at: ShutDown(at))
            case TearDown():
                self._answer(lambda at: TornDown(at))
            case End(state, why):
                if state is EndState.FAILED and not any(reason in why for reason in _REASONS):
                    raise Broken(f"{self.name} fails: {why}")
                if self._shut_down != (state in (EndState.DONE, EndState.DRAINED)):
                    raise Broken(
                        f"{self.name} is {state.value}, and shutdown was {'' if self._shut_down else 'not '}called"
                    )
                self.end = command
            case Abandon() | Warn():
                pass

    def _answer(self, event: Callable[[Timestamp], Event]) -> None:
        self.tell_later(event(self.around.now), self.around.took())

    def _run(self, plan: StepPlan) -> None:
        head = self.log.head
        if plan.head != head.step:
            raise Broken(f"{self.name} runs step {plan.step} on {plan.head}; the head is {head.step}")
        if self._prepared and not plan.prepare:
            self.around.outcome("preparing made new work")
        self._prepared = plan.prepare
        outcome: Outcome = self.cluster.run(self.job, head, plan)
        took = self.around.took()
        if outcome.why:
            self.around.tell(f"step {plan.step} failed: {outcome.why}")
            self.tell_later(StepFailed(self.around.now, plan.step, plan.attempt, outcome.why, outcome.again), took)
            return
        if outcome.torn:
            self._torn |= {report.token for report in outcome.reports}
        if self.around.gives_up():
            given_up = StepFailed(self.around.now, plan.step, plan.attempt, "it has not reported in time", True)
            self.tell_later(given_up, took)
            # When the pause before the next run is over.
            took += 100_000 + self.around.took()
        event = StepReported(self.around.now, plan.step, plan.attempt, Duration(took), outcome.reports)
        self.tell_later(event, took)
        if self.around.report_again():
            self.tell_later(event, took + 200_000)

    def _propose(self, command: Propose) -> None:
        if self._torn & {each.token for each in command.reports}:
            raise Broken(f"step {command.step} was torn, and is proposed")
        manifest = draft(self.log, self.job.layout, command)
        for name in self._released:
            if manifest.pin(name) is not None and manifest.pin(name) in self.log.head.pins:
                manifest = unpinned(manifest, name)
        self._outcome(command.step, lambda: self.log.propose(manifest))

    def _outcome(self, step: int, ask: Callable[[], object]) -> None:
        now = self.around.now
        event: Event
        try:
            match ask():
                case Committed():
                    event = CommitDecided(now, step)
                case Conflict(found):
                    if found.epoch == self.log.epoch:
                        raise Broken(f"{self.name} is fenced out by itself, at step {found.step}")
                    event = CommitConflicted(now, step, str(self.log.fenced()))
                case Unknown(_, error):
                    event = CommitUnknown(now, step, str(error))
                case other:
                    raise Broken(f"no outcome: {other}")
        except FencedError as e:
            event = CommitConflicted(now, step, str(e))
        except DeterminateError as e:
            event = CommitRefused(now, step, str(e))
        self.around.outcome(type(event).__name__)
        self.around.tell(f"{self.name}: {type(event).__name__} (step {step})")
        self.tell_later(event, self.around.took())

    def _publish(self, step: int, committables: tuple[Committable, ...] | None) -> None:
        each: tuple[Committable, ...] | tuple[stored.Committable, ...] = committables or ()
        if committables is None:
            each = self.log.head.committables
        if self.around.publish([committable.payload for committable in each]):
            self._answer(lambda at: Published(at, step))
        else:
            self._answer(lambda at: PublishFailed(at, step, "the sink does not answer"))

    def _tidy_up(self) -> None:
        """Sweeps now and then."""
        if self.machine.phase is not Phase.STEPPING or self.log.head.step % 2:
            return
        try:
            swept = self._sweeper.sweep()
        except (IndeterminateError, DeterminateError, MissingFileError) as e:
            self.around.tell(f"{self.name} could not sweep: {e}")
        else:
            if swept.files or swept.manifests:
                self.around.tell(f"{self.name} swept {len(swept.files)} files, {len(swept.manifests)} manifests")
        self.around.swept()

    @property
    def ended_well(self) -> bool:
        """Whether the job is done, or drained."""
        return self.end is not None and self.end.state in (EndState.DONE, EndState.DRAINED)


def _at(event: Event, now: Timestamp) -> Event:
    return type(event)(now, *(getattr(event, name) for name in event.__slots__ if name != "at"))


def _told(command: Command) -> str:
    match command:
        case RunStep(plan):
            marks = [
                text
                for text, is_so in (("initial", plan.initial), ("drain", plan.drain), ("prepare", plan.prepare))
                if is_so
            ]
            return f"runs step {plan.step}, run {plan.attempt} at {plan.time} {' '.join(marks)}"
        case Propose():
            return f"proposes step {command.step} ({command.mode.value}) {' '.join(command.savepoints)}"
        case Publish(step, committables):
            return f"publishes step {step}: {'what the head has' if committables is None else len(committables)}"
        case End(state, why):
            return f"ends: {state.value} {why}"
        case Warn(text):
            return f"warns: {text}"
        case _:
            return type(command).__name__
