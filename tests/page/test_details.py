"""What the page shows on request, and the metrics of all its jobs."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from apache_beam.metrics.cells import DistributionData, DistributionResult, GaugeData, GaugeResult
from apache_beam.metrics.execution import MetricKey, MetricResult
from apache_beam.metrics.metricbase import MetricName
from starlette.testclient import TestClient
from typing_extensions import override

from arcbeam.console.progressline import BatchProgress, StageProgress, StageState
from arcbeam.jobs.metrics import JobMetrics, metrics_record
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.options import with_defaults
from arcbeam.page import app as apps
from arcbeam.page.app import app_of
from arcbeam.page.details import message_rows, savepoint_rows
from arcbeam.page.exposition import exposition
from arcbeam.page.live import UPDATE_BYTES
from arcbeam.page.services import ServiceSource
from arcbeam.page.sources import FolderSource, Listed
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.endnote import EndNote
from arcbeam.store.log.planfile import record_details
from arcbeam.store.log.savepoints import pinned
from arcbeam.streaming.status.folder import status_in
from arcbeam.streaming.status.records import status_from
from arcbeam.streaming.status.status import as_record
from tests.monitoring.test_prometheus import _STATUS
from tests.page import samples
from tests.page.test_app import BASE, EVIL, OURS, Fixed, client, job  # noqa: F401  # a fixture
from tests.page.test_services import Gone
from tests.streaming.jobs import opened

pytestmark = pytest.mark.contract("PAGE-05")


class Found(JobMetrics):
    """Metrics of each kind."""

    def __init__(self) -> None:
        super().__init__([])

    def query(self, filter: Any = None) -> dict[str, list[Any]]:
        values = {
            "counters": 7,
            "distributions": DistributionResult(DistributionData(12, 4, 1, 5)),
            "gauges": GaugeResult(GaugeData(3, 9)),
            "string_sets": {EVIL, *(f"{n:03}" for n in range(150))},
        }
        key = MetricKey(EVIL, MetricName("ns", EVIL))
        return {kind: [MetricResult(key, value, value)] for kind, value in values.items()}


def test_details_of_a_service_show_each_kind(job: FolderBlobs) -> None:  # noqa: F811
    metrics = metrics_record(Found())
    message = {"time": 5, "level": "WARNING", "text": f"slow {EVIL}"}
    options = {"shards": 3, "s3_secret_access_key": "…", EVIL: [EVIL]}
    service = Gone(messages=[message], metrics=metrics, options=options, folder="")
    text = client(ServiceSource(service, "the server")).get("/job/a/details").text
    assert "<script" not in OURS.sub("", text)
    for shown in (">7<", "4 values from 1 to 5, mean 3", ">3<", "and 51 more", "slow &lt;script", "--shards", "…"):
        assert shown in text, shown
    assert client(Fixed()).get("/job/a/details").status_code == 404


def test_open_details_follow_the_job() -> None:
    messages = [{"time": 5, "level": "WARNING", "text": f"slow {at} {'x' * 900}"} for at in range(200)]
    metrics = [{"kind": "counters", "step": "Parse", "namespace": "n", "name": "bad", "value": 7}]
    service = Gone(messages=messages, metrics=metrics, folder="")
    page = TestClient(app_of(ServiceSource(service, "the server")), base_url=BASE)
    text = page.get("/job/a/details").text
    # All messages are in the page, but only the newest ones are followed, so that an update is small.
    assert text.count("slow ") == 200
    followed = text.partition('id="messages"')[2].partition("<summary>")[0]
    assert "slow 199 " in followed
    assert 10 <= followed.count("slow ") <= 13
    version = text.partition('data-version="')[2].partition('"')[0]
    metrics[0]["value"] = 8
    page = TestClient(app_of(ServiceSource(service, "the server")), base_url=BASE)
    events = page.get("/job/a/details/events", params={"version": version, "brief": "1"}).text
    assert "metric-0" in events
    assert "<td>8</td>" in events
    assert len(events) < UPDATE_BYTES


def test_loaded_details_are_new_and_updates_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a request of the user, the page that is loaded shows its effect."""
    monkeypatch.setattr(apps, "DETAILS_SECONDS", 3600.0)

    class Counting(samples.Jobs):
        reads = 0

        @override
        def details(self, id: str) -> dict[str, Any]:
            self.reads += 1
            return {"options": {"shards": self.reads}, "defaults": []}

    jobs = Counting(Listed("a", "/a", samples.status(2, mode=CommitMode.DONE)))
    page = client(jobs)
    for reads in (1, 2, 3):
        assert f"<td>{reads}</td>" in page.get("/job/a/details").text
    for _ in range(3):
        assert page.get("/job/a/details/events").status_code == 200
    assert jobs.reads == 3


def test_options_that_were_set_come_first() -> None:
    options = {"runner": "x", "shards": 3, "streaming": False, "save_main_session": True, "own": 1}
    defaults = with_defaults({**options, "temp_location": None, "sdk_worker_parallelism": "1"})
    assert defaults == ["sdk_worker_parallelism", "streaming", "temp_location"]
    text = client(ServiceSource(Gone(options=options, defaults=defaults, folder=""), "h")).get("/job/a/details").text
    set_ones, _, folded = text.partition("<summary>1 options with their defaults")
    assert "--streaming" in folded
    assert "--streaming" not in set_ones
    assert all(name in set_ones for name in ("--runner", "--shards", "--save_main_session", "--own"))


def test_savepoints_have_their_size_and_command(job: FolderBlobs) -> None:  # noqa: F811
    log = opened(job)
    log.propose(pinned(log.draft(Timestamp(1_000_000)), "before"))
    source = FolderSource([job])
    (listed,) = source.jobs()
    text = client(source).get(f"/job/{listed.id}/details").text
    assert '<th scope="row">before</th>' in text
    assert "--from_savepoint" in text, "this job has no job graph"
    details = source.details(listed.id)
    assert details is not None
    assert details["savepoints"][0]["path"] == f"{job}/savepoints/before"


@pytest.mark.contract("END-03")
def test_savepoint_of_an_end_is_resumed_by_force() -> None:
    savepoint = {
        "path": "/d/savepoints/s",
        "time": 5,
        "micro_batch": 7,
        "size": 1,
        "own": 1,
        "job_graph": {"name": "n"},
    }
    ended, taken, old = savepoint_rows(
        {
            "savepoints": [
                {**savepoint, "name": "s", "mode": "running", "problem": "", "later": 1_200},
                {**savepoint, "name": "s", "mode": "running", "problem": ""},
                {**savepoint, "name": "s", "mode": "drained", "problem": ""},
            ]
        }
    )
    assert (taken.resume, taken.note) == ("arcbeam resume /d/savepoints/s", "")
    assert old.resume == "arcbeam resume /d/savepoints/s --discard_later_micro_batches"
    assert old.note == "discards 1,200 later committed micro-batch(es)"
    assert ended.resume == "arcbeam resume /d/savepoints/s --force_resume"
    assert ended.note.startswith("the job is drained there: its sources are at their end")


def test_details_have_the_log_of_all_stages() -> None:
    log = [
        {"time": time, "level": "INFO", "stage": stage, "worker": "host:7", "text": f"{EVIL} {time}"}
        for time, stage in enumerate(("Read", "Sum"))
    ]
    # As of a job that fails in its first micro-batch, and has no pages of stages.
    status = replace(samples.status(1, samples.now(), micro_batch=0), stages=(), causes=())
    found = samples.Jobs(Listed("a", "/a", status), details={"a": {"log": log}})
    text = client(found).get("/job/a/details").text.partition("<h2>Log of its tasks")[2].partition("<h2>")[0]
    assert re.findall(r"<td>(\w+, host:7)</td>", text) == ["Sum, host:7", "Read, host:7"]
    assert "<script" not in text


def test_folder_keeps_metrics_and_messages(job: FolderBlobs) -> None:  # noqa: F811
    source = FolderSource([job])
    (listed,) = source.jobs()
    assert "its driver has not written any yet" in client(source).get(f"/job/{listed.id}/details").text
    record_details(job, {"metrics": metrics_record(Found()), "messages": [{"time": 5, "level": "BASIC", "text": EVIL}]})
    text = client(source).get(f"/job/{listed.id}/details").text
    assert "<script" not in OURS.sub("", text)
    for shown in (">7<", "4 values from 1 to 5, mean 3", ">3<", "and 51 more", "BASIC"):
        assert shown in text, shown


def test_status_comes_back_from_its_record(job: FolderBlobs) -> None:  # noqa: F811
    assert status_from(as_record(_STATUS)) == _STATUS
    status = status_in(job)
    assert status_from(json.loads(json.dumps({**as_record(status), "field of a later version": 1}))) == status


def test_metrics_cover_all_jobs(job: FolderBlobs) -> None:  # noqa: F811
    status = replace(status_in(job), due=None, name="twin")
    progress = BatchProgress((StageProgress("Count", StageState.RUNNING, 3, 8, 0, 70, 1.5),))
    batch = Listed("c", "c at h", None, name="words", state="RUNNING", progress=progress)
    source = Fixed(
        Listed("a", "/a", status),
        Listed("b", "/b", status),
        batch,
        Listed("d", "/d", replace(status, mode=CommitMode.DONE, name="ended")),
        Listed("e", "/e", replace(status, mode=CommitMode.SUSPENDED, name="suspended")),
        Listed("f", "/f", replace(status, name="failed", ended=EndNote(0, "FAILED", ""))),
        Listed("g", "/g", None, name="lost", state="RUNNING", silent=3.0),
        Listed("h", "/h", None, error="unreadable"),
    )
    text = exposition(source)
    assert 'arcbeam_micro_batches_total{job="twin (/a)"} 1' in text
    assert 'arcbeam_stage_state_rows{job="twin (/b)",stage="read"}' in text
    assert 'arcbeam_tasks_total{job="words (c)"} 3' in text
    for up, name in ((1, "twin (/a)"), (1, "words (c)"), (0, "failed (/f)"), (0, "lost (g)"), (0, "/h")):
        assert f'arcbeam_up{{job="{name}"}} {up}.0\n' in text
    assert 'micro_batches_total{job="failed (/f)"}' not in text
    assert '"ended' not in text
    assert '"suspended' not in text
    assert text.count("# TYPE arcbeam_micro_batches_total") == 1


def test_label_of_a_job_does_not_depend_on_other_jobs(job: FolderBlobs) -> None:  # noqa: F811
    one, twin = (Listed(id, f"/{id}", replace(status_in(job), due=None, name="twin")) for id in "ab")
    # A service knows the folder of its job only when the job runs.
    early, later = (replace(twin, label=label, state="RUNNING") for label in ("b at h", "b at h, in /b"))
    labels = [
        set(re.findall(r'job="([^"]*)"', exposition(Fixed(*jobs))))
        for jobs in ((one,), (one, twin), (one, early), (one, later), (replace(later, where="/b"),))
    ]
    assert labels == [{"twin (/a)"}, {"twin (/a)", "twin (/b)"}, *[{"twin (/a)", "twin (b)"}] * 2, {"twin (/b)"}]


def test_counters_of_a_service_are_metrics() -> None:
    metrics = [{"kind": "counters", "step": "Parse", "namespace": "n", "name": "bad", "value": 7}]
    source = ServiceSource(Gone(metrics=metrics), "the server")
    assert 'arcbeam_user_metric_total{job="words (a)",name="bad",namespace="n",step="Parse"} 7.0' in exposition(source)


def test_prometheus_gives_the_token_in_its_header() -> None:
    page = TestClient(app_of(Fixed(), "secret"), base_url=BASE)
    assert page.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
    answer = page.get("/metrics", headers={"Authorization": "Bearer secret"})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_error_of_the_job_is_its_last_message() -> None:
    """A driver writes its messages before it knows its end."""
    reported = {"time": 5, "level": "BASIC", "text": "micro-batch 7"}
    ended = EndNote(0, "FAILED", "KeyError: 'user'\nin 'Sum'", 9)
    status = samples.status(2, samples.now(), ended=ended)
    found = samples.Jobs(Listed("a", "/a", status), details={"a": {"messages": [reported]}})
    text = TestClient(app_of(found), base_url=BASE).get("/job/a/details").text
    rows = re.findall(r"<td>(\w+)</td><td><pre>([^<]*)</pre>", text.partition("Messages</h2>")[2])
    assert [(level, html.unescape(each)) for level, each in rows] == [
        ("ERROR", ended.why),
        ("BASIC", "micro-batch 7"),
    ]
    # A job server logs it by itself.
    (row, _), _ = message_rows({"messages": [reported, {**reported, "text": f"failed: {ended.why}"}]}, ended)
    assert row.text.startswith("failed")
