"""The page of running jobs: of a job server, and of this process. What it does is checked in the job's folder."""

from __future__ import annotations

import logging
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from arcbeam.jobs.client import JobClient
from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.model.commits import CommitMode
from arcbeam.page.services import ServiceSource
from arcbeam.page.sources import FolderSource
from arcbeam.runner.executor import SparkExecutor
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.manifest.values import Manifest
from arcbeam.translate.proto import pipeline_proto
from tests.jobs.fakes import connected
from tests.page.test_app import client
from tests.page.test_control import ORIGIN, fields, result
from tests.spark.streaming.fed import fed, feed
from tests.waiting import until

pytestmark = [pytest.mark.contract("PAGE-03", "PAGE-04"), pytest.mark.usefixtures("spark")]

_SECONDS = 120.0


def head(folder: Path) -> Manifest:
    newest = read_newest(FolderBlobs(folder, sync=False))
    assert newest is not None
    return known(newest)


def test_jobs_of_a_server_are_watched_and_controlled(tmp_path: Path) -> None:
    feed(tmp_path / "source", 5)
    p = beam.Pipeline(options=PipelineOptions(["--streaming"]))
    counter = beam.metrics.Metrics.counter("page", "numbers")
    _ = fed(p, tmp_path / "source") | "Count" >> beam.Map(lambda n: counter.inc() or n)
    batch = beam.Pipeline()
    _ = batch | beam.Create(range(20)) | beam.Map(lambda n: (n % 2, n)) | beam.GroupByKey()
    server = JobServer(ServerSettings(tmp_path / "server"), SparkExecutor)
    try:
        at = f"localhost:{server.port}"
        with connected(grpc.insecure_channel(at)) as stubs, JobClient(at) as jobs:
            page = client(ServiceSource(jobs, "the server"))
            done = stubs.run(pipeline_proto(batch), shards=3)
            assert stubs.states(done)[-1] == "DONE"
            text = page.get(f"/job/{done}").text
            assert "3 of 3" in text
            assert "it is DONE" in text

            folder = tmp_path / "job"
            id = stubs.run(pipeline_proto(p), streaming=True, shards=2, checkpoint_dir=str(folder))
            until(lambda: "/control/drain" in page.get(f"/job/{id}").text)
            until(lambda: ">5<" in page.get(f"/job/{id}/details").text)
            assert f'arcbeam_up{{job="{id.rpartition("-")[0]} ({id})"}} 1' in page.get("/metrics").text
            form = fields(page.get(f"/job/{id}/control/savepoint").text) | {"name": "before"}
            address = page.post(f"/job/{id}/control/savepoint", data=form, headers=ORIGIN).headers["location"]
            result(page, address, "The request is done")
            assert [pin.name for pin in head(folder).pins] == ["before"]
            assert "before" in page.get(f"/job/{id}/details").text
            form = fields(page.get(f"/job/{id}/control/drain").text)
            page.post(f"/job/{id}/control/drain", data=form, headers=ORIGIN)
            assert stubs.states(id)[-1] == "DRAINED"
            assert head(folder).mode is CommitMode.DRAINED
            # The page reads a folder at most once a second.
            until(lambda: "it is drained" in page.get(f"/job/{id}").text)
            assert "/control/" not in page.get(f"/job/{id}").text
    finally:
        server.stop(grace=_SECONDS)


def test_job_of_this_process_has_a_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "arcbeam")
    feed(tmp_path / "source", 5)
    options = ["--streaming", "--shards=2", f"--checkpoint_dir={tmp_path / 'job'}", "--page_address=0"]
    p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(options))
    counter = beam.metrics.Metrics.counter("page", "numbers")
    _ = fed(p, tmp_path / "source") | "Keep" >> beam.Map(lambda n: counter.inc() or n)
    job: Any = p.run()
    until(lambda: job.status() is not None and job.status().micro_batch > 0)
    found = re.search(r"the page is at ((http://127\.0\.0\.1:\d+)/\?token=\w+)", caplog.text)
    assert found is not None
    base = found[2]
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def get(path: str) -> str:
        with browser.open(base + path, timeout=_SECONDS) as answer:
            return str(answer.read().decode())

    for locked in ("/", f"/job/{job.job_id}", "/metrics"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(locked)
    browser.open(found[1], timeout=_SECONDS)

    path = f"/job/{job.job_id}"
    assert path in get("/")
    assert "/control/cancel" in get(path)
    assert "--checkpoint_dir" in get(f"{path}/details")
    form = urllib.parse.urlencode(fields(get(f"{path}/control/cancel"))).encode()
    forged = urllib.request.Request(f"{base}{path}/control/cancel", form, {"Origin": "http://evil.example"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        browser.open(forged, timeout=_SECONDS)
    assert job.state == "RUNNING"
    sent = urllib.request.Request(f"{base}{path}/control/cancel", form, {"Origin": base})
    with browser.open(sent, timeout=_SECONDS) as answer:
        request = answer.url.removeprefix(base)
    until(lambda: "The request is done" in get(request))
    assert job.wait_until_finish() == "CANCELLED"
    with pytest.raises(urllib.error.URLError):
        get("/")
    source = FolderSource([FolderBlobs(tmp_path / "job", sync=False)])
    (listed,) = source.jobs()
    assert "CANCELLED" in client(source).get(f"/job/{listed.id}").text
    details = client(source).get(f"/job/{listed.id}/details").text
    assert all(text in details for text in ("page: numbers", "<td>Keep</td>", "watermark"))
