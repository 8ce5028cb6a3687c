"""The life of a job without gRPC: states in order, all kinds of ends, restarts."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from arcbeam.errors import (
    InvalidPipelineError,
    JobNotFoundError,
    RequestRefusedError,
    SubmissionError,
    UserCodeError,
    WorkerLostError,
)
from arcbeam.jobs import registry
from arcbeam.jobs.execution import JobEvents, JobState, Level, Submission
from arcbeam.jobs.lifecycle import Jobs
from arcbeam.jobs.registry import MessageLogged, StateChanged
from arcbeam.store.log.requests import RequestKind
from tests.golden import check_message
from tests.jobs.fakes import WAIT, Fake, succeed

ENDED = [JobState.STOPPED, JobState.STARTING, JobState.RUNNING]


def start(jobs: Jobs, name: str = "words") -> str:
    id = jobs.prepare(name, b"pipeline", {}, b"", needs_files=False)
    jobs.run(id, {})
    return id


def states(jobs: Jobs, id: str) -> list[JobState]:
    return [event.state for event in jobs.follow(id, states_only=True) if isinstance(event, StateChanged)]


def until(jobs: Jobs, id: str, state: JobState) -> None:
    for event in jobs.follow(id, states_only=True):
        if isinstance(event, StateChanged) and event.state is state:
            return


def errors(jobs: Jobs, id: str) -> list[str]:
    events = [event for event in jobs.follow(id) if isinstance(event, MessageLogged)]
    return [event.text for event in events if event.level is Level.ERROR]


def test_job_runs_to_done(jobs: Jobs, fake: Fake, tmp_path: Path) -> None:
    id = jobs.prepare("word count", b"pipeline", {"shards": "5"}, b"", needs_files=False)
    jobs.run(id, {"shards": "5"})
    assert states(jobs, id) == [*ENDED, JobState.DONE]
    home = tmp_path / "state" / id
    wanted = Submission(id, "word count", b"pipeline", {"shards": "5", "no_fusion": True}, None, home)
    assert fake.ran == [replace(wanted, defaults=frozenset({"no_fusion"}))]
    assert [replace(each, home=home) for each in fake.checked] == [wanted]


def test_executor_without_running_event_is_accepted(jobs: Jobs, fake: Fake) -> None:
    fake.behave = lambda submission, events: None
    assert states(jobs, start(jobs)) == [JobState.STOPPED, JobState.STARTING, JobState.DONE]


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", "..", "é" * 300, "\0"])
def test_ids_are_valid_file_names(jobs: Jobs, tmp_path: Path, name: str) -> None:
    id = jobs.prepare(name, b"pipeline", {}, b"", needs_files=False)
    assert jobs.folder(id).resolve().parent == tmp_path / "staged"
    assert id.isascii()
    assert len(id) < 100


def test_refused_pipeline_leaves_no_job(jobs: Jobs, fake: Fake) -> None:
    def refuse(submission: Submission) -> None:
        raise InvalidPipelineError("empty")

    fake.refuse = refuse
    with pytest.raises(InvalidPipelineError):
        start(jobs)
    assert jobs.registry.jobs() == []


@pytest.mark.contract("API-06")
def test_user_error_message_has_step_and_traceback(jobs: Jobs, fake: Fake) -> None:
    def fail(submission: Submission, events: JobEvents) -> None:
        raise UserCodeError("Parse/Map", "ValueError('x')", "Traceback: line 7 in parse")

    fake.behave = fail
    id = start(jobs)
    assert states(jobs, id)[-1] is JobState.FAILED
    (text,) = errors(jobs, id)
    for part in ("ValueError('x')", "Parse/Map", "line 7 in parse"):
        assert part in text
    last = list(jobs.follow(id))[-1]
    assert isinstance(last, StateChanged), "the error comes before the last state, where readers still see it"


def test_error_message_has_remedy(jobs: Jobs, fake: Fake) -> None:
    def fail(submission: Submission, events: JobEvents) -> None:
        raise WorkerLostError("a worker died", "give it more memory")

    fake.behave = fail
    assert errors(jobs, start(jobs)) == ["a worker died\n  what to do: give it more memory"]


@pytest.mark.parametrize("error", [RuntimeError("surprise"), SystemExit(3), KeyboardInterrupt(), MemoryError()])
def test_any_exception_of_a_job_spares_others(jobs: Jobs, fake: Fake, error: BaseException) -> None:
    def fail(submission: Submission, events: JobEvents) -> None:
        raise error

    fake.behave = fail
    id = start(jobs)
    assert states(jobs, id)[-1] is JobState.FAILED
    assert type(error).__name__ in errors(jobs, id)[0]
    fake.behave = lambda submission, events: None
    assert states(jobs, start(jobs))[-1] is JobState.DONE


def test_job_that_exhausts_the_stack_fails(jobs: Jobs, fake: Fake) -> None:
    def fail(submission: Submission, events: JobEvents) -> None:
        fail(submission, events)

    fake.behave = fail
    limit = sys.getrecursionlimit()
    id = start(jobs)
    assert states(jobs, id)[-1] is JobState.FAILED
    assert "RecursionError" in errors(jobs, id)[0]
    assert sys.getrecursionlimit() == limit


def test_cancel_ends_running_job(jobs: Jobs, fake: Fake) -> None:
    fake.behave = fake.until_cancelled
    id = start(jobs)
    following = jobs.follow(id, states_only=True)
    assert [next(following).state for _ in range(3)][-1] is JobState.RUNNING  # type: ignore[union-attr]
    assert jobs.cancel(id) in (JobState.CANCELLING, JobState.CANCELLED)
    assert states(jobs, id) == [*ENDED, JobState.CANCELLING, JobState.CANCELLED]
    assert errors(jobs, id) == ["the job was cancelled"]
    assert jobs.cancel(id) is JobState.CANCELLED


def test_cancelled_run_may_end_with_any_error(jobs: Jobs, fake: Fake) -> None:
    def fail(submission: Submission, events: JobEvents) -> None:
        fake.cancelled.wait(WAIT)
        raise RuntimeError("job group was cancelled")

    fake.behave = fail
    id = start(jobs)
    jobs.cancel(id)
    assert states(jobs, id)[-2:] == [JobState.CANCELLING, JobState.CANCELLED]


def test_run_that_ends_before_cancellation_is_done(jobs: Jobs, fake: Fake) -> None:
    def finish(submission: Submission, events: JobEvents) -> None:
        assert fake.cancelled.wait(WAIT)

    fake.behave = finish
    id = start(jobs)
    jobs.cancel(id)
    assert states(jobs, id)[-2:] == [JobState.CANCELLING, JobState.DONE]


def test_cancelled_prepared_job_cannot_run(jobs: Jobs) -> None:
    id = jobs.prepare("words", b"pipeline", {}, b"", needs_files=False)
    assert jobs.cancel(id) is JobState.CANCELLED
    with pytest.raises(SubmissionError, match="CANCELLED"):
        jobs.run(id, {})


def test_failed_cancellation_is_logged(jobs: Jobs, fake: Fake) -> None:
    fake.cancel_error = RuntimeError("no connection")
    fake.behave = fake.until_cancelled
    id = start(jobs)
    assert jobs.cancel(id) is JobState.CANCELLING
    logged = (event for event in jobs.follow(id) if isinstance(event, MessageLogged))
    error = next(logged)
    assert (error.level, "'cancel'" in error.text) == (Level.ERROR, True)
    assert "RuntimeError('no connection')" in error.text
    fake.cancelled.set()
    states(jobs, id)
    fake.cancel_error = None


def test_unknown_job_is_an_error(jobs: Jobs) -> None:
    for ask in (jobs.cancel, lambda id: jobs.run(id, {}), lambda id: list(jobs.follow(id))):
        with pytest.raises(JobNotFoundError, match="'j-9'"):
            ask("j-9")


def test_job_runs_once(jobs: Jobs) -> None:
    id = start(jobs)
    states(jobs, id)
    with pytest.raises(SubmissionError, match=f"'{id}'.*DONE"):
        jobs.run(id, {})


def test_job_without_its_files_is_not_started(jobs: Jobs) -> None:
    id = jobs.prepare("words", b"pipeline", {}, b"", needs_files=True)
    with pytest.raises(SubmissionError, match=f"'{id}'.*\n.*Prepare"):
        jobs.run(id, {})


def test_events_after_end_are_dropped(jobs: Jobs, fake: Fake) -> None:
    kept: list[JobEvents] = []
    fake.behave = lambda submission, events: kept.append(events)
    id = start(jobs)
    before = list(jobs.follow(id))
    kept[0].message(Level.ERROR, "late")
    kept[0].running()
    assert list(jobs.follow(id)) == before


def test_flood_of_messages_keeps_errors(jobs: Jobs, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MESSAGES_PER_JOB", 3)

    def flood(submission: Submission, events: JobEvents) -> None:
        for number in range(50):
            events.message(Level.BASIC, str(number))
        for number in range(50):
            events.message(Level.ERROR, f"bad {number}")

    fake.behave = flood
    messages = [event for event in jobs.follow(start(jobs)) if isinstance(event, MessageLogged)]
    assert [m.text for m in messages[:3]] == ["0", "1", "2"]
    assert messages[3].level is Level.WARNING
    assert [m.text for m in messages[4:]] == [f"bad {number}" for number in range(6)]


def test_snapshot_is_of_a_running_job(jobs: Jobs, fake: Fake) -> None:
    fake.behave, fake.snapshot = fake.until_cancelled, {"progress": {"stages": []}}
    prepared = jobs.prepare("words", b"pipeline", {}, b"", needs_files=False)
    id = start(jobs)
    until(jobs, id, JobState.RUNNING)
    assert (jobs.snapshot(prepared), jobs.snapshot(id)) == ({}, fake.snapshot)
    jobs.cancel(id)


def test_disconnected_listener_ends_stream(jobs: Jobs, fake: Fake) -> None:
    fake.behave = fake.until_cancelled
    id = start(jobs)
    disconnected = threading.Event()
    seen: list[object] = []
    listener = threading.Thread(target=lambda: seen.extend(jobs.follow(id, alive=lambda: not disconnected.is_set())))
    listener.start()
    disconnected.set()
    jobs.registry.wake()
    listener.join(WAIT)
    assert not listener.is_alive()


@pytest.mark.contract("END-03")
def test_suspended_job_can_be_started_again(jobs: Jobs, fake: Fake, tmp_path: Path) -> None:
    fake.behave = lambda submission, events: JobState.STOPPED
    id = start(jobs)
    assert states(jobs, id) == [JobState.STOPPED, JobState.STARTING, JobState.STOPPED]
    fake.behave = succeed
    jobs.run(id, {})
    assert states(jobs, id)[-4:] == [*ENDED, JobState.DONE]


@pytest.mark.contract("END-02")
def test_drained_job_refuses_suspension(jobs: Jobs, fake: Fake) -> None:
    taken = threading.Event()
    fake.answer = taken.set

    def drain(submission: Submission, events: JobEvents) -> JobState:
        events.running()
        assert taken.wait(WAIT)
        events.turned(JobState.DRAINING)
        return JobState.DRAINED

    fake.behave = drain
    id = start(jobs)
    assert jobs.ask(id, RequestKind.DRAIN) == "/jobs/savepoints/named"
    assert states(jobs, id) == [*ENDED, JobState.DRAINING, JobState.DRAINED]
    with pytest.raises(RequestRefusedError) as caught:
        jobs.ask(id, RequestKind.SUSPEND)
    check_message("server-refuses-drained-job", str(caught.value), job=id)


def test_job_without_thread_fails(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        id = start(jobs)
    assert states(jobs, id)[-1] is JobState.FAILED
    assert "can't start new thread" in errors(jobs, id)[0]


def test_close_cancels_running_jobs(jobs: Jobs, fake: Fake) -> None:
    fake.behave = fake.until_cancelled
    id = start(jobs)
    jobs.close(WAIT)
    assert jobs.registry.job(id).state is JobState.CANCELLED
    with pytest.raises(SubmissionError):
        jobs.run(jobs.prepare("words", b"", {}, b"", needs_files=False), {})


@pytest.mark.contract("END-04")
def test_cancel_does_not_wait_for_run(jobs: Jobs, fake: Fake) -> None:
    fake.behave, called, ended = fake.until_cancelled, threading.Event(), threading.Event()

    def slowly() -> None:
        called.set()
        assert ended.wait(WAIT)
        fake.cancelled.set()

    fake.cancelling = slowly
    id, other = start(jobs), start(jobs)
    assert jobs.cancel(id) is JobState.CANCELLING
    assert called.wait(WAIT)
    jobs.close(0.0)
    assert jobs.registry.job(other).state is JobState.CANCELLING
    ended.set()
    assert [states(jobs, each)[-1] for each in (id, other)] == [JobState.CANCELLED] * 2


def test_error_that_cannot_be_encoded_ends_job(jobs: Jobs, fake: Fake) -> None:
    def fail(submission: Submission, events: JobEvents) -> None:
        events.message(Level.WARNING, "odd \udcff")
        raise ValueError("bad name \ud800")

    fake.behave = fail
    id = start(jobs)
    assert states(jobs, id)[-1] is JobState.FAILED
    assert r"bad name \ud800" in errors(jobs, id)[0]
