"""In any order of events, the machine keeps its invariants and its guarantees about the end of a job."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from arcbeam.engine.coordinator import (
    CallShutdown,
    ClockAdvanced,
    End,
    EndState,
    Mode,
    Phase,
    Propose,
    PublishCommittables,
    Resolve,
    RunMicroBatch,
    TearDown,
    WaitUntil,
)
from arcbeam.model.commits import CommitMode, Committable
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from tests.engine.coordinator.script import Driver, blocked, nothing_left, reported, source

_REPORTS = st.sampled_from(["more", "the same", "soon", "later", "nothing", "blocked"])


class JobWorld(RuleBasedStateMachine):
    """The machine's environment: it answers each command once, at any time, with any outcome."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.open: dict[type, object] = {}  # unanswered commands, by kind
        self.woken: Timestamp | None = None
        self.before = (0, Mode.RUNNING, -1)
        self.real = 0
        self.undecided = False
        self.done = False  # the source has ended
        self.unpublished: set[int] = set()
        self.owes = False  # the next driver publishes
        self.ended = self.broken_off = False
        self.runs: set[tuple[int, int]] = set()
        self.requested: set[str] = set()
        self.made: set[str] = set()

    @initialize(flags=st.sampled_from(["", " fresh", " draining", " unpublished"]))
    def it_starts(self, flags: str) -> None:
        if "unpublished" in flags:
            self.unpublished.add(0)
        self.say("start" + flags)

    def say(self, line: str) -> None:
        self.driver.say(line)
        self.look()

    def look(self) -> None:
        """What holds for every command, and from event to event."""
        machine = self.driver.machine
        phase, mode, micro_batch = self.before
        now = list(Phase).index(machine.phase), machine.mode, machine.head.micro_batch if machine.head else -1
        assert now[0] >= phase, "the phase goes back"
        assert now[2] >= micro_batch, "the head goes back"
        assert mode is now[1] or now[1] in (Mode.CANCELLING, Mode.FAILING) or mode is Mode.RUNNING
        assert mode is now[1] or mode not in (Mode.CANCELLING, Mode.FAILING)
        self.before = now
        for command in self.driver.last:
            assert not self.ended, "a command after the end"
            match command:
                case RunMicroBatch(plan):
                    assert not self.undecided, "a micro-batch runs, but its head is unknown"
                    assert RunMicroBatch not in self.open, "two micro-batches run"
                    assert plan.micro_batch == self.real + 1
                    assert (plan.micro_batch, plan.attempt) not in self.runs, "a run has the number of another"
                    self.runs.add((plan.micro_batch, plan.attempt))
                    assert not self.broken_off
                case Propose():
                    assert command.micro_batch == self.real + 1
                    self.undecided = True
                    assert self.owes or not self.unpublished, "a commit drops unpublished committables"
                    assert command.carries_unpublished == (
                        bool(self.unpublished) and command.mode is CommitMode.SUSPENDED
                    )
                    assert not (command.carries_unpublished and command.reports), "reports beside old committables"
                    assert not self.broken_off
                    self.driver.proposed = command
                case PublishCommittables():
                    assert command.micro_batch in self.unpublished, "published without commit, or twice"
                    assert not self.broken_off
                case CallShutdown():
                    assert not self.unpublished
                    assert self.driver.proposed is not None
                    assert self.driver.proposed.mode in (CommitMode.DONE, CommitMode.DRAINED)
                    assert not self.broken_off
                case WaitUntil(moment):
                    self.woken = moment
                    continue
                case End(state):
                    self.ended = True
                    assert (state in (EndState.CANCELLED, EndState.FAILED)) == self.broken_off
                    warned = "\n".join(self.driver.warnings)
                    assert all(name in self.made or repr(name) in warned for name in self.requested), "lost silently"
                    assert not any(f"savepoint {name!r} is not made" in warned for name in self.made)
                    assert self.broken_off or self.owes or not self.unpublished
                    if state is EndState.STOPPED:
                        assert not any(isinstance(each, CallShutdown) for each in self.driver.commands)
                    continue
                case TearDown():
                    proposed = self.driver.proposed
                    suspended = proposed is not None and proposed.mode is CommitMode.SUSPENDED
                    suspended = suspended and self.real == proposed.micro_batch  # type: ignore[union-attr]
                    suspended = suspended and (self.owes or not self.unpublished)
                    shut_down = any(isinstance(each, CallShutdown) for each in self.driver.commands)
                    cancelled = self.driver.machine.mode in (Mode.CANCELLING, Mode.FAILING)
                    self.broken_off = cancelled
                    assert cancelled or suspended or shut_down, "torn down too early"
                    if cancelled:
                        self.open.pop(RunMicroBatch, None)
                        self.open.pop(PublishCommittables, None)
            kind = Propose if isinstance(command, Resolve) else type(command)
            self.open[kind] = command

    def _answer(self, kind: type, line: str) -> None:
        self.open.pop(kind)
        self.say(line)

    @precondition(lambda self: RunMicroBatch in self.open)
    @rule(what=_REPORTS, sink=st.booleans(), callbacks=st.booleans(), consistent=st.integers(0, 9))
    def a_micro_batch_reports(self, what: str, sink: bool, callbacks: bool, consistent: int) -> None:
        plan = self.driver.plan
        assert plan is not None
        self.open.pop(RunMicroBatch)
        now = self.driver.now
        change = {
            "more": source(5, 0, leftover=True),
            "the same": source(5, 0, leftover=True, written=0),
            "soon": source(5, now + 3),
            "later": source(5, now + 300),
            "nothing": nothing_left,
            "blocked": blocked(9),
        }["nothing" if self.done else what]
        reports = reported(plan, change)
        if sink:
            reports = (*reports[:-1], replace(reports[-1], committables=(Committable("sum", b"part"),)))
        if callbacks:
            reports = (*reports[:-1], replace(reports[-1], finalizations=1))
        if not consistent:
            reports = (replace(reports[0], token=b"another attempt"), *reports[1:])
        event = replace(
            self.driver.event("late 0.0"), micro_batch=plan.micro_batch, attempt=plan.attempt, reports=reports
        )
        self.driver.send(event)
        self.look()

    @precondition(lambda self: RunMicroBatch in self.open)
    @rule(how=st.sampled_from(["fails", "fails", "fails", "dies"]))
    def a_micro_batch_fails(self, how: str) -> None:
        self._answer(RunMicroBatch, how)

    @precondition(lambda self: Propose in self.open)
    @rule(answer=st.sampled_from([*["committed"] * 5, "unknown", "unknown", "refused", "conflict"]))
    def a_commit_is_answered(self, answer: str) -> None:
        proposed = self.driver.proposed
        assert proposed is not None
        if answer == "committed":
            self.real, self.undecided = proposed.micro_batch, False
            self.made.update(proposed.savepoints)
            if proposed.reports:
                self.done = self.done or all(
                    not stage.restrictions.live and not stage.awaited
                    for report in proposed.reports
                    for stage in report.stages
                )
            if any(report.committables for report in proposed.reports):
                self.unpublished.add(proposed.micro_batch)
        self._answer(Propose, answer)

    @precondition(lambda self: PublishCommittables in self.open)
    @rule(how=st.sampled_from([*["published", "publish fails"] * 3, "publisher dies"]))
    def publishing_is_answered(self, how: str) -> None:
        assert self.driver.publish is not None
        if how == "published":
            self.unpublished.discard(self.driver.publish.micro_batch)
        if how == "publisher dies":
            self.owes = self.driver.machine.mode is Mode.SUSPENDING
        self._answer(PublishCommittables, how)

    @rule(times=st.integers(1, 8), what=_REPORTS, sink=st.booleans(), callbacks=st.booleans())
    def all_goes_well_for_a_while(self, times: int, what: str, sink: bool, callbacks: bool) -> None:
        for _ in range(times):
            if Propose in self.open:
                self.a_commit_is_answered("committed")
            elif RunMicroBatch in self.open:
                self.a_micro_batch_reports(what, sink, callbacks, 1)
            elif PublishCommittables in self.open:
                self.publishing_is_answered("published")
            elif self.woken is not None:
                self.it_is_woken()

    @rule()
    def bundles_are_finalized(self) -> None:
        self.say("finalized")

    @rule(by=st.integers(0, 40))
    def time_passes(self, by: int) -> None:
        self.driver.now = Timestamp(self.driver.now + by)
        self.driver.send(ClockAdvanced(self.driver.now))
        self.look()

    @precondition(lambda self: self.woken is not None)
    @rule()
    def it_is_woken(self) -> None:
        self.driver.now = max(self.driver.now, self.woken or MIN_TIMESTAMP)
        self.woken = None
        self.driver.send(ClockAdvanced(self.driver.now))
        self.look()

    @rule(what=st.sampled_from(["drain", "suspend", *["savepoint", "late"] * 4]))
    def a_request_arrives(self, what: str) -> None:
        if what == "late":
            self.say("late 1.99")
            return
        name = f"{what}-{len(self.requested)}"
        self.requested.add(name)
        self.say(f"{what} {name}")

    @rule(really=st.integers(0, 30))
    def it_is_cancelled_or_overtaken(self, really: int) -> None:
        if really < 2:
            self.say("overtaken" if really else "cancel")

    @rule()
    def user_code_has_ended(self) -> None:
        self.say("shut down")
        self.say("torn down")

    def teardown(self) -> None:
        """If no further failure happens, the job ends."""
        if self.ended:
            return
        if self.real % 2:
            self.say("drain last")
        for _ in range(60):
            if self.ended:
                break
            self.done = True
            if RunMicroBatch in self.open:
                self.a_micro_batch_reports("nothing", False, False, 1)
            if Propose in self.open:
                self.a_commit_is_answered("committed")
            if PublishCommittables in self.open:
                self.publishing_is_answered("published")
            self.user_code_has_ended()
            self.time_passes(40)
        assert self.ended, f"the job does not end: {self.driver.machine.event_log()[-3:]}"
        assert self.driver.machine.phase is Phase.ENDED


TestJob = JobWorld.TestCase
TestJob.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
