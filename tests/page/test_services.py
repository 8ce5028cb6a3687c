"""Jobs of a service: of a job server over gRPC, with a fake executor; with and without contact."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from arcbeam.console.progressline import BatchProgress, StageProgress, StageState
from arcbeam.errors import JobNotFoundError, SetupError, UserCodeError
from arcbeam.jobs.client import JobClient
from arcbeam.jobs.execution import JobEvents, Level, Submission
from arcbeam.page.services import ServiceSource
from arcbeam.page.sources import FolderSource, Several
from arcbeam.page.states import is_live
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.endnote import EndNote
from arcbeam.streaming.status.folder import status_in
from arcbeam.streaming.status.status import as_record
from tests.jobs.fakes import Client, Fake, serving
from tests.page.test_app import client, job  # noqa: F401  # a fixture

pytestmark = pytest.mark.contract("PAGE-03")

COUNT = StageProgress("Count", StageState.RUNNING, 3, 8, 0, 70, 1.5)
PROGRESS = {"stages": [asdict(COUNT)]}


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def server(tmp_path: Path, fake: Fake) -> Iterator[tuple[Client, ServiceSource]]:
    with serving(tmp_path / "jobs", fake) as (server, stubs), JobClient(f"localhost:{server.port}") as jobs:
        yield stubs, ServiceSource(jobs, "the server")


def test_bounded_job_of_server_shows_its_stages(server: tuple[Client, ServiceSource], fake: Fake) -> None:
    stubs, source = server
    fake.behave, fake.snapshot = fake.until_cancelled, {"status": None, "progress": PROGRESS, "folder": ""}
    id = stubs.run(name="words", shards=3, s3_secret_access_key="hidden-hidden")
    (listed,) = source.jobs()
    assert (listed.id, listed.name, listed.progress) == (id, "words", BatchProgress((COUNT,)))
    assert "3 of 8" in client(source).get(f"/job/{id}").text
    details = source.details(id)
    assert details is not None
    assert (details["options"]["shards"], details["options"]["s3_secret_access_key"]) == (3, "…")
    assert source.job("other") is None


def test_failed_job_of_server_keeps_error_and_stages(server: tuple[Client, ServiceSource], fake: Fake) -> None:
    stubs, source = server

    def fail(submission: Submission, events: JobEvents) -> None:
        events.running()
        events.message(Level.WARNING, "slow")
        events.progress(PROGRESS)
        raise UserCodeError("Count", "KeyError: 'x'", "at line 7")

    fake.behave = fail
    id = stubs.run()
    assert stubs.states(id)[-1] == "FAILED"
    (listed,) = source.jobs()
    assert (listed.state, listed.progress) == ("FAILED", None)
    assert "KeyError: 'x'" in listed.why
    assert not is_live(listed)
    found = source.job(id)
    assert found is not None
    assert (found.progress, found.why) == (BatchProgress((COUNT,)), listed.why)
    assert 0 < found.started <= found.since
    text = client(source).get(f"/job/{id}").text
    assert re.search(r" · started <time [^>]*>\d{4}-\d\d-\d\d .*Z</time>, ran for \S+ s</p>", text)
    details = source.details(id)
    assert details is not None
    assert [message["level"] for message in details["messages"]] == ["WARNING", "ERROR"]


class Gone:
    """A service that can be switched off.

    Args:
        others: its jobs after "a".
        entry: of "a".
    """

    def __init__(self, *others: Mapping[str, Any], **entry: Any) -> None:
        self.entry = {"id": "a", "name": "words", "state": "RUNNING", "changed": 1, "error": "", **entry}
        self.gone, self.calls, self.others = False, 0, others

    def overview(self) -> list[Mapping[str, Any]]:
        return [self.details("a", False), *self.others]

    def details(self, id: str, more: bool) -> Mapping[str, Any]:
        self.calls += 1
        if self.gone:
            raise SetupError("no job server answers")
        if id != "a":
            raise JobNotFoundError("no such job")
        return self.entry


def test_service_without_contact_shows_no_stale_state(job: FolderBlobs) -> None:  # noqa: F811
    now = [100.0]
    service = Gone(status=as_record(status_in(job)))
    source = ServiceSource(service, "the server", lambda: now[0])
    page = client(source)
    assert "No contact" not in page.get("/job/a").text
    page.get("/")
    service.gone, now[0] = True, 107.0
    for path in ("/", "/job/a"):
        text = page.get(path).text
        assert "no contact with the server for 7 s" in text
        assert "<strong>No contact</strong>" in text
        assert "<strong>OK</strong>" not in text
    service.gone, now[0] = False, 110.0
    assert "no contact" not in page.get("/").text.lower()
    assert page.get("/job/b").status_code == 404


def test_ended_jobs_stay_ended_without_contact() -> None:
    now = [100.0]
    ended = [
        {"id": state, "name": state, "state": state, "changed": 1, "error": why}
        for state, why in (("DONE", ""), ("FAILED", "KeyError: 3"), ("CANCELLED", ""))
    ]
    service = Gone(*ended)
    source = ServiceSource(service, "the server", lambda: now[0])
    page = client(source)
    before = page.get("/").text
    service.gone, now[0] = True, 131.0
    for text in (page.get("/").text, page.get("/").text):
        assert text.count("no contact with the server for 31 s") == 1
        assert re.findall(r'href="/job/(\w+)"', text)[0] == "a"
        rows = dict(re.findall(r'<tr id="job-(\w+)">(.*?)</tr>', text))
        assert "<strong>No contact</strong> for 31 s" in rows.pop("a")
        assert all(row in before for row in rows.values())
    failed = page.get("/job/FAILED").text
    assert "<strong>Failed</strong> KeyError: 3" in failed
    assert "KeyError: 3" in failed.partition("<h2>Error</h2>")[2]
    # The notice has to go.
    assert 'http-equiv="refresh"' in failed
    metrics = page.get("/metrics").text
    assert 'arcbeam_up{job="words (a)"} 0' in metrics
    assert not any(f'job="{state["name"]} (' in metrics for state in ended)


def test_without_contact_from_the_start_nothing_is_asserted() -> None:
    service = Gone()
    service.gone = True
    page = client(ServiceSource(service, "the server"))
    text = page.get("/").text
    assert "no contact with the server" in text
    assert "No jobs." not in text
    answer = page.get("/job/a")
    assert (answer.status_code, "no such job" in answer.text) == (503, False)


def test_viewers_share_calls_of_service() -> None:
    now = [0.0]
    service = Gone()
    source = ServiceSource(service, "the server", lambda: now[0])
    for _ in range(5):
        list(source.jobs())
    assert service.calls == 1
    service.gone, now[0] = True, 10.0
    for _ in range(5):
        list(source.jobs())
    assert service.calls == 2


def test_ended_job_of_service_is_shown_from_its_folder(job: FolderBlobs) -> None:  # noqa: F811
    service = Gone(state="FAILED", error="disk full", folder=str(job))
    source = ServiceSource(service, "the server")
    found = source.job("a")
    assert found is not None
    assert found.status is not None
    assert found.status.ended == EndNote(0, "FAILED", "disk full")
    assert source.history("a") is not None
    assert "disk full" in client(source).get("/job/a").text
    service.entry["folder"] = "/nowhere"
    assert source.history("b") is None


def test_folders_and_services_are_shown_together(job: FolderBlobs) -> None:  # noqa: F811
    both = Several(FolderSource([job]), ServiceSource(Gone(), "the server"))
    assert len(list(both.jobs())) == 2
    assert all(both.job(each.id) is not None for each in both.jobs())
    assert both.grows()


def test_status_of_another_version_is_none(job: FolderBlobs) -> None:  # noqa: F811
    record = as_record(status_in(job))
    newer = {**record, "causes": [{**record["causes"][0], "kind": "moon"}]}
    source = ServiceSource(Gone(status=newer, folder=""), "the server")
    found = source.job("a")
    assert found is not None
    assert found.status is None
    assert client(source).get("/job/a").status_code == 200
