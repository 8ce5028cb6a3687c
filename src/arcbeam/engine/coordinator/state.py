"""What a job's machine knows between two events.

Owns its attributes, what always holds of each, and the check of that. Must not know what an event does to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from arcbeam.engine.coordinator.commands import Command, End, Propose, Publish, Resolve, Warn
from arcbeam.engine.coordinator.consistentcut import Places
from arcbeam.engine.coordinator.inflight import Cut, Head, Proposal
from arcbeam.engine.coordinator.scriptplace import AT_BEGINNING, ScriptPlace
from arcbeam.engine.coordinator.settings import Settings
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import Watermarks
from arcbeam.model.commits import name_change
from arcbeam.model.script import ScriptEvent
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp, shifted


class Mode(Enum):
    """What the job is heading for."""

    RUNNING = "running"
    DRAINING = "draining"
    SUSPENDING = "suspending"
    CANCELLING = "cancelling"
    FAILING = "failing"


class Phase(Enum):
    """How far the job has come."""

    NEW = "new"
    RUNNING = "stepping"
    CLOSING = "closing"
    """The last commit is made; it is published."""
    SHUTTING_DOWN = "shutting down"
    TEARING_DOWN = "tearing down"
    ENDED = "ended"


Retried = Propose | Resolve | Publish
"""Commands that are given again after a pause."""


@dataclass(slots=True)
class JobState:
    """What the machine of one job knows. What stands above an attribute holds between any two events."""

    layout: Layout
    settings: Settings

    # The latest time that was told. Never goes back.
    now: Timestamp = MIN_TIMESTAMP
    # CANCELLING and FAILING are never left, and only for these two is DRAINING or SUSPENDING left.
    mode: Mode = Mode.RUNNING
    # Only moves forward.
    phase: Phase = Phase.NEW
    # What is real. None exactly in phase NEW, or if the job ended from there. Its micro-batch, time and times only
    # grow.
    head: Head | None = None

    # Of what is in flight, at most one is there: a micro-batch that runs, one that has run and is consistent, or a
    # proposal. All of the micro-batch after the head. None behind phase STEPPING, but for a proposal that was open when
    # the job was cancelled or failed: its outcome changes the head, and has no other effect.
    running: MicroBatchPlan | None = None
    cut: Cut | None = None
    proposal: Proposal | None = None
    # Whether nothing that the running micro-batch does had to wait for the clock. Of a micro-batch that runs.
    prompt: bool = False
    # Runs of the micro-batch after the head that failed, and so the number of the next run. 0 after each commit.
    attempt: int = 0

    # What all shards said in the newest micro-batch of this driver, and where its watermarks are; None before that. The
    # watermarks are the head's.
    places: Places | None = None
    marks: Watermarks | None = None
    # The side inputs that this micro-batch has added to.
    side: frozenset[Port] = frozenset()
    # Sources with which no micro-batch was committed. None behind the first micro-batch that this driver has committed.
    unbegun: frozenset[str] = frozenset()
    # A micro-batch that truncates was committed. Not if the job is just running.
    drained: bool = False
    # How far the head is in the job's script; never further without one. What is next in it, if that is known, and
    # whether it was asked for: one of both at most, and neither behind the script's end.
    script: ScriptPlace = AT_BEGINNING
    event: ScriptEvent | None = None
    asked: bool = False
    # The stages that have prepared to shut down in a micro-batch that this driver has committed.
    prepared: frozenset[str] = frozenset()
    # When people are told of a running micro-batch in which stages prepare that it takes long; None if they were.
    slow_at: Timestamp | None = None
    # Committed micro-batches in a row that got nowhere, none of which had to wait for the clock.
    fruitless: int = 0

    # What is being published: of the head, or a micro-batch before it. None behind phase CLOSING.
    publishing: Publish | None = None
    # What the head has for sinks is not published, and cannot be here: the next commit has it, and no micro-batch.
    owes: bool = False
    # The micro-batch whose bundles are being told; the head's or an earlier one. None behind phase CLOSING.
    finalizing: int | None = None
    # Names for the next commit, and changes of names (see `name_change`), none behind phase STEPPING; and a name
    # for the last one, if the job is drained or suspended.
    savepoints: list[str] = field(default_factory=list)
    last_savepoint: str = ""
    # Names that this driver has committed, and not given up since.
    made: set[str] = field(default_factory=set)

    # Failures in a row, by the command that failed: forgotten when one succeeds. Never more than are allowed, while the
    # job goes on; but asking for an unknown outcome may fail for ever.
    failures: dict[type[Command], int] = field(default_factory=dict)
    # Runs of the micro-batch after the head in which a worker died. 0 once it has reported. Never more than are
    # allowed, while the job goes on.
    deaths: int = 0
    # What is given again, and when: at most one about the commit, while there is a proposal; and one about publishing,
    # while something is being published. Empty behind phase CLOSING.
    later: list[tuple[Timestamp, Retried]] = field(default_factory=list)
    # No micro-batch begins before.
    not_before: Timestamp = MIN_TIMESTAMP
    # Nobody waits longer for the end's next answer. There exactly from phase CLOSING until the end.
    deadline: Timestamp | None = None
    # How the job will end. There exactly from phase CLOSING on.
    end: End | None = None

    # The last WaitUntil that still counts, None if there is none: always ahead. And, while an event is handled, what is
    # wanted.
    waits_until: Timestamp | None = None
    wanted: Timestamp | None = None
    # What the event that is handled has led to so far.
    out: list[Command] = field(default_factory=list)

    # What people were told of restrictions, by stage: nothing twice.
    warned_of: set[tuple[str, str]] = field(default_factory=set)

    # What all parts of the machine do.

    def time(self, head: Head) -> Timestamp:
        """What the job's clock shows: in a job with a script, only that moves it, and where it is is recorded."""
        return head.time if self.layout.scripted else max(self.now, head.time)

    def asked_for(self) -> list[str]:
        """The savepoints that were asked for and are not made, with that of the last commit; each once."""
        last = [self.last_savepoint] if self.last_savepoint and self.phase in (Phase.NEW, Phase.RUNNING) else []
        return list(dict.fromkeys([*self.savepoints, *last]))

    def given(self) -> set[str]:
        """The names that are a micro-batch's, or the next ones': no later one can get them."""
        wishes = *self.savepoints, *(self.proposal.command.savepoints if self.proposal else ())
        return {*self.made, *(name_change(wish)[1] for wish in wishes)} - {""}

    def ask(self, command: Command) -> None:
        """Wants something done."""
        self.out.append(command)

    def warn(self, text: str) -> None:
        """Wants people told."""
        self.out.append(Warn(text))

    def clock(self, cut: Cut | None) -> Timestamp:
        """What time it is to what a micro-batch has left: a script has a clock of its own."""
        return cut.plan.time if cut and self.layout.scripted else self.now

    def wait(self, moment: Timestamp) -> None:
        """Wants to be told when the clock has come to that moment."""
        self.wanted = moment if self.wanted is None else min(self.wanted, moment)

    def give_later(self, command: Retried, failures: int) -> None:
        """Gives a command after the pause that so many failures call for."""
        self.later.append((shifted(self.now, self.settings.retry.pause(failures)), command))

    def set_deadline(self) -> None:
        """Gives the end's next answer as much time as it may take."""
        self.deadline = shifted(self.now, self.settings.grace)

    def validate(self) -> None:
        """Checks what is said of the attributes; AssertionError if it does not hold."""
        self._validate_flight()
        self._validate_end()
        assert (self.places is None) == (self.marks is None), "watermarks without reports"
        if self.marks and self.head:
            assert self.marks.times() == self.head.times, "the watermarks are not the head's"
        if self.publishing:
            assert self.head is not None, "nothing is real, and is published"
            assert self.publishing.micro_batch <= self.head.micro_batch, "what is not real is published"
        assert self.finalizing is None or self.head is not None, "nothing is real, and is finalized"
        assert not self.owes or self.publishing is None, "it is published, and cannot be"
        commits = [command for _, command in self.later if not isinstance(command, Publish)]
        publishes = [command for _, command in self.later if isinstance(command, Publish)]
        assert len(commits) <= (self.proposal is not None), "a commit is tried again that is not open"
        assert publishes in ([], [self.publishing]), "something is published again that is published"
        assert not self.drained or self.mode is not Mode.RUNNING, "truncated, and running"
        assert self.waits_until is None or self.waits_until > self.now, "it waits for what has been"
        allowed = self.settings.retry.times
        if self.phase in (Phase.NEW, Phase.RUNNING, Phase.CLOSING):
            assert all(each is Resolve or tries <= allowed for each, tries in self.failures.items()), "not given up"
            assert self.deaths <= self.settings.deaths.times, "workers die, and it is not given up"
        assert not (self.asked and self.event), "an event is there, and asked for"
        unread = self.event is None and not self.asked
        assert unread or not self.script.over, "more is to come behind the end"
        assert self.layout.scripted or (unread and self.script == AT_BEGINNING), "a script that is not there"
        assert not self.unbegun or self.places is None, "a micro-batch was committed, and its sources have not begun"

    def _validate_flight(self) -> None:
        ending = self.mode in (Mode.CANCELLING, Mode.FAILING)
        flight = (
            self.running and self.running.micro_batch,
            self.cut and self.cut.plan.micro_batch,
            self.proposal and self.proposal.command.micro_batch,
        )
        micro_batches = [micro_batch for micro_batch in flight if micro_batch is not None]
        assert len(micro_batches) <= 1, "two in flight"
        if self.head is None:
            assert self.phase is Phase.NEW or ending, "a job without a head goes on"
            assert not micro_batches, "a micro-batch stands on nothing"
        else:
            assert self.phase is not Phase.NEW, "a job with a head has not begun"
            assert all(micro_batch == self.head.micro_batch + 1 for micro_batch in micro_batches), (
                f"micro-batches {micro_batches} stand on micro-batch {self.head.micro_batch}"
            )
        if self.phase not in (Phase.NEW, Phase.RUNNING):
            assert not self.savepoints, "a savepoint was asked for, and neither made nor told"
        if self.phase is not Phase.RUNNING:
            assert self.running is None, "a micro-batch runs, but not while it should"
            assert self.cut is None, "a micro-batch waits, but not while it should"
            assert self.proposal is None or ending, "a proposal behind the last commit"
        assert self.running is None or self.running.attempt == self.attempt, "runs are counted wrong"

    def _validate_end(self) -> None:
        closed = self.phase in (Phase.CLOSING, Phase.SHUTTING_DOWN, Phase.TEARING_DOWN)
        assert (self.deadline is not None) == closed, "a deadline that is not the end's"
        assert (self.end is not None) == (closed or self.phase is Phase.ENDED), "an end that is not decided"
        if self.phase not in (Phase.RUNNING, Phase.CLOSING):
            assert self.publishing is None, "something is published, but not while it should"
            assert self.finalizing is None, "something is finalized, but not while it should"
            assert not self.later, "something is tried again, but not while it should"
