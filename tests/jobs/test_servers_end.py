"""What becomes of jobs when their server stops, is killed, or has lost what it knew of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from arcbeam.errors import JobCancelledError
from arcbeam.jobs.execution import JobEvents, JobState, Submission
from arcbeam.jobs.lifecycle import Jobs
from arcbeam.jobs.registry import StateChanged
from tests.jobs.fakes import WAIT, Fake, succeed
from tests.jobs.test_lifecycle import ENDED, errors, start, states, until


@pytest.mark.contract("API-02")
def test_a_job_that_ran_when_the_server_died_is_failed(
    open_jobs: Callable[[], Jobs], fake: Fake, tmp_path: Path
) -> None:
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
    assert "the job server ended while this job was RUNNING" in errors(jobs, running)[0]
    assert states(jobs, done) == [*ENDED, JobState.DONE]
    assert not (tmp_path / "staged" / running).exists()
    fake.behave = lambda submission, events: None
    jobs.run(prepared, {})
    assert states(jobs, prepared)[-1] is JobState.DONE


@pytest.mark.contract("API-02", "STORE-04")
def test_a_registry_that_is_lost_takes_no_state_with_it(
    open_jobs: Callable[[], Jobs], fake: Fake, tmp_path: Path
) -> None:
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
def test_a_job_that_can_go_on_does_when_the_next_server_starts(
    open_jobs: Callable[[], Jobs], fake: Fake, tmp_path: Path
) -> None:
    jobs = open_jobs()
    fake.goes_on, fake.behave = True, fake.until_cancelled
    id = start(jobs)
    until(jobs, id, JobState.RUNNING)
    for kind in ("staged", "state"):
        (tmp_path / kind / id).mkdir(parents=True)
        (tmp_path / kind / "forgotten").mkdir()
    jobs = open_jobs()
    assert [(tmp_path / kind / id).exists() for kind in ("staged", "state")] == [True, True]
    kept = [(tmp_path / kind / "forgotten").exists() for kind in ("staged", "state")]
    assert kept == [False, True], "a registry that was lost does not know of what is kept"
    assert jobs.registry.job(id).state is JobState.RUNNING
    fake.behave = lambda submission, events: events.running()
    jobs.resume()
    assert states(jobs, id) == [*ENDED, JobState.STARTING, JobState.RUNNING, JobState.DONE]
    assert [each.options for each in fake.ran[-2:]] == [{"shards": 3, "no_fusion": True}] * 2
    assert [each.again for each in fake.ran[-2:]] == [False, True]
    kept = [(tmp_path / kind / id).exists() for kind in ("staged", "state")]
    assert kept == [False, True], "what a job keeps is the executor's"


def test_a_server_that_stops_leaves_what_can_go_on(open_jobs: Callable[[], Jobs], fake: Fake) -> None:
    jobs = open_jobs()
    fake.goes_on, fake.behave = True, fake.until_cancelled
    id = start(jobs)
    until(jobs, id, JobState.RUNNING)
    jobs.close(WAIT)
    assert jobs.registry.job(id).state is JobState.RUNNING
    assert fake.cancelled.is_set()
    assert "goes on when it starts again" in str(jobs.registry.events(id, 0))


@pytest.mark.contract("END-03", "API-02")
@pytest.mark.parametrize("end", [JobState.STOPPED, JobState.DRAINED])
def test_a_job_that_is_suspended_because_the_server_stops_goes_on_with_the_next(
    open_jobs: Callable[[], Jobs], fake: Fake, end: JobState
) -> None:
    told: list[bool] = []

    def run(submission: Submission, events: JobEvents) -> JobState:
        events.running()
        assert fake.cancelled.wait(WAIT)
        return end

    def ending(again: threading.Event) -> None:
        told.append(again.is_set())
        fake.cancelled.set()

    jobs = open_jobs()
    fake.goes_on, fake.behave, fake.ending = True, run, ending
    id = start(jobs)
    until(jobs, id, JobState.RUNNING)
    jobs.close(WAIT)
    assert told == [False]
    assert jobs.registry.job(id).state is (JobState.RUNNING if end is JobState.STOPPED else end)
    fake.behave = succeed
    jobs = open_jobs()
    jobs.resume()
    assert states(jobs, id)[-1] is (JobState.DONE if end is JobState.STOPPED else end)


@pytest.mark.contract("END-03", "API-02")
@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("is_broken_off", [True, False])
def test_a_job_that_somebody_has_suspended_stays_so_when_the_server_stops(
    open_jobs: Callable[[], Jobs], fake: Fake, is_killed: bool, is_broken_off: bool
) -> None:
    def run(submission: Submission, events: JobEvents) -> JobState:
        events.running()
        assert fake.cancelled.wait(WAIT)
        if is_broken_off:
            raise JobCancelledError("interrupted")
        return JobState.STOPPED

    jobs = open_jobs()
    fake.goes_on, fake.behave = True, run
    id = start(jobs)
    until(jobs, id, JobState.RUNNING)
    # It is committed. The run still publishes, and makes its last calls.
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
def test_a_job_that_was_being_cancelled_when_the_server_ended_is_cancelled(
    open_jobs: Callable[[], Jobs], fake: Fake
) -> None:
    jobs = open_jobs()
    fake.goes_on, fake.behave, fake.cancelling = True, fake.until_cancelled, lambda: None
    stopped = start(jobs)
    until(jobs, stopped, JobState.RUNNING)
    jobs.cancel(stopped)
    jobs.close(0.0)
    fake.cancelled.set()
    assert states(jobs, stopped)[-1] is JobState.CANCELLED, "it does not go on with the next server"
    fake.cancelled.clear()
    jobs = open_jobs()
    died = start(jobs)
    until(jobs, died, JobState.RUNNING)
    jobs.registry.transition(died, JobState.CANCELLING, {JobState.RUNNING}, 2)
    jobs = open_jobs()
    assert jobs.registry.job(died).state is JobState.CANCELLED
    assert errors(jobs, died) == ["the job was cancelled: the job server ended before it could say so"]
