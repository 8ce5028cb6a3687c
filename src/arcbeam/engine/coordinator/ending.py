"""How a job ends: by itself, on request, or because it must.

Owns the order of the last calls of user code, and their deadlines. Must not know micro-batches, nor how a commit is
made.

    the last commit  ->  finalize, publish  ->  [shutdown]  ->  teardown  ->  the end      done, drained, [stopped]
    anything else    ->                                         teardown  ->  the end      failed, cancelled
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from arcbeam.engine.coordinator.commands import Abandon, CallShutdown, Command, End, EndState, TearDown
from arcbeam.engine.coordinator.state import JobState, Mode, Phase
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import shifted

LAST: Final = {
    CommitMode.DONE: EndState.DONE,
    CommitMode.DRAINED: EndState.DRAINED,
    CommitMode.SUSPENDED: EndState.STOPPED,
}
"""Behind a commit of these modes there is no other."""


def told(end: End) -> str:
    """Return how a job ends, for people: `it is done`, `it failed: WHY`."""
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


def close(state: JobState, end: EndState, made: Collection[str] = ()) -> None:
    """The last commit is made, with these savepoints."""
    _tell_unmade(state, made, "asked for when the last commit of the job was on its way, or behind it")
    state.phase, state.end = Phase.CLOSING, End(end)
    state.set_deadline()


def fail(state: JobState, why: str) -> None:
    """The job cannot go on."""
    break_off(state, Mode.FAILING, End(EndState.FAILED, why))


def overtaken(state: JobState, why: str) -> None:
    """Another driver runs the job: this one is not in its way for longer than it must be."""
    break_off(state, Mode.FAILING, End(EndState.FAILED, why), hasty=True)


def failed(state: JobState, what: type[Command], why: str) -> int | None:
    """Counts and tells a failure that may be tried again.

    Returns:
        How many there were in a row; None if that was one too many, and the job fails.
    """
    failures = state.failures[what] = state.failures.get(what, 0) + 1
    if failures > state.settings.retry.times:
        fail(state, f"{why} (failure {failures} in a row)")
        return None
    state.warn(why)
    return failures


def died(state: JobState, why: str) -> int | None:
    """Counts and reports a run of a micro-batch in which a worker died.

    Returns:
        How many there were of the micro-batch; None if that was one too many, and the job fails.
    """
    state.deaths += 1
    tries = state.settings.deaths.times + 1
    why = f"try {state.deaths} of {tries}: {why}"
    if state.deaths >= tries:
        fail(state, why)
        return None
    state.warn(why)
    return state.deaths


def break_off(state: JobState, mode: Mode, end: End, *, hasty: bool = False) -> None:
    """Ends the job without another commit, and without publishing.

    If only its last calls are left, it ends as it was to end; who cancels it then wants no more than that it does so
    soon.

    Args:
        state: of the job.
        mode: what it is heading for.
        end: how it ends.
        hasty: teardown has less time.
    """
    if state.phase in (Phase.SHUTTING_DOWN, Phase.TEARING_DOWN):
        if mode is Mode.CANCELLING:
            _hasten(state)
        return
    if state.publishing:
        unpublished = (
            f"what micro-batch {state.publishing.micro_batch} has for sinks may be unpublished; resuming publishes it"
        )
        end = End(end.state, f"{end.why}; {unpublished}" if end.why else unpublished)
    if state.running:
        state.ask(Abandon(state.running.micro_batch, state.running.attempt))
    _tell_unmade(state, (), f"the job is {mode.value}, and proposes nothing more")
    state.mode, state.end = mode, end
    state.running = state.cut = state.publishing = state.finalizing = None
    state.later.clear()
    _tear_down(state, hasty=hasty)


def _hasten(state: JobState) -> None:
    """Does not wait for `shutdown` any more, and not for long for teardown. Nothing more if it is asked for again."""
    if state.phase is Phase.SHUTTING_DOWN:
        state.warn(f"{state.phase.value} was not over when the job was cancelled; nobody waits for it")
        _called(state)
    assert state.deadline is not None
    state.deadline = min(state.deadline, shifted(state.now, state.settings.haste))


def _tell_unmade(state: JobState, made: Collection[str], why: str) -> None:
    """No savepoint that was asked for is lost unseen: those that no commit has, nor will have, are told."""
    for name in state.asked_for():
        if state.proposal and name in state.proposal.command.savepoints:
            state.warn(
                f"savepoint {name!r} is there only if micro-batch "
                f"{state.proposal.command.micro_batch} is committed: {why}"
            )
        elif name not in made:
            state.warn(f"savepoint {name!r} is not made: {why}")
    state.savepoints.clear()


def go_on(state: JobState) -> None:
    """Does what can be done now behind the last commit, and says until when it waits."""
    if state.phase is Phase.CLOSING:
        _closing(state)
    if state.phase in (Phase.SHUTTING_DOWN, Phase.TEARING_DOWN):
        assert state.deadline is not None
        if state.now >= state.deadline:
            state.warn(f"{state.phase.value} was not over in time; nobody waits for it")
            _called(state)
    if state.phase in (Phase.SHUTTING_DOWN, Phase.TEARING_DOWN):
        assert state.deadline is not None
        state.wait(state.deadline)


def answered(state: JobState, phase: Phase, errors: tuple[str, ...]) -> None:
    """User code was called for the last time; in whatever way it went, the job goes on ending."""
    if state.phase is phase:
        for error in errors:
            state.warn(f"{phase.value}: {error}")
        _called(state)


def _closing(state: JobState) -> None:
    assert state.deadline is not None
    assert state.end is not None
    if state.finalizing is not None:
        if state.now < state.deadline:
            state.wait(state.deadline)
            return
        state.warn(f"finalizing micro-batch {state.finalizing} was not over in time; nobody waits for it")
        state.finalizing = None
    # Publishing is not given up: what is committed must come out.
    if state.publishing:
        return
    if state.end.state is EndState.STOPPED:
        _tear_down(state)
    else:
        state.phase = Phase.SHUTTING_DOWN
        state.set_deadline()
        state.ask(CallShutdown(_forwards(state), state.deadline))


def _tear_down(state: JobState, *, hasty: bool = False) -> None:
    state.phase = Phase.TEARING_DOWN
    state.set_deadline()
    if hasty:
        state.deadline = shifted(state.now, state.settings.haste)
    assert state.deadline is not None
    state.ask(TearDown(_backwards(state), state.deadline))


def _called(state: JobState) -> None:
    if state.phase is Phase.SHUTTING_DOWN:
        _tear_down(state)
    else:
        assert state.end is not None
        state.phase, state.deadline = Phase.ENDED, None
        state.ask(state.end)


def _forwards(state: JobState) -> tuple[str, ...]:
    return tuple(stage.name for stage in state.layout.stages)


def _backwards(state: JobState) -> tuple[str, ...]:
    return tuple(stage.name for stage in reversed(state.layout.stages))
