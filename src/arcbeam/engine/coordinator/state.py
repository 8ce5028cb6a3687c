"""The state of a job's machine between two events.

Owns its attributes, their invariants, and the check of these. Must not know how events change them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from arcbeam.engine.coordinator.commands import Command, End, Propose, PublishCommittables, Resolve, Warn
from arcbeam.engine.coordinator.consistentcut import ShardReports
from arcbeam.engine.coordinator.inflight import Cut, Head, Proposal
from arcbeam.engine.coordinator.scriptplace import AT_BEGINNING, ScriptPlace
from arcbeam.engine.coordinator.settings import CoordinatorSettings
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import Watermarks
from arcbeam.model.commits import name_change
from arcbeam.model.script import ScriptEvent
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp, shifted


class Mode(Enum):
    """The aim of the job."""

    RUNNING = "running"
    DRAINING = "draining"
    SUSPENDING = "suspending"
    CANCELLING = "cancelling"
    FAILING = "failing"


class Phase(Enum):
    """The progress of the job."""

    NEW = "new"
    RUNNING = "running"
    CLOSING = "closing"
    """The last commit is made; its committables are being published."""
    SHUTTING_DOWN = "shutting down"
    TEARING_DOWN = "tearing down"
    ENDED = "ended"


Retried = Propose | Resolve | PublishCommittables
"""Commands that are repeated after a pause."""


@dataclass(slots=True)
class MachineState:
    """The state of one job's machine. The comment above an attribute states what holds between any two events."""

    layout: Layout
    settings: CoordinatorSettings

    # The latest time of an event. Never decreases.
    now: Timestamp = MIN_TIMESTAMP
    # CANCELLING and FAILING are never left, and only for these two is DRAINING or SUSPENDING left.
    mode: Mode = Mode.RUNNING
    # Only moves forward.
    phase: Phase = Phase.NEW
    # The newest commit. None exactly in phase NEW, or if the job ended from there. Its micro-batch, time and times only
    # grow.
    head: Head | None = None

    # At most one of these exists: a running micro-batch, a consistent one that has run, or a proposal. Each is the
    # micro-batch after the head. None exists after phase RUNNING, with one exception: a proposal that was open when the
    # job was cancelled or failed. Its outcome changes the head and has no other effect.
    running: MicroBatchPlan | None = None
    cut: Cut | None = None
    proposal: Proposal | None = None
    # Whether nothing in the running micro-batch had to wait for the clock. Only valid while a micro-batch runs.
    prompt: bool = False
    # The number of failed runs of the micro-batch after the head, which is the number of the next run. 0 after each
    # commit.
    attempt: int = 0

    # The reports of all shards in this driver's newest micro-batch, and the watermarks that follow from them. None
    # before the first. The watermarks are the head's.
    places: ShardReports | None = None
    marks: Watermarks | None = None
    # The side inputs that this micro-batch has added to.
    side: frozenset[Port] = frozenset()
    # Sources that no committed micro-batch contains. Empty after the first commit of this driver with a micro-batch.
    unbegun: frozenset[str] = frozenset()
    # A micro-batch that truncates restrictions was committed. Never in mode RUNNING.
    drained: bool = False
    # The head's position in the job's script; it stays at the beginning if there is no script. Then the next event, if
    # known, and whether it was requested. Never both, and neither after the script's end.
    script: ScriptPlace = AT_BEGINNING
    event: ScriptEvent | None = None
    script_requested: bool = False
    # The stages that have prepared to shut down in a micro-batch that this driver has committed.
    prepared: frozenset[str] = frozenset()
    # When to warn that a running micro-batch in which stages prepare takes long. None after the warning.
    slow_at: Timestamp | None = None
    # The number of committed micro-batches in a row without progress, none of which had to wait for the clock.
    fruitless: int = 0

    # What is being published: committables of the head or of an earlier micro-batch. None after phase CLOSING.
    publishing: PublishCommittables | None = None
    # The head's committables are not published, and this driver cannot publish them. The next commit contains them, and
    # no micro-batch.
    carries_unpublished: bool = False
    # The micro-batch whose bundles are being finalized: the head or an earlier one. None after phase CLOSING.
    finalizing: int | None = None
    # Names for the next commit, and changes of names (see `name_change`). Empty after phase RUNNING. Then the name of
    # the last commit, if the job is drained or suspended.
    savepoints: list[str] = field(default_factory=list)
    last_savepoint: str = ""
    # Names that this driver has committed and not deleted since.
    made: set[str] = field(default_factory=set)

    # Failures in a row, by the failed command; a success resets its count. Never more than allowed while the job runs,
    # but a request for an unknown outcome may fail without limit.
    failures: dict[type[Command], int] = field(default_factory=dict)
    # Runs of the micro-batch after the head in which a worker died. 0 once it has reported. Never more than allowed
    # while the job runs.
    deaths: int = 0
    # Commands to repeat, and when. At most one concerns the commit, while there is a proposal, and one publishing,
    # while something is being published. Empty after phase CLOSING.
    later: list[tuple[Timestamp, Retried]] = field(default_factory=list)
    # No micro-batch begins before this time.
    not_before: Timestamp = MIN_TIMESTAMP
    # The time limit of the ending's next answer. Set exactly from phase CLOSING until the end.
    deadline: Timestamp | None = None
    # How the job will end. Set exactly from phase CLOSING on.
    end: End | None = None

    # The valid WaitUntil, None if there is none; always in the future. While an event is handled: the wanted one.
    waits_until: Timestamp | None = None
    wanted: Timestamp | None = None
    # The commands that the current event has caused so far.
    out: list[Command] = field(default_factory=list)

    # The warnings about restrictions already issued, by stage: none is issued twice.
    warned_of: set[tuple[str, str]] = field(default_factory=set)

    # Helpers for all parts of the machine.

    def time(self, head: Head) -> Timestamp:
        """Return the job's clock. Only a script moves the clock of a job that has one; its commits record it."""
        return head.time if self.layout.scripted else max(self.now, head.time)

    def requested_savepoints(self) -> list[str]:
        """Return the requested savepoints not yet made, each once; that of the last commit is included."""
        last = [self.last_savepoint] if self.last_savepoint and self.phase in (Phase.NEW, Phase.RUNNING) else []
        return list(dict.fromkeys([*self.savepoints, *last]))

    def taken_names(self) -> set[str]:
        """Return the names that a micro-batch has, or that the next commits will have. No later one can get them."""
        changes = *self.savepoints, *(self.proposal.command.savepoints if self.proposal else ())
        return {*self.made, *(name_change(change)[1] for change in changes)} - {""}

    def issue(self, command: Command) -> None:
        """Issue a command."""
        self.out.append(command)

    def warn(self, text: str) -> None:
        """Issue a warning for the user."""
        self.out.append(Warn(text))

    def clock(self, cut: Cut | None) -> Timestamp:
        """Return the processing time for the work that a micro-batch has left: a script has its own clock."""
        return cut.plan.time if cut and self.layout.scripted else self.now

    def wait(self, moment: Timestamp) -> None:
        """Request `ClockAdvanced` at that moment."""
        self.wanted = moment if self.wanted is None else min(self.wanted, moment)

    def retry_later(self, command: Retried, failures: int) -> None:
        """Issue a command after the pause that this many failures require."""
        self.later.append((shifted(self.now, self.settings.retry.pause(failures)), command))

    def set_deadline(self) -> None:
        """Set the time limit of the ending's next answer."""
        self.deadline = shifted(self.now, self.settings.grace)

    def validate(self) -> None:
        """Check the invariants of the attributes; AssertionError if one does not hold."""
        self._validate_flight()
        self._validate_end()
        assert (self.places is None) == (self.marks is None), "watermarks without reports"
        if self.marks and self.head:
            assert self.marks.times() == self.head.times, "the watermarks are not the head's"
        if self.publishing:
            assert self.head is not None, "publishing without a head"
            assert self.publishing.micro_batch <= self.head.micro_batch, "publishing a micro-batch after the head"
        assert self.finalizing is None or self.head is not None, "finalizing without a head"
        assert not self.carries_unpublished or self.publishing is None, "publishing, but it cannot publish"
        commits = [command for _, command in self.later if not isinstance(command, PublishCommittables)]
        publishes = [command for _, command in self.later if isinstance(command, PublishCommittables)]
        assert len(commits) <= (self.proposal is not None), "a commit is retried without an open proposal"
        assert publishes in ([], [self.publishing]), "a retry publishes what is not being published"
        assert not self.drained or self.mode is not Mode.RUNNING, "restrictions are truncated in mode RUNNING"
        assert self.waits_until is None or self.waits_until > self.now, "it waits for a moment in the past"
        allowed = self.settings.retry.times
        if self.phase in (Phase.NEW, Phase.RUNNING, Phase.CLOSING):
            assert all(each is Resolve or tries <= allowed for each, tries in self.failures.items()), "many failures"
            assert self.deaths <= self.settings.deaths.times, "too many deaths of workers"
        assert not (self.script_requested and self.event), "an event of the script is known and requested"
        unread = self.event is None and not self.script_requested
        assert unread or not self.script.over, "an event after the script's end"
        assert self.layout.scripted or (unread and self.script == AT_BEGINNING), "an event without a script"
        assert not self.unbegun or self.places is None, "a micro-batch is committed, but sources have not begun"

    def _validate_flight(self) -> None:
        ending = self.mode in (Mode.CANCELLING, Mode.FAILING)
        flight = (
            self.running and self.running.micro_batch,
            self.cut and self.cut.plan.micro_batch,
            self.proposal and self.proposal.command.micro_batch,
        )
        micro_batches = [micro_batch for micro_batch in flight if micro_batch is not None]
        assert len(micro_batches) <= 1, "two micro-batches in flight"
        if self.head is None:
            assert self.phase is Phase.NEW or ending, "a job runs without a head"
            assert not micro_batches, "a micro-batch without a head"
        else:
            assert self.phase is not Phase.NEW, "a job with a head is in phase NEW"
            assert all(micro_batch == self.head.micro_batch + 1 for micro_batch in micro_batches), (
                f"micro-batches {micro_batches} do not follow the head, {self.head.micro_batch}"
            )
        if self.phase not in (Phase.NEW, Phase.RUNNING):
            assert not self.savepoints, "a requested savepoint is neither made nor reported as not made"
        if self.phase is not Phase.RUNNING:
            assert self.running is None, "a micro-batch runs after phase RUNNING"
            assert self.cut is None, "a micro-batch waits for its commit after phase RUNNING"
            assert self.proposal is None or ending, "a proposal after the last commit"
        assert self.running is None or self.running.attempt == self.attempt, "runs are counted wrong"

    def _validate_end(self) -> None:
        closed = self.phase in (Phase.CLOSING, Phase.SHUTTING_DOWN, Phase.TEARING_DOWN)
        assert (self.deadline is not None) == closed, "the deadline does not fit the phase"
        assert (self.end is not None) == (closed or self.phase is Phase.ENDED), "the end does not fit the phase"
        if self.phase not in (Phase.RUNNING, Phase.CLOSING):
            assert self.publishing is None, "publishing after phase CLOSING"
            assert self.finalizing is None, "finalizing after phase CLOSING"
            assert not self.later, "retries after phase CLOSING"
