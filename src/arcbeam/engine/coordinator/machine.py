"""The driver's machine of an unbounded job: what happened in, what to do out.

Owns when a micro-batch is run, and with what. Must not know how any of it is done, nor a clock: time is in the events.
What it knows is in `state`, how micro-batches become real in `committing`, how a job ends in `ending`.

One micro-batch runs at a time. While a micro-batch's committables are published, the next micro-batch may run already,
but it is proposed only when they are: the manifest that follows does not hold them any more.
"""

from __future__ import annotations

from collections import deque
from typing import Final, assert_never

from arcbeam.engine.coordinator import committing, ending
from arcbeam.engine.coordinator import consistentcut as cuts
from arcbeam.engine.coordinator import events as on
from arcbeam.engine.coordinator.commands import Command, End, EndState, Publish, ReadScript, RunMicroBatch, WaitUntil
from arcbeam.engine.coordinator.idling import resting, said_before
from arcbeam.engine.coordinator.inflight import Cut, Head
from arcbeam.engine.coordinator.rebalancing import handovers, pieces
from arcbeam.engine.coordinator.scheduling import Dump, Finished, Later, Never, Outlook, Ready, dump, look
from arcbeam.engine.coordinator.settings import Settings
from arcbeam.engine.coordinator.stalls import ProgressMark, moved
from arcbeam.engine.coordinator.state import JobState, Mode, Phase
from arcbeam.engine.coordinator.status import news
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.markers import InconsistentCutError
from arcbeam.engine.protocol.microbatchplan import MicroBatchBudget, MicroBatchPlan
from arcbeam.model.commits import name_change
from arcbeam.model.script import AdvanceClock, ScriptEvent, ScriptOver
from arcbeam.model.timestamps import Timestamp, shifted

_STORY: Final = 50
_OPEN: Final = (Phase.NEW, Phase.RUNNING)


class JobMachine:
    """Drives one job, from taking it over to its end.

    Give `handle` everything that happens, in the order in which it happens, and carry out what it returns, in that
    order. Answers to what nobody waits for any more (an abandoned micro-batch's report) are welcome, and change
    nothing.

    Args:
        layout: of the job.
        settings: how to drive it.
    """

    def __init__(self, layout: Layout, settings: Settings | None = None) -> None:
        self._state = JobState(layout, settings or Settings())
        # Of the next micro-batch.
        self._budget: MicroBatchBudget = self._state.settings.budget
        # The last events, and what they led to.
        self._story: deque[tuple[on.Event, tuple[Command, ...]]] = deque(maxlen=_STORY)

    @property
    def mode(self) -> Mode:
        """What the job is heading for."""
        return self._state.mode

    @property
    def phase(self) -> Phase:
        """How far it has come."""
        return self._state.phase

    @property
    def head(self) -> Head | None:
        """What is real; None before the job has started."""
        return self._state.head

    @property
    def deaths(self) -> int:
        """How many runs of the micro-batch after the head have ended with a worker that died."""
        return self._state.deaths

    @property
    def failures(self) -> int:
        """How many runs of the micro-batch after the head have failed in a row for another reason."""
        return self._state.failures.get(RunMicroBatch, 0)

    def story(self) -> list[tuple[on.Event, tuple[Command, ...]]]:
        """The last events, and what they led to."""
        return list(self._story)

    def waiting(self) -> Dump:
        """What each stage waits for, as of the newest micro-batch of this driver."""
        places, marks = self._state.places, self._state.marks
        return Dump(()) if places is None or marks is None else dump(places, marks)

    def validate(self) -> None:
        """Checks all invariants; AssertionError if one does not hold."""
        self._state.validate()

    def handle(self, event: on.Event) -> list[Command]:
        """Takes in what happened; what is to be done.

        Raises:
            ValueError: the event is an answer to what was never asked.
        """
        state = self._state
        if state.phase is Phase.ENDED:
            return []
        out: list[Command] = []
        state.out, state.wanted = out, None
        state.now = max(state.now, event.at)
        if state.waits_until is not None and state.now >= state.waits_until:
            state.waits_until = None
        self._take(event)
        self._go_on()
        if self.phase is not Phase.ENDED and state.wanted != state.waits_until:
            state.waits_until = state.wanted
            out.append(WaitUntil(state.wanted))
        self._story.append((event, tuple(out)))
        return out

    def _take(self, event: on.Event) -> None:
        state = self._state
        match event:
            case on.JobStarted():
                self._started(event)
            case on.ClockAdvanced():
                pass
            case on.ScriptRead(_, number, what):
                if state.asked and number == state.script.events:
                    state.asked, state.event = False, what
            case on.MicroBatchReported():
                self._reported(event)
            case on.MicroBatchFailed():
                if self._is_running(event.micro_batch, event.attempt):
                    self._micro_batch_failed(event.why, event.again, event.gone, event.died)
            case on.CommitDecided(_, micro_batch):
                self._committed(micro_batch)
            case on.CommitConflicted(_, micro_batch, who):
                committing.proposed(state, micro_batch)
                committing.conflicted(state, who)
            case on.Overtaken(_, who):
                # What is proposed by now will be answered, too.
                ending.overtaken(state, who)
            case on.CommitUnknown(_, micro_batch, why):
                committing.unknown(state, committing.proposed(state, micro_batch), why)
            case on.CommitRefused(_, micro_batch, why):
                committing.refused(state, committing.proposed(state, micro_batch), why)
            case on.DriverFailed(_, why):
                ending.fail(state, why)
            case on.Published(_, micro_batch):
                committing.published(state, micro_batch)
            case on.PublishFailed(_, micro_batch, why, gone):
                committing.publish_failed(state, micro_batch, why, gone)
            case on.Finalized(_, micro_batch):
                if state.finalizing == micro_batch:
                    state.finalizing = None
            case on.ShutDown(_, errors):
                ending.answered(state, Phase.SHUTTING_DOWN, errors)
            case on.TornDown(_, errors):
                ending.answered(state, Phase.TEARING_DOWN, errors)
            case on.DrainRequested(_, savepoint):
                self._request(Mode.DRAINING, savepoint)
            case on.SuspendRequested(_, savepoint):
                self._request(Mode.SUSPENDING, savepoint)
            case on.SavepointRequested(_, savepoint):
                if state.mode is Mode.DRAINING and name_change(savepoint)[1] == state.last_savepoint:
                    name = state.last_savepoint
                    state.warn(
                        f"the job drains to savepoint {name!r}: no micro-batch before the last one gets that name; "
                        "choose another name"
                    )
                elif self._is_open(f"savepoint {savepoint!r}"):
                    state.savepoints.append(savepoint)
            case on.CancelRequested():
                ending.break_off(state, Mode.CANCELLING, End(EndState.CANCELLED))
            case _:
                assert_never(event)

    # Requests.

    def _is_open(self, request: str) -> bool:
        """Whether a request still comes in time; if not, that is told."""
        is_open = self._state.phase in _OPEN
        if not is_open:
            assert self._state.end is not None
            self._state.warn(f"{request} has no effect: {ending.told(self._state.end)}")
        return is_open

    def _request(self, mode: Mode, savepoint: str) -> None:
        state = self._state
        if state.mode is mode and savepoint in ("", state.last_savepoint):
            return
        if not self._is_open(f"{mode.value} to savepoint {savepoint!r}" if savepoint else mode.value):
            return
        if state.mode is not Mode.RUNNING:
            # Both end with a savepoint. Which of them it is does not change any more: somebody may wait for it.
            self._warn_already(state.mode, state.last_savepoint, savepoint)
            return
        if mode is Mode.DRAINING and savepoint in state.given():
            state.warn(
                f"a micro-batch before the last one gets the name {savepoint!r}: the job is not drained to it; "
                "choose another name"
            )
            return
        state.mode, state.last_savepoint = mode, savepoint
        state.not_before, state.fruitless = state.now, 0

    def _warn_already(self, mode: Mode, savepoint: str, other: str) -> None:
        self._state.warn(
            f"the job is {mode.value} already, to savepoint {savepoint!r}: nothing comes of {other!r}; "
            "wait for its end, or cancel it"
        )

    # Micro-batches.

    def _started(self, event: on.JobStarted) -> None:
        state = self._state
        if state.head is not None:
            raise ValueError("the job was started already")
        if state.phase is not Phase.NEW:
            return
        state.phase = Phase.RUNNING
        state.head = Head(event.micro_batch, event.time, event.times)
        state.unbegun, state.script = event.unbegun, event.script
        if event.draining:
            if state.mode is not Mode.RUNNING and state.last_savepoint != event.savepoint:
                self._warn_already(Mode.DRAINING, event.savepoint, state.last_savepoint)
            for wish in [each for each in state.savepoints if name_change(each)[1] == event.savepoint]:
                self._warn_already(Mode.DRAINING, event.savepoint, wish)
                state.savepoints.remove(wish)
            state.mode, state.last_savepoint = Mode.DRAINING, event.savepoint
        if event.unpublished:
            committing.publish(state, Publish(event.micro_batch, None))
        if event.ended:
            ending.close(state, ending.LAST[event.ended])

    def _is_running(self, micro_batch: int, attempt: int) -> bool:
        running = self._state.running
        return running is not None and (running.micro_batch, running.attempt) == (micro_batch, attempt)

    def _reported(self, event: on.MicroBatchReported) -> None:
        state = self._state
        plan = state.running
        if plan is None or not self._is_running(event.micro_batch, event.attempt):
            return
        try:
            digest = cuts.check(state.layout, event.reports, plan.first)
            before = state.places or cuts.NO_PLACES
            reports = (*said_before(state.layout, before, plan.first), *event.reports)
            places = cuts.placed(state.layout, reports, before)
            marks = cuts.watermarks(state.layout, places, plan.times)
        except InconsistentCutError as e:
            self._micro_batch_failed(f"micro-batch {plan.micro_batch} is not consistent: {e.message}", again=True)
            return
        state.failures.pop(RunMicroBatch, None)
        state.deaths = 0
        state.running = None
        state.cut = Cut(plan, reports, digest, places, marks, event.took, state.prompt)

    def _micro_batch_failed(self, why: str, again: bool, gone: bool = False, died: bool = False) -> None:
        state = self._state
        state.running = None
        if gone and state.mode is Mode.SUSPENDING:
            return
        if not again:
            ending.fail(state, why)
            return
        policy = state.settings.deaths if died else state.settings.retry
        failures = ending.died(state, why) if died else ending.failed(state, RunMicroBatch, why)
        if failures is not None:
            state.attempt += 1
            state.not_before = shifted(state.now, policy.pause(failures))

    def _committed(self, micro_batch: int) -> None:
        """A commit is real: what its micro-batch has told counts from now on."""
        state = self._state
        proposal = committing.proposed(state, micro_batch)
        cut = proposal.cut
        if cut:
            before = ProgressMark.of(state.places, state.marks.times()) if state.places and state.marks else None
            fruitless = cut.prompt and not moved(cut.places) and ProgressMark.of(cut.places, cut.times) == before
            state.fruitless = state.fruitless + 1 if fruitless else 0
            state.not_before = shifted(state.now, state.settings.patience.pause(state.fruitless))
            state.drained = state.drained or cut.plan.drain
            state.prepared |= cut.plan.preparing
            for text in news(state.layout, cut.places, state.warned_of):
                state.warn(text)
            used_up = any(report.leftover for report in cut.places.values())
            is_behind = state.settings.pace.is_behind(cut.places, cut.times, state.clock(cut))
            self._budget = state.settings.pace.after(cut.plan.budget, cut.took, used_up, is_behind)
        committing.committed(state, proposal)
        if state.fruitless and state.phase is Phase.RUNNING and state.settings.patience.warns(state.fruitless):
            state.warn(
                f"{state.fruitless} micro-batches in a row got nowhere: nothing was read or put out, "
                "and no watermark moved\n"
                f"{self.waiting()}"
            )

    # What is next.

    def _go_on(self) -> None:
        """Does what can be done now, and says when there will be more."""
        state = self._state
        due = [command for moment, command in state.later if moment <= state.now]
        state.later = [each for each in state.later if each[0] > state.now]
        state.out += due
        for moment, _ in state.later:
            state.wait(moment)
        if state.phase is Phase.RUNNING and state.head:
            self._micro_batch_on(state.head)
        if state.running and state.running.preparing:
            self._watch_preparing(state.running)
        ending.go_on(state)

    def _watch_preparing(self, plan: MicroBatchPlan) -> None:
        """Who takes long to prepare is told, and waited for: what it puts out would be lost, and the end not be one."""
        state = self._state
        if state.slow_at is None:
            return
        if state.now < state.slow_at:
            state.wait(state.slow_at)
            return
        state.slow_at = None
        who = ", ".join(map(repr, sorted(plan.preparing)))
        state.warn(
            f"micro-batch {plan.micro_batch} takes long: user code of {who} prepares to shut down in "
            "it, and nothing goes on before "
            f"that is done"
        )

    def _micro_batch_on(self, head: Head) -> None:
        state = self._state
        if state.running or state.proposal:
            return
        published = state.publishing is None
        if state.cut or state.mode is Mode.SUSPENDING:
            if published:
                committing.propose(state, head, state.cut)
            return
        if state.now < state.not_before:
            state.wait(state.not_before)
            return
        outlook = self._outlook(head)
        if state.layout.scripted and not state.script.over and not isinstance(outlook, Ready):
            self._follow_script(head, outlook)
            return
        match outlook:
            case Ready(since):
                in_turn = state.places is not None and not self._has_to_truncate()
                self._run(head, prompt=in_turn and (since is None or since <= head.time))
            case Later(moment):
                if state.savepoints and published:
                    committing.propose(state, head, None)
                elif state.layout.scripted:
                    # Nobody is left to move the clock: it goes to where there is something to do.
                    self._run(head, prompt=True, clock=moment)
                else:
                    state.wait(moment)
            case Finished():
                self._run(head, prompt=False, end=outlook)
            case Never():
                ending.fail(state, f"nothing is left that could go on, but something waits:\n{self.waiting()}")

    def _follow_script(self, head: Head, outlook: Outlook) -> None:
        """Nothing is left to do: so the next thing in the script happens, when it is known."""
        state = self._state
        if state.mode is Mode.DRAINING:
            # Nothing new is taken in.
            state.asked, state.event = False, ScriptOver()
        if state.event is not None:
            at_end = outlook if isinstance(outlook, Finished) and isinstance(state.event, ScriptOver) else None
            self._run(head, prompt=False, end=at_end, event=state.event)
        elif state.savepoints and state.publishing is None:
            committing.propose(state, head, None)
        elif not state.asked:
            state.asked = True
            state.ask(ReadScript(state.script.events))

    def _has_to_truncate(self) -> bool:
        return self._state.mode is Mode.DRAINING and not self._state.drained

    def _outlook(self, head: Head) -> Outlook:
        state = self._state
        # What shards have, only a micro-batch can tell; and only a micro-batch truncates.
        if state.places is None or self._has_to_truncate():
            return Ready()
        now = head.time if state.layout.scripted else state.now
        goes_on = state.layout.scripted and not state.script.over
        return look(state.layout, state.places, head.times, state.side, now, state.prepared, goes_on=goes_on)

    def _run(
        self,
        head: Head,
        *,
        prompt: bool,
        end: Finished | None = None,
        event: ScriptEvent | None = None,
        clock: Timestamp | None = None,
    ) -> None:
        state = self._state
        state.prompt = prompt
        state.slow_at = shifted(state.now, state.settings.grace)
        time = state.time(head) if clock is None else clock
        if isinstance(event, AdvanceClock):
            time = shifted(time, event.by)
        places = state.places or cuts.NO_PLACES
        # What is done now and then only is done by all.
        usual = state.places is not None and end is None and event is None and not self._has_to_truncate()
        state.running = MicroBatchPlan(
            head.micro_batch + 1,
            state.attempt,
            time,
            head.micro_batch,
            head.times,
            self._budget,
            beginning=state.unbegun,
            drain=state.mode is Mode.DRAINING,
            prepare=end is not None,
            preparing=frozenset() if end is None else end.preparing,
            moves=handovers(state.layout, places),
            pieces=pieces(state.layout, places),
            event=event,
            first=resting(state.layout, places, head.times) if usual else 0,
        )
        state.ask(RunMicroBatch(state.running))
