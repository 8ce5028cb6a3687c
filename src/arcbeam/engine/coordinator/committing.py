"""How what a micro-batch did becomes real: proposals, their outcomes, publishing.

Owns the mode that a commit has, and what is tried again. Must not know how a micro-batch is planned.
"""

from __future__ import annotations

from arcbeam.engine.coordinator import ending
from arcbeam.engine.coordinator.commands import Finalize, Propose, Publish, Resolve
from arcbeam.engine.coordinator.inflight import Cut, Head, Proposal
from arcbeam.engine.coordinator.scheduling import Finished, look
from arcbeam.engine.coordinator.state import JobState, Mode, Phase
from arcbeam.model.commits import CommitMode, name_change
from arcbeam.model.timestamps import MAX_TIMESTAMP


def propose(state: JobState, head: Head, cut: Cut | None) -> None:
    """Proposes a micro-batch that has run; or a commit without one, of what the head has."""
    cut = None if state.owes else cut
    mode = _mode(state, cut)
    names = state.asked_for() if mode in ending.LAST else state.savepoints
    command = Propose(
        head.micro_batch + 1,
        cut.plan.time if cut else state.time(head),
        mode,
        cut.times if cut else head.times,
        cut.digest if cut else b"",
        cut.reports if cut else (),
        tuple(dict.fromkeys(names)),
        state.last_savepoint if mode is CommitMode.DRAINING else "",
        unbegun=state.unbegun if cut is None else frozenset(),
        script=state.script.after(cut.plan.event) if cut else state.script,
        owes=state.owes,
    )
    state.cut, state.proposal = None, Proposal(command, cut)
    state.ask(command)


def _mode(state: JobState, cut: Cut | None) -> CommitMode:
    draining = state.mode is Mode.DRAINING
    if cut and _is_finished(state, cut):
        # All is done, and nobody is to prepare, or all have: whatever was asked for meanwhile, this is the end.
        return CommitMode.DRAINED if draining else CommitMode.DONE
    if state.mode is Mode.SUSPENDING:
        return CommitMode.SUSPENDED
    return CommitMode.DRAINING if draining else CommitMode.RUNNING


def _is_finished(state: JobState, cut: Cut) -> bool:
    # Of most micro-batches that is all there is to look at.
    if any(time != MAX_TIMESTAMP for time in cut.times.outputs.values()):
        return False
    if state.layout.scripted and not state.script.after(cut.plan.event).over:
        return False
    prepared = state.prepared | cut.plan.preparing
    outlook = look(state.layout, cut.places, cut.times, cut.side, state.clock(cut), prepared)
    return isinstance(outlook, Finished) and not outlook.preparing


def proposed(state: JobState, micro_batch: int) -> Proposal:
    """The proposal that an answer is about.

    Raises:
        ValueError: there is none.
    """
    if state.proposal is None or state.proposal.command.micro_batch != micro_batch:
        raise ValueError(f"micro-batch {micro_batch} was decided, which was not proposed")
    return state.proposal


def conflicted(state: JobState, who: str) -> None:
    """Another driver has the micro-batch: this one can commit nothing any more."""
    state.proposal = None
    ending.overtaken(state, who)


def unknown(state: JobState, proposal: Proposal, why: str) -> None:
    """Nobody knows the outcome: nothing but asking again may follow, for as long as it takes."""
    if state.phase is not Phase.RUNNING:
        return
    tries = state.failures[Resolve] = state.failures.get(Resolve, 0) + 1
    if tries == 1:
        state.warn(f"it is not known whether micro-batch {proposal.command.micro_batch} is committed: {why}")
    state.give_later(Resolve(proposal.command.micro_batch), tries)


def refused(state: JobState, proposal: Proposal, why: str) -> None:
    """Certainly nothing happened: the same is proposed again."""
    failures = None
    if state.phase is Phase.RUNNING:
        failures = ending.failed(state, Propose, f"the store refuses micro-batch {proposal.command.micro_batch}: {why}")
    if failures is None:
        state.proposal = None
    else:
        state.give_later(proposal.command, failures)


def committed(state: JobState, proposal: Proposal) -> None:
    """It is real. If the job was broken off meanwhile, that is all."""
    command, cut = proposal.command, proposal.cut
    state.head = Head(command.micro_batch, command.time, command.times)
    state.proposal = None
    state.attempt = 0
    # SUBTLE: what was asked for while the commit was on its way is not in it; the next one has it.
    state.savepoints = [name for name in state.savepoints if name not in command.savepoints]
    for gone, made in map(name_change, command.savepoints):
        state.made = state.made - {gone} | {made} - {""}
    for what in (Propose, Resolve):
        state.failures.pop(what, None)
    if cut:
        state.places, state.marks, state.side = cut.places, cut.marks, cut.side
        state.unbegun, state.script = command.unbegun, command.script
        if cut.plan.event is not None:
            state.event = None
    if state.phase is not Phase.RUNNING:
        return
    if cut:
        committables = tuple(each for report in cut.reports for each in report.committables)
        if committables:
            publish(state, Publish(command.micro_batch, committables))
        if any(report.finalizations for report in cut.reports):
            state.finalizing = command.micro_batch
            state.ask(Finalize(command.micro_batch))
    if command.mode in ending.LAST:
        ending.close(state, ending.LAST[command.mode], command.savepoints)


def publish(state: JobState, command: Publish) -> None:
    """Publishes what is real."""
    state.publishing = command
    state.ask(command)


def published(state: JobState, micro_batch: int) -> None:
    """It is out."""
    if state.publishing and state.publishing.micro_batch == micro_batch:
        state.publishing = None
        state.failures.pop(Publish, None)
        # It may have been on its way a second time.
        state.later = [each for each in state.later if not isinstance(each[1], Publish)]


def publish_failed(state: JobState, micro_batch: int, why: str, gone: bool) -> None:
    """Some of it may be out: all of it is tried again, here or, if nothing runs here any more, by the next driver."""
    if state.publishing is None or state.publishing.micro_batch != micro_batch:
        return
    told = f"micro-batch {micro_batch} is committed, but not published: {why}"
    if gone and state.mode is Mode.SUSPENDING:
        state.warn(f"{told}; it is when the job is resumed")
        state.publishing, state.owes = None, state.phase is Phase.RUNNING
        state.later = [each for each in state.later if not isinstance(each[1], Publish)]
    elif gone:
        ending.fail(state, told)
    elif (failures := ending.failed(state, Publish, told)) is not None:
        state.give_later(state.publishing, failures)
