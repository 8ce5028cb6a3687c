"""No file, log, command line or page of a job contains the passwords of its brokers."""

from __future__ import annotations

import html
import re
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import grpc
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from click.testing import CliRunner

from arcbeam.cli import main
from arcbeam.page.sources import FolderSource
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.translate.proto import pipeline_proto
from tests.io.kafka.conftest import PASSWORD
from tests.io.kafka.jobs import secured
from tests.io.kafka.test_librdkafka import put
from tests.io.kafka.test_producing import seen
from tests.jobs.fakes import connected
from tests.jobs.test_sigterm import _CLI, Driver
from tests.page.test_app import client
from tests.privacy import planted
from tools.kafka.broker import Broker

_LINK = re.compile(r'(?:href|src|action)="(/(?!static)[^"#]*)')
_PROGRAM = "import sys; from tests.io.kafka.jobs.secured import main; main(*sys.argv[1:])"


def crawled(get: Callable[[str], str]) -> dict[str, str]:
    """Return the texts of all pages that others lead to, by path."""
    found: dict[str, str] = {}
    waiting = ["/", "/metrics"]
    while waiting:
        if (path := waiting.pop()) not in found:
            found[path] = get(path)
            waiting += [html.unescape(link) for link in _LINK.findall(found[path])]
    kinds = {part for path in found for part in path.split("/") if part.isalpha()}
    assert {"metrics", "job", "stage", "details", "control"} <= kinds, sorted(found)
    return found


@pytest.mark.long
@pytest.mark.contract("KAFKA-05")
def test_server_gives_no_password(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, file = tmp_path / "place", tmp_path / "password"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setenv(secured.VARIABLE, PASSWORD)
    file.write_text(PASSWORD)
    source, target = broker.topic("served-in"), broker.topic("served-out")
    put(broker, source, range(50))
    pipeline = beam.Pipeline(options=PipelineOptions(["--streaming"]))
    secured.build(pipeline, broker.secured, source, target, str(place), str(file))
    serve = ("serve", "--port=0", "--page=0", f"--folder={place / 'server'}", "--", "--spark_master=local[2]")
    with Driver(place, *serve, code=_CLI) as driver:
        driver.until(lambda: "Job API on " in driver.output)
        endpoint = driver.output.partition("Job API on ")[2].split()[0]
        address, token = driver.output.partition("the page is at ")[2].split()[0].split("?")
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        browser.open(f"{address}?{token}", timeout=60)
        with connected(grpc.insecure_channel(endpoint)) as server:
            given = [f"spark.executorEnv.{secured.VARIABLE}={PASSWORD}"]
            id = server.run(pipeline_proto(pipeline), streaming=True, shards=2, spark_conf=given)
            driver.until(lambda: len(seen(broker, target)) == 50)
            pages = crawled(lambda path: browser.open(f"{address}{path[1:]}", timeout=60).read().decode())
            assert any("ReadFromKafka" in text for text in pages.values())
            assert any(f"spark.executorEnv.{secured.VARIABLE}" in text for text in pages.values()), "no options"
            found = server.jobs.GetPipeline(job_pb.GetJobPipelineRequest(job_id=id)).pipeline.SerializeToString()
            reported = [
                *pages.items(),
                ("jobs", str(server.jobs.GetJobs(job_pb.GetJobsRequest()))),
                ("pipeline", repr([found, *planted.unpickled(found)])),
                ("metrics", str(server.jobs.GetJobMetrics(job_pb.GetJobMetricsRequest(job_id=id)))),
            ]
            assert planted.holding(place, PASSWORD) == []
            server.jobs.Cancel(job_pb.CancelJobRequest(job_id=id))
            reported.append(("messages", str(server.messages(id))))
        driver.process.send_signal(signal.SIGTERM)
        driver.process.wait(300)
        reported.append(("output", driver.output))
    assert [name for name, text in reported if not text or PASSWORD in text] == []
    assert planted.holding(place, PASSWORD) == []


@pytest.mark.long
@pytest.mark.contract("KAFKA-05")
def test_no_file_log_or_page_has_the_password(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, file = tmp_path / "place", tmp_path / "password"
    for name, variables in (("tmp", ("TMPDIR", "SPARK_LOCAL_DIRS")), ("home", ("HOME",))):
        (place / name).mkdir(parents=True)
        for each in variables:
            monkeypatch.setenv(each, str(place / name))
    monkeypatch.setenv(secured.VARIABLE, PASSWORD)
    file.write_text(PASSWORD)
    source, target = broker.topic("secured-in"), broker.topic("secured-out")
    put(broker, source, range(50))
    given = [broker.secured, source, target, str(place), str(file)]
    options = [f"--checkpoint_dir={place / 'job'}", "--shards=2", "--spark_master=local[2]"]
    with Driver(place, *given, *options, code=_PROGRAM) as driver:
        driver.until(lambda: len(seen(broker, target)) == 50)
        assert [line for line in planted.command_lines(driver.process.pid) if PASSWORD in line] == []
        assert planted.holding(place, PASSWORD) == []
        page = client(FolderSource([FolderBlobs(place / "job", sync=False)]))
        pages = crawled(lambda path: page.get(path).text)
        assert any("ReadFromKafka" in text for text in pages.values())
        texts = list(pages.values())
        texts += [
            CliRunner().invoke(main.main, ["status", str(place / "job"), *more]).output for more in ([], ["--json"])
        ]
        for how in ([], ["--json"], [f"--svg={place / 'plan.svg'}"]):
            explained = CliRunner().invoke(main.main, ["explain", *how, secured.__file__, *given, *options])
            assert explained.exit_code == 0, explained.output
            texts.append(explained.output)
        texts.append((place / "plan.svg").read_text(encoding="utf-8"))
        assert ["ReadFromKafka" in text for text in (*texts[-4:-2], texts[-1])] == [True] * 3
        driver.process.send_signal(signal.SIGTERM)
        driver.process.wait(300)
        texts.append(driver.output)
    assert [text for text in texts if not text or PASSWORD in text] == []
    assert planted.holding(place, PASSWORD) == []
    assert list((place / "job").rglob("*")), "no files to check"
