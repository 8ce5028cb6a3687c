"""The driver of a job: it carries out the machine's commands, and no other code does.

Owns what each command means for commits, cluster and sinks; and when to check whether another driver has taken over the
job. Must not know when anything else happens (the machine does), nor what runs tasks and stores files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, assert_never

from arcbeam.engine.coordinator import (
    Abandon,
    CallShutdown,
    ClockAdvanced,
    Command,
    CommitDecided,
    CommitRefused,
    End,
    Event,
    Finalize,
    JobMachine,
    MicroBatchFailed,
    Overtaken,
    Phase,
    Propose,
    PublishCommittables,
    PublishFailed,
    ReadScript,
    Resolve,
    RunMicroBatch,
    TearDown,
    WaitUntil,
    Warn,
)
from arcbeam.model.timestamps import Duration, Timestamp, shifted
from arcbeam.sizes import threshold
from arcbeam.store.blobs.errors import StoreError
from arcbeam.streaming.driver.garbage import StateAside
from arcbeam.streaming.interfaces import Clock, Cluster, Commits, DriverObserver, Inbox, Scripted, Sinks, WaitingInbox

_SWEEP_EVERY = threshold(10)
"""The number of micro-batches between two sweeps: each lists the job's folder."""

TAKEOVER_CHECKS: Final = Duration(4_000_000)
"""The time between two checks for a takeover while nothing fails: each reads one name in the job's folder."""

_FAILED_TRIES = (MicroBatchFailed, PublishFailed, CommitRefused)
"""Events after which the machine retries."""


class JobDriver:
    """Drives a job with its machine. It has no thread and waits only for the store; events arrive one by one.

    The first event is `driverstate.started`. Then the caller passes every event of the inbox to `handle`, and a
    `ClockAdvanced` when the clock has reached `wake`, until there is an `end`.

    Args:
        machine: the machine of the job.
        commits: commits micro-batches.
        cluster: runs micro-batches.
        sinks: the destination of output.
        inbox: for immediate answers.
        clock: the time.
        watch: the observer of the driver.
        sweep_every: the number of micro-batches between two sweeps.
        script: the job's script, if it has one.
        takeover_checks: the time between two checks for a takeover.

    Attributes:
        end: how the job has ended; None while it runs.
    """

    def __init__(
        self,
        machine: JobMachine,
        commits: Commits,
        cluster: Cluster,
        sinks: Sinks,
        inbox: Inbox,
        clock: Clock,
        watch: DriverObserver,
        *,
        sweep_every: int = _SWEEP_EVERY,
        script: Scripted | None = None,
        takeover_checks: Duration = TAKEOVER_CHECKS,
    ) -> None:
        self.machine = machine
        self._commits, self._cluster, self._sinks = commits, cluster, sinks
        self._inbox, self._clock, self._watch = inbox, clock, watch
        self._sweep_every, self._script = sweep_every, script
        self._proposed: Propose | None = None
        self._aside = StateAside()
        self._takeover_checks = takeover_checks
        self._next_check = shifted(clock.now(), takeover_checks)
        # When the machine requested the time.
        self._wake: Timestamp | None = None
        self.end: End | None = None

    @property
    def wake(self) -> Timestamp | None:
        """When to call `handle` with a `ClockAdvanced`, if no event arrives before; None: wait for an event."""
        if not self._may_be_overtaken():
            return self._wake
        return self._next_check if self._wake is None else min(self._wake, self._next_check)

    def handle(self, event: Event) -> None:
        """Handle an event, and carry out the resulting commands.

        It first checks for a takeover, if the event is a failed try or the last check was a while ago. A fenced driver
        shares the copies of state on its host with the driver that took over, and these are newer. So its tasks fail
        before it proposes anything, and no conflict reveals the takeover.
        """
        # SUBTLE: the event contains the time when it happened, and has waited since. Its handling happens now.
        now = self._clock.now()
        if isinstance(event, _FAILED_TRIES) or now >= self._next_check:
            self._check_takeover(now)
        if isinstance(event, ClockAdvanced) and (self._wake is None or now < self._wake):
            return
        self._take_in(replace(event, at=now))

    def _may_be_overtaken(self) -> bool:
        return self.machine.phase in (Phase.RUNNING, Phase.CLOSING)

    def _check_takeover(self, now: Timestamp) -> None:
        self._next_check = shifted(now, self._takeover_checks)
        # SUBTLE: check before the event: otherwise the last of many failed tries would end the job with a wrong reason.
        if self._may_be_overtaken() and (other_driver := self._commits.overtaken()):
            self._take_in(Overtaken(now, other_driver))

    def _take_in(self, event: Event) -> None:
        if self._wake is not None and event.at >= self._wake:
            self._wake = None
        commands = self.machine.handle(event)
        self._watch.handled(event, commands)
        for command in commands:
            self._watch.begins(command)
            self._carry_out(command)
        if isinstance(event, CommitDecided):
            self._sweep(event.micro_batch)
            if self._proposed is not None:
                self._aside.committed(sum(len(report.stages) for report in self._proposed.reports))

    def close(self) -> None:
        """Release what the driver holds of this process. The last call."""
        self._aside.release()

    def _carry_out(self, command: Command) -> None:
        match command:
            case WaitUntil(moment):
                self._wake = moment
            case RunMicroBatch(plan):
                self._cluster.run(self._commits.order(plan))
            case Abandon(micro_batch, attempt):
                self._cluster.abandon(micro_batch, attempt)
            case ReadScript(number):
                assert self._script is not None, "the job has no script"
                self._script.read(number)
            case Propose():
                self._proposed = command
                self._inbox.put(self._commits.propose(command, self._clock.now()))
            case Resolve(micro_batch):
                self._inbox.put(self._commits.resolve(micro_batch, self._clock.now()))
            case PublishCommittables(micro_batch, committables):
                self._sinks.publish(micro_batch, self._commits.unpublished() if committables is None else committables)
            case Finalize(micro_batch):
                self._cluster.finalize(micro_batch, self._waiting_for(micro_batch))
            case CallShutdown(stages, deadline):
                self._cluster.shut_down(stages, deadline)
            case TearDown(stages, deadline):
                self._cluster.tear_down(stages, deadline)
            case Warn(text):
                self._watch.warn(text)
            case End():
                self.end = command
            case _:
                assert_never(command)

    def _waiting_for(self, micro_batch: int) -> list[bytes]:
        """Return the attempts of a micro-batch that was just committed that have bundles to finalize."""
        assert self._proposed is not None
        assert self._proposed.micro_batch == micro_batch
        return [report.token for report in self._proposed.reports if report.finalizations]

    def _sweep(self, micro_batch: int) -> None:
        """Sweep periodically, but not when a job ends: that should not take longer."""
        if self.machine.phase is not Phase.RUNNING or micro_batch % self._sweep_every:
            return
        try:
            self._watch.swept(self._commits.sweep())
        except StoreError as e:
            self._watch.swept(e)


def drive(
    driver: JobDriver, inbox: WaitingInbox, clock: Clock, continues: Callable[[], bool] = lambda: True
) -> End | None:
    """Pass all events to a driver, until the job has ended, and close it; return None if the job has not ended.

    Args:
        driver: the driver of the job.
        inbox: the driver's inbox.
        clock: the driver's clock.
        continues: is called before each event; if it returns false, the loop ends.
    """
    try:
        while driver.end is None and continues():
            driver.handle(inbox.next(driver.wake) or ClockAdvanced(clock.now()))
    finally:
        driver.close()
    return driver.end
