"""The end of a job: by itself, on request, or forced.

Owns the order of the last calls of user code, and their time limits. Must not know micro-batches, nor how a commit is
made.

    the last commit  ->  finalize, publish  ->  [shutdown]  ->  teardown  ->  the end      done, drained, [stopped]
    anything else    ->                                         teardown  ->  the end      failed, cancelled
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from arcbeam.engine.coordinator.commands import Abandon, CallShutdown, Command, End, EndState, RunMicroBatch, TearDown
from arcbeam.engine.coordinator.state import MachineState, Mode, Phase
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import shifted

LAST: Final = {
    CommitMode.DONE: EndState.DONE,
    CommitMode.DRAINED: EndState.DRAINED,
    CommitMode.SUSPENDED: EndState.STOPPED,
}
"""No commit follows a commit of these modes."""


def outcome(end: End) -> str:
    """Return how a job ended, for people: `it is done`, `it failed: WHY`."""
    match end.state:
        case EndState.FAILED:
            return f"it failed: {end.why}"
        case EndState.CANCELLED:
            how = "it was cancelled"
        case EndState.STOPPED:
            how = "it is suspended"
        case _:
            how = f"it is {end.state.value}"
    return f"{how} ({end.why})" if end.why else how


def close(state: MachineState, end: EndState, made: Collection[str] = ()) -> None:
    """The last commit is made, with these savepoints."""
    _warn_of_unmade(state, made, "requested while or after the job made its last commit")
    state.phase, state.end = Phase.CLOSING, End(end)
    state.set_deadline()


def fail(state: MachineState, why: str) -> None:
    """End a job that cannot continue."""
    break_off(state, Mode.FAILING, End(EndState.FAILED, why))


def overtaken(state: MachineState, why: str) -> None:
    """Another driver runs the job: end soon, to not be in its way. The cause is reported before teardown."""
    if state.phase not in (Phase.SHUTTING_DOWN, Phase.TEARING_DOWN):
        state.warn(why)
    break_off(state, Mode.FAILING, End(EndState.FAILED, why), hasty=True)


def failed(state: MachineState, what: type[Command], why: str) -> int | None:
    """Count and report a failure that may be retried.

    Returns:
        The number of failures in a row; None if there were too many, and the job fails.
    """
    failures = state.failures[what] = state.failures.get(what, 0) + 1
    if failures > state.settings.retry.times:
        fail(state, f"{why} (failure {failures} in a row)")
        return None
    tries = state.settings.retry.times + 1
    state.warn(f"try {failures} of {tries}: {why}" if what is RunMicroBatch else why)
    return failures


def died(state: MachineState, why: str) -> int | None:
    """Count and report a run of a micro-batch in which a worker died.

    Returns:
        The number of such runs of the micro-batch; None if there were too many, and the job fails.
    """
    state.deaths += 1
    tries = state.settings.deaths.times + 1
    why = f"try {state.deaths} of {tries}: {why}"
    if state.deaths >= tries:
        fail(state, why)
        return None
    state.warn(why)
    return state.deaths


def break_off(state: MachineState, mode: Mode, end: End, *, hasty: bool = False) -> None:
    """End the job without another commit, and without publishing.

    If only the last calls are left, the job keeps its end. Cancelling then only shortens the time limits.

    Args:
        state: the state of the job.
        mode: the new mode.
        end: how the job ends.
        hasty: teardown has less time.
    """
    if state.phase in (Phase.SHUTTING_DOWN, Phase.TEARING_DOWN):
        if mode is Mode.CANCELLING:
            _hasten(state)
        return
    if state.publishing:
        number = state.publishing.micro_batch
        unpublished = f"some output of micro-batch {number} may be unpublished; resuming the job publishes it"
        end = End(end.state, f"{end.why}; {unpublished}" if end.why else unpublished)
    if state.running:
        state.issue(Abandon(state.running.micro_batch, state.running.attempt))
    _warn_of_unmade(state, (), f"the job is {mode.value} and makes no further commit")
    state.mode, state.end = mode, end
    state.running = state.cut = state.publishing = state.finalizing = None
    state.later.clear()
    _tear_down(state, hasty=hasty)


def _hasten(state: MachineState) -> None:
    """Skip `shutdown`, and shorten the time limit of teardown. Repeating it has no effect."""
    if state.phase is Phase.SHUTTING_DOWN:
        state.warn(f"{state.phase.value} was cut short because the job was cancelled")
        _called(state)
    assert state.deadline is not None
    state.deadline = min(state.deadline, shifted(state.now, state.settings.haste))


def _warn_of_unmade(state: MachineState, made: Collection[str], why: str) -> None:
    """Report requested savepoints that no commit contains or will contain: none is lost silently."""
    for name in state.requested_savepoints():
        if state.proposal and name in state.proposal.command.savepoints:
            state.warn(
                f"savepoint {name!r} exists only if micro-batch "
                f"{state.proposal.command.micro_batch} is committed: {why}"
            )
        elif name not in made:
            state.warn(f"savepoint {name!r} is not made: {why}")
    state.savepoints.clear()


def proceed(state: MachineState) -> None:
    """Do what can be done after the last commit, and request the time of the next work."""
    if state.phase is Phase.CLOSING:
        _closing(state)
    if state.phase in (Phase.SHUTTING_DOWN, Phase.TEARING_DOWN):
        assert state.deadline is not None
        if state.now >= state.deadline:
            state.warn(f"{state.phase.value} timed out; continuing")
            _called(state)
    if state.phase in (Phase.SHUTTING_DOWN, Phase.TEARING_DOWN):
        assert state.deadline is not None
        state.wait(state.deadline)


def answered(state: MachineState, phase: Phase, errors: tuple[str, ...]) -> None:
    """User code was called for the last time; the ending continues also after errors."""
    if state.phase is phase:
        for error in errors:
            state.warn(f"{phase.value}: {error}")
        _called(state)


def _closing(state: MachineState) -> None:
    assert state.deadline is not None
    assert state.end is not None
    if state.finalizing is not None:
        if state.now < state.deadline:
            state.wait(state.deadline)
            return
        state.warn(f"finalizing micro-batch {state.finalizing} timed out; continuing")
        state.finalizing = None
    # Publishing has no time limit: all committed output must be published.
    if state.publishing:
        return
    if state.end.state is EndState.STOPPED:
        _tear_down(state)
    else:
        state.phase = Phase.SHUTTING_DOWN
        state.set_deadline()
        state.issue(CallShutdown(_forwards(state), state.deadline))


def _tear_down(state: MachineState, *, hasty: bool = False) -> None:
    state.phase = Phase.TEARING_DOWN
    state.set_deadline()
    if hasty:
        state.deadline = shifted(state.now, state.settings.haste)
    assert state.deadline is not None
    state.issue(TearDown(_backwards(state), state.deadline))


def _called(state: MachineState) -> None:
    if state.phase is Phase.SHUTTING_DOWN:
        _tear_down(state)
    else:
        assert state.end is not None
        state.phase, state.deadline = Phase.ENDED, None
        state.issue(state.end)


def _forwards(state: MachineState) -> tuple[str, ...]:
    return tuple(stage.name for stage in state.layout.stages)


def _backwards(state: MachineState) -> tuple[str, ...]:
    return tuple(stage.name for stage in reversed(state.layout.stages))
