"""The driver's machine of an unbounded job: events in, commands out.

Owns when a micro-batch runs, and with which plan. Must not know how commands are carried out, nor a clock: times come
with events. `state` has its state, `committing` commits micro-batches, `ending` ends the job.

Micro-batches run one after the other. While the committables of one are published, the next may already run. It is
proposed only after the publishing, because the next manifest does not contain these committables.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final, TypeVar, assert_never

from arcbeam.engine.coordinator import committing, ending
from arcbeam.engine.coordinator import consistentcut as cuts
from arcbeam.engine.coordinator import events as on
from arcbeam.engine.coordinator.commands import (
    Command,
    End,
    EndState,
    Propose,
    PublishCommittables,
    ReadScript,
    RunMicroBatch,
    WaitUntil,
)
from arcbeam.engine.coordinator.idling import idle_levels, idle_reports
from arcbeam.engine.coordinator.inflight import Cut, Head
from arcbeam.engine.coordinator.rebalancing import handovers, pieces
from arcbeam.engine.coordinator.scheduling import Dump, Finished, Outlook, Ready, Stuck, WakeAt, dump, look
from arcbeam.engine.coordinator.settings import CoordinatorSettings
from arcbeam.engine.coordinator.stalls import ProgressMark, moved
from arcbeam.engine.coordinator.state import MachineState, Mode, Phase
from arcbeam.engine.coordinator.status import news
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.markers import InconsistentCutError
from arcbeam.engine.protocol.microbatchplan import MicroBatchBudget, MicroBatchPlan
from arcbeam.model.commits import name_change
from arcbeam.model.script import AdvanceClock, ScriptEvent, ScriptOver
from arcbeam.model.timestamps import Timestamp, shifted

_EVENTS_SHOWN: Final = 50
_OPEN: Final = (Phase.NEW, Phase.RUNNING)


class JobMachine:
    """Drives one job, from its takeover to its end.

    Pass each event to `handle`, in the order in which events happen, and carry out the returned commands in their
    order.
    Late answers (the report of an abandoned micro-batch) are accepted and have no effect.

    Args:
        layout: the layout of the job.
        settings: how to drive the job.
    """

    def __init__(self, layout: Layout, settings: CoordinatorSettings | None = None) -> None:
        self._state = MachineState(layout, settings or CoordinatorSettings())
        # The budget of the next micro-batch.
        self._budget: MicroBatchBudget = self._state.settings.budget
        # The last events and the commands that they caused.
        self._event_log: deque[tuple[on.Event, tuple[Command, ...]]] = deque(maxlen=_EVENTS_SHOWN)

    @property
    def mode(self) -> Mode:
        """The aim of the job."""
        return self._state.mode

    @property
    def phase(self) -> Phase:
        """The progress of the job."""
        return self._state.phase

    @property
    def head(self) -> Head | None:
        """The newest commit; None before the job has started."""
        return self._state.head

    @property
    def deaths(self) -> int:
        """The number of runs of the micro-batch after the head in which a worker died."""
        return self._state.deaths

    @property
    def failures(self) -> int:
        """The number of runs in a row of the micro-batch after the head that failed for another reason."""
        return self._state.failures.get(RunMicroBatch, 0)

    def event_log(self) -> list[tuple[on.Event, tuple[Command, ...]]]:
        """Return the last events and the commands that they caused, without the reports of tasks."""
        return list(self._event_log)

    def waiting(self) -> Dump:
        """Return what each stage waits for, as of this driver's newest micro-batch."""
        places, marks = self._state.places, self._state.marks
        return Dump(()) if places is None or marks is None else dump(places, marks)

    def validate(self) -> None:
        """Check all invariants; AssertionError if one does not hold."""
        self._state.validate()

    def handle(self, event: on.Event) -> list[Command]:
        """Handle an event and return the commands that it causes.

        Raises:
            ValueError: the event answers a command that was never issued.
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
        self._proceed()
        if self.phase is not Phase.ENDED and state.wanted != state.waits_until:
            state.waits_until = state.wanted
            out.append(WaitUntil(state.wanted))
        self._event_log.append((_brief(event), tuple(map(_brief, out))))
        return out

    def _take(self, event: on.Event) -> None:
        state = self._state
        match event:
            case on.JobStarted():
                self._started(event)
            case on.ClockAdvanced():
                pass
            case on.ScriptRead(_, number, what):
                if state.script_requested and number == state.script.events:
                    state.script_requested, state.event = False, what
            case on.MicroBatchReported():
                self._reported(event)
            case on.MicroBatchFailed():
                if self._is_running(event.micro_batch, event.attempt):
                    self._micro_batch_failed(event.why, event.again, event.session_stopped, event.died)
            case on.CommitDecided(_, micro_batch):
                self._committed(micro_batch)
            case on.CommitConflicted(_, micro_batch, other_driver):
                committing.proposed(state, micro_batch)
                committing.conflicted(state, other_driver)
            case on.Overtaken(_, other_driver):
                # An open proposal is answered, too.
                ending.overtaken(state, other_driver)
            case on.CommitUnknown(_, micro_batch, why):
                committing.unknown(state, committing.proposed(state, micro_batch), why)
            case on.CommitRefused(_, micro_batch, why):
                committing.refused(state, committing.proposed(state, micro_batch), why)
            case on.DriverFailed(_, why):
                ending.fail(state, why)
            case on.Published(_, micro_batch):
                committing.published(state, micro_batch)
            case on.PublishFailed(_, micro_batch, why, session_stopped):
                committing.publish_failed(state, micro_batch, why, session_stopped)
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
                        f"the job is draining, and its last micro-batch will be savepoint {name!r}; choose another name"
                    )
                elif self._is_open(f"savepoint {savepoint!r}"):
                    state.savepoints.append(savepoint)
            case on.CancelRequested():
                ending.break_off(state, Mode.CANCELLING, End(EndState.CANCELLED))
            case _:
                assert_never(event)

    # Requests.

    def _is_open(self, request: str) -> bool:
        """Return whether a request is still possible; if not, warn."""
        is_open = self._state.phase in _OPEN
        if not is_open:
            assert self._state.end is not None
            self._state.warn(f"{request} has no effect: {ending.outcome(self._state.end)}")
        return is_open

    def _request(self, mode: Mode, savepoint: str) -> None:
        state = self._state
        if state.mode is mode and savepoint in ("", state.last_savepoint):
            return
        if not self._is_open(f"{mode.value} to savepoint {savepoint!r}" if savepoint else mode.value):
            return
        if state.mode is not Mode.RUNNING:
            # Both end with a savepoint. Keep the first: its requester may wait for it.
            self._warn_already(state.mode, state.last_savepoint, savepoint)
            return
        if mode is Mode.DRAINING and savepoint in state.taken_names():
            state.warn(
                f"a micro-batch before the last one gets the name {savepoint!r}: the job is not drained to it; "
                "choose another name"
            )
            return
        state.mode, state.last_savepoint = mode, savepoint
        state.not_before, state.fruitless = state.now, 0

    def _warn_already(self, mode: Mode, savepoint: str, other: str) -> None:
        self._state.warn(
            f"the job is {mode.value} already, to savepoint {savepoint!r}: the request for {other!r} has no effect; "
            "wait for the job's end, or cancel it"
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
            for change in [each for each in state.savepoints if name_change(each)[1] == event.savepoint]:
                self._warn_already(Mode.DRAINING, event.savepoint, change)
                state.savepoints.remove(change)
            state.mode, state.last_savepoint = Mode.DRAINING, event.savepoint
        if event.unpublished:
            committing.publish(state, PublishCommittables(event.micro_batch, None))
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
            reports = (*idle_reports(state.layout, before, plan.first), *event.reports)
            places = cuts.placed(state.layout, reports, before)
            marks = cuts.watermarks(state.layout, places, plan.times)
        except InconsistentCutError as e:
            self._micro_batch_failed(f"micro-batch {plan.micro_batch} is not consistent: {e.message}", again=True)
            return
        state.failures.pop(RunMicroBatch, None)
        state.deaths = 0
        state.running = None
        state.cut = Cut(plan, reports, digest, places, marks, event.took, state.prompt)

    def _micro_batch_failed(self, why: str, again: bool, session_stopped: bool = False, died: bool = False) -> None:
        state = self._state
        state.running = None
        if session_stopped and state.mode is Mode.SUSPENDING:
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
        """Take over the reports of a committed micro-batch."""
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
                f"{state.fruitless} micro-batches in a row made no progress: nothing was read or written, "
                "and no watermark moved\n"
                f"{self.waiting()}"
            )

    # What is next.

    def _proceed(self) -> None:
        """Do what can be done now, and request the time of the next work."""
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
        ending.proceed(state)

    def _watch_preparing(self, plan: MicroBatchPlan) -> None:
        """Warn if preparing takes long, but wait: otherwise outputs would be lost, and the job would not be
        complete.
        """
        state = self._state
        if state.slow_at is None:
            return
        if state.now < state.slow_at:
            state.wait(state.slow_at)
            return
        state.slow_at = None
        stages = ", ".join(map(repr, sorted(plan.preparing)))
        state.warn(
            f"micro-batch {plan.micro_batch} takes long: user code of {stages} prepares to shut down in it; "
            "the job continues after that"
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
            case WakeAt(moment):
                if state.savepoints and published:
                    committing.propose(state, head, None)
                elif state.layout.scripted:
                    # Only this advances the clock now: move it to the time of the next work.
                    self._run(head, prompt=True, clock=moment)
                else:
                    state.wait(moment)
            case Finished():
                self._run(head, prompt=False, end=outlook)
            case Stuck():
                ending.fail(
                    state,
                    "deadlock: work is left, but nothing can make it due. Report this as a bug of arcbeam, with:\n"
                    f"{self.waiting()}",
                )

    def _follow_script(self, head: Head, outlook: Outlook) -> None:
        """Run the script's next event, once it is known: no other work is left."""
        state = self._state
        if state.mode is Mode.DRAINING:
            # A draining job reads nothing new.
            state.script_requested, state.event = False, ScriptOver()
        if state.event is not None:
            at_end = outlook if isinstance(outlook, Finished) and isinstance(state.event, ScriptOver) else None
            self._run(head, prompt=False, end=at_end, event=state.event)
        elif state.savepoints and state.publishing is None:
            committing.propose(state, head, None)
        elif not state.script_requested:
            state.script_requested = True
            state.issue(ReadScript(state.script.events))

    def _has_to_truncate(self) -> bool:
        return self._state.mode is Mode.DRAINING and not self._state.drained

    def _outlook(self, head: Head) -> Outlook:
        state = self._state
        # Only a micro-batch can report what shards contain; and only a micro-batch truncates.
        if state.places is None or self._has_to_truncate():
            return Ready()
        now = head.time if state.layout.scripted else state.now
        script_continues = state.layout.scripted and not state.script.over
        return look(
            state.layout, state.places, head.times, state.side, now, state.prepared, script_continues=script_continues
        )

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
        # In these special micro-batches all levels take part.
        usual = state.places is not None and end is None and event is None and not self._has_to_truncate()
        moves = handovers(state.layout, places)
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
            moves=moves,
            pieces=pieces(state.layout, places),
            event=event,
            first=idle_levels(state.layout, places, head.times, state.side, time, moves) if usual else 0,
        )
        state.issue(RunMicroBatch(state.running))


_Entry = TypeVar("_Entry", on.Event, Command)


def _brief(reported: _Entry) -> _Entry:
    """Return an event or a command without reports: those of a thousand shards take megabytes."""
    if isinstance(reported, on.MicroBatchReported | Propose):
        return replace(reported, reports=())
    return reported
