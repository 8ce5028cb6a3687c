"""Jobs whose server stops, is killed, or has lost its registry."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from arcbeam.errors import JobCancelledError
from arcbeam.jobs.execution import JobEvents, JobState, Level, Submission
from arcbeam.jobs.lifecycle import Jobs
from arcbeam.jobs.registry import MessageLogged, StateChanged
from tests.golden import check_message
from tests.jobs.fakes import WAIT, Fake, succeed
from tests.jobs.test_lifecycle import ENDED, errors, start, states, until


@pytest.mark.contract("API-02")
def test_job_of_dead_server_is_failed(open_jobs: Callable[[], Jobs], fake: Fake, tmp_path: Path) -> None:
    jobs = open_jobs()
    done = start(jobs)
    assert states(jobs, done)[-1] is JobState.DONE
    prepared = jobs.prepare("later", b"pipeline", {}, b"", needs_files=False)
    fake.behave = fake.until_cancelled
    running = start(jobs)
    for event, _ in pairwise(jobs.follow(running)):
        if isinstance(event, StateChanged) and event.state is JobState.STARTING:
            break
    (tmp_path / "staged" / running).mkdir(parents=True)
    jobs = open_jobs()
    assert {job.id: job.state for job in jobs.registry.jobs()} == {
        done: JobState.DONE,
        prepared: JobState.STOPPED,
        running: JobState.FAILED,
    }
    assert "RUNNING" in errors(jobs, running)[0]
    assert states(jobs, done) == [*ENDED, JobState.DONE]
    assert not (tmp_path / "staged" / running).exists()
    fake.behave = lambda submission, events: None
    jobs.run(prepared, {})
    assert states(jobs, prepared)[-1] is JobState.DONE


@pytest.mark.contract("API-02", "STORE-04")
def test_lost_registry_leaves_state_of_jobs(open_jobs: Callable[[], Jobs], fake: Fake, tmp_path: Path) -> None:
    jobs = open_jobs()
    id = start(jobs)
    states(jobs, id)
    manifest = tmp_path / "state" / id / "manifests" / "0"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    jobs.registry.close()
    for file in tmp_path.glob("jobs.sqlite*"):
        file.unlink()
    assert open_jobs().registry.jobs() == []
    assert manifest.exists()


@pytest.mark.contract("API-02", "STORE-04")
def test_next_server_resumes_job(open_jobs: Callable[[], Jobs], fake: Fake, tmp_path: Path) -> None:
    jobs = open_jobs()
    fake.resumable, fake.behave = True, fake.until_cancelled
    id = start(jobs)
    until(jobs, id, JobState.RUNNING)
    for kind in ("staged", "state"):
        (tmp_path / kind / id).mkdir(parents=True)
        (tmp_path / kind / "forgotten").mkdir()
    jobs = open_jobs()
    assert [(tmp_path / kind / id).exists() for kind in ("staged", "state")] == [True, True]
    kept = [(tmp_path / kind / "forgotten").exists() for kind in ("staged", "state")]
    assert kept == [False, True], "a lost registry does not know all jobs with state"
    assert jobs.registry.job(id).state is JobState.RUNNING
    fake.behave = lambda submission, events: events.running()
    jobs.resume()
    assert states(jobs, id) == [*ENDED, JobState.STARTING, JobState.RUNNING, JobState.DONE]
    assert [each.options for each in fake.ran[-2:]] == [{"shards": 3, "no_fusion": True}] * 2
    assert [each.again for each in fake.ran[-2:]] == [False, True]
    kept = [(tmp_path / kind / id).exists() for kind in ("staged", "state")]
    assert kept == [False, True], "the executor removes the job's state"


def test_stopped_server_leaves_resumable_job(open_jobs: Callable[[], Jobs], fake: Fake) -> None:
    jobs = open_jobs()
    fake.resumable, fake.behave = True, fake.until_cancelled
    id = start(jobs)
    until(jobs, id, JobState.RUNNING)
    jobs.close(WAIT)
    assert jobs.registry.job(id).state is JobState.RUNNING
    assert fake.cancelled.is_set()
    (warning,) = (event for event in jobs.registry.events(id, 0) if isinstance(event, MessageLogged))
    assert warning.level is Level.WARNING


@pytest.mark.contract("END-03", "API-02")
@pytest.mark.parametrize("end", [JobState.STOPPED, JobState.DRAINED])
def test_job_suspended_by_server_stop_is_resumed(open_jobs: Callable[[], Jobs], fake: Fake, end: JobState) -> None:
    signals: list[bool] = []

    def run(submission: Submission, events: JobEvents) -> JobState:
        events.running()
        assert fake.cancelled.wait(WAIT)
        return end

    def ending(again: threading.Event) -> None:
        signals.append(again.is_set())
        fake.cancelled.set()

    jobs = open_jobs()
    fake.resumable, fake.behave, fake.ending = True, run, ending
    id = start(jobs)
    until(jobs, id, JobState.RUNNING)
    jobs.close(WAIT)
    assert signals == [False]
    assert jobs.registry.job(id).state is (JobState.RUNNING if end is JobState.STOPPED else end)
    fake.behave = succeed
    jobs = open_jobs()
    jobs.resume()
    assert states(jobs, id)[-1] is (JobState.DONE if end is JobState.STOPPED else end)


@pytest.mark.contract("END-03", "API-02")
@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("is_interrupted", [True, False])
def test_job_suspended_on_request_stays_suspended(
    open_jobs: Callable[[], Jobs], fake: Fake, is_killed: bool, is_interrupted: bool
) -> None:
    def run(submission: Submission, events: JobEvents) -> JobState:
        events.running()
        assert fake.cancelled.wait(WAIT)
        if is_interrupted:
            raise JobCancelledError("interrupted")
        return JobState.STOPPED

    jobs = open_jobs()
    fake.resumable, fake.behave = True, run
    id = start(jobs)
    until(jobs, id, JobState.RUNNING)
    # The suspension is committed. The run still publishes, and makes its last calls.
    fake.suspended = True
    if not is_killed:
        jobs.close(WAIT)
    jobs = open_jobs()
    jobs.resume()
    assert jobs.registry.job(id).state is JobState.STOPPED
    fake.suspended, fake.behave = False, succeed
    jobs.run(id, {})
    assert states(jobs, id)[-1] is JobState.DONE


@pytest.mark.contract("END-04", "API-02")
def test_job_being_cancelled_at_server_end_is_cancelled(open_jobs: Callable[[], Jobs], fake: Fake) -> None:
    jobs = open_jobs()
    fake.resumable, fake.behave, fake.cancelling = True, fake.until_cancelled, lambda: None
    stopped = start(jobs)
    until(jobs, stopped, JobState.RUNNING)
    jobs.cancel(stopped)
    jobs.close(0.0)
    fake.cancelled.set()
    assert states(jobs, stopped)[-1] is JobState.CANCELLED, "the next server does not resume it"
    fake.cancelled.clear()
    jobs = open_jobs()
    died = start(jobs)
    until(jobs, died, JobState.RUNNING)
    jobs.registry.transition(died, JobState.CANCELLING, {JobState.RUNNING}, 2)
    jobs = open_jobs()
    assert jobs.registry.job(died).state is JobState.CANCELLED
    check_message("server-ended-during-cancellation", "\n".join(errors(jobs, died)))
