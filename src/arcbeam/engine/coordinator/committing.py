"""Commit a micro-batch: propose it, handle the outcome, publish.

Owns the mode of a commit, and retries. Must not know how a micro-batch is planned.
"""

from __future__ import annotations

from arcbeam.engine.coordinator import ending
from arcbeam.engine.coordinator.commands import Finalize, Propose, PublishCommittables, Resolve
from arcbeam.engine.coordinator.inflight import Cut, Head, Proposal
from arcbeam.engine.coordinator.scheduling import Finished, look
from arcbeam.engine.coordinator.state import MachineState, Mode, Phase
from arcbeam.model.commits import CommitMode, name_change
from arcbeam.model.timestamps import MAX_TIMESTAMP


def propose(state: MachineState, head: Head, cut: Cut | None) -> None:
    """Propose a micro-batch that has run, or a commit without one, with the state of the head."""
    cut = None if state.carries_unpublished else cut
    mode = _mode(state, cut)
    names = state.requested_savepoints() if mode in ending.LAST else state.savepoints
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
        carries_unpublished=state.carries_unpublished,
    )
    state.cut, state.proposal = None, Proposal(command, cut)
    state.issue(command)


def _mode(state: MachineState, cut: Cut | None) -> CommitMode:
    draining = state.mode is Mode.DRAINING
    if cut and _is_finished(state, cut):
        # All work is done, and no stage has to prepare any more: this is the end, whatever was requested meanwhile.
        return CommitMode.DRAINED if draining else CommitMode.DONE
    if state.mode is Mode.SUSPENDING:
        return CommitMode.SUSPENDED
    return CommitMode.DRAINING if draining else CommitMode.RUNNING


def _is_finished(state: MachineState, cut: Cut) -> bool:
    # This decides for most micro-batches.
    if any(time != MAX_TIMESTAMP for time in cut.times.outputs.values()):
        return False
    if state.layout.scripted and not state.script.after(cut.plan.event).over:
        return False
    prepared = state.prepared | cut.plan.preparing
    outlook = look(state.layout, cut.places, cut.times, cut.side, state.clock(cut), prepared)
    return isinstance(outlook, Finished) and not outlook.preparing


def proposed(state: MachineState, micro_batch: int) -> Proposal:
    """Return the proposal that an answer belongs to.

    Raises:
        ValueError: there is none.
    """
    if state.proposal is None or state.proposal.command.micro_batch != micro_batch:
        raise ValueError(f"an answer about micro-batch {micro_batch}, which was not proposed")
    return state.proposal


def conflicted(state: MachineState, other_driver: str) -> None:
    """Another driver has committed the micro-batch: this driver cannot commit any more."""
    state.proposal = None
    ending.overtaken(state, other_driver)


def unknown(state: MachineState, proposal: Proposal, why: str) -> None:
    """The outcome is unknown. The only valid next command is to resolve again, without limit."""
    if state.phase is not Phase.RUNNING:
        return
    tries = state.failures[Resolve] = state.failures.get(Resolve, 0) + 1
    if tries == 1:
        state.warn(f"the outcome of the commit of micro-batch {proposal.command.micro_batch} is unknown: {why}")
    state.retry_later(Resolve(proposal.command.micro_batch), tries)


def refused(state: MachineState, proposal: Proposal, why: str) -> None:
    """Certainly nothing was committed: propose the same again."""
    failures = None
    if state.phase is Phase.RUNNING:
        failures = ending.failed(
            state, Propose, f"cannot write the commit of micro-batch {proposal.command.micro_batch}: {why}"
        )
    if failures is None:
        state.proposal = None
    else:
        state.retry_later(proposal.command, failures)


def committed(state: MachineState, proposal: Proposal) -> None:
    """The proposal is committed. If the job was cancelled or failed meanwhile, only the head changes."""
    command, cut = proposal.command, proposal.cut
    state.head = Head(command.micro_batch, command.time, command.times)
    state.proposal = None
    state.attempt = 0
    # SUBTLE: this commit does not contain savepoints that were requested after its proposal; the next one does.
    state.savepoints = [name for name in state.savepoints if name not in command.savepoints]
    for dropped, made in map(name_change, command.savepoints):
        state.made = state.made - {dropped} | {made} - {""}
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
            publish(state, PublishCommittables(command.micro_batch, committables))
        if any(report.finalizations for report in cut.reports):
            state.finalizing = command.micro_batch
            state.issue(Finalize(command.micro_batch))
    if command.mode in ending.LAST:
        ending.close(state, ending.LAST[command.mode], command.savepoints)


def publish(state: MachineState, command: PublishCommittables) -> None:
    """Publish the committables of a committed micro-batch."""
    state.publishing = command
    state.issue(command)


def published(state: MachineState, micro_batch: int) -> None:
    """All committables are published."""
    if state.publishing and state.publishing.micro_batch == micro_batch:
        state.publishing = None
        state.failures.pop(PublishCommittables, None)
        # A retry may have been planned.
        state.later = [each for each in state.later if not isinstance(each[1], PublishCommittables)]


def publish_failed(state: MachineState, micro_batch: int, why: str, session_stopped: bool) -> None:
    """Some committables may be published. Publish all again: here or, if the session has stopped, by the next
    driver.
    """
    if state.publishing is None or state.publishing.micro_batch != micro_batch:
        return
    text = f"micro-batch {micro_batch} is committed, but publishing its output failed: {why}"
    if session_stopped and state.mode is Mode.SUSPENDING:
        state.warn(f"{text}; resuming the job publishes it")
        state.publishing, state.carries_unpublished = None, state.phase is Phase.RUNNING
        state.later = [each for each in state.later if not isinstance(each[1], PublishCommittables)]
    elif session_stopped:
        ending.fail(state, text)
    elif (failures := ending.failed(state, PublishCommittables, text)) is not None:
        state.retry_later(state.publishing, failures)
