"""The jobs of a server, as commands list them."""

from __future__ import annotations

import pytest

from arcbeam.jobs.client import JobClient
from arcbeam.jobs.execution import JobEvents, JobState, Submission
from tests.jobs.fakes import Client, Fake

pytestmark = pytest.mark.contract("API-02")


def test_list_has_the_state_and_times_of_each_job(client: Client, fake: Fake) -> None:
    def suspend(submission: Submission, events: JobEvents) -> JobState:
        events.running()
        return JobState.STOPPED

    prepared = client.prepare()
    done = client.run()
    client.states(done)
    fake.behave = suspend
    suspended = client.run()
    client.states(suspended)
    fake.behave = fake.until_cancelled
    running = client.run()
    with JobClient(prepared.artifact_staging_endpoint.url) as jobs:
        found = {each.id: each for each in jobs.jobs().jobs}
        assert [each.id for each in jobs.jobs(running=True).jobs] == [running]
    assert {id: each.state for id, each in found.items() if id != running} == {
        prepared.preparation_id: "STOPPED",
        done: "DONE",
        suspended: "STOPPED",
    }
    for id in (done, suspended):
        started, ended = found[id].started, found[id].ended
        assert started is not None
        assert ended is not None
        assert started <= ended
    assert found[running].ended is None
    assert (found[prepared.preparation_id].started, found[prepared.preparation_id].ended) == (None, None)
