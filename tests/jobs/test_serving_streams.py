"""Streaming jobs at a job server: several together with a batch job, controlled, and resumed by the next server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from apache_beam.transforms import window

from arcbeam.jobs.controlservice import request_savepoint, status_of
from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.inspection import inspect
from arcbeam.store.log.requests import RequestKind
from arcbeam.store.log.savepoints import split_path
from arcbeam.translate.proto import pipeline_proto
from tests.jobs.fakes import Client, connected
from tests.notes import note, noted
from tests.spark.streaming.fed import fed, feed
from tests.waiting import until

pytestmark = [pytest.mark.contract("API-02"), pytest.mark.usefixtures("spark")]

_SECONDS = 120.0


@contextmanager
def serving(folder: Path) -> Iterator[Client]:
    server = JobServer(ServerSettings(folder), SparkExecutor)
    try:
        with connected(grpc.insecure_channel(f"localhost:{server.port}")) as client:
            yield client
    finally:
        server.stop(grace=_SECONDS)


def windows(source: Path, out: Path) -> Any:
    """Return a pipeline that collects a source in windows of ten."""
    out.mkdir()
    p = beam.Pipeline(options=PipelineOptions(["--streaming"]))
    counted = beam.metrics.Metrics.counter("serving", "numbers")
    keyed = fed(p, source) | "Key" >> beam.Map(lambda n: counted.inc() or (0, n))
    panes = keyed | beam.WindowInto(window.FixedWindows(10)) | beam.GroupByKey()
    _ = panes | "Note" >> beam.Map(lambda pair, to: note(sorted(pair[1]), to), str(out))
    return pipeline_proto(p)


def counted(client: Client, id: str) -> dict[str, int]:
    found = client.jobs.GetJobMetrics(job_pb.GetJobMetricsRequest(job_id=id)).metrics
    return {
        kind: sum(
            beam.coders.VarIntCoder().decode(info.payload)
            for info in infos
            if info.labels.get("NAME") == "numbers" and info.urn.endswith("sum_int64:v1")
        )
        for kind, infos in (("attempted", found.attempted), ("committed", found.committed))
    }


def states(client: Client, id: str) -> list[str]:
    stream = client.jobs.GetStateStream(job_pb.GetJobStateRequest(job_id=id), timeout=_SECONDS)
    return [job_pb.JobState.Enum.Name(event.state) for event in stream]


def state(client: Client, id: str) -> str:
    return str(job_pb.JobState.Enum.Name(client.jobs.GetState(job_pb.GetJobStateRequest(job_id=id)).state))


@pytest.mark.contract("API-03", "END-02", "END-03", "STORE-04", "OPS-02")
def test_streaming_jobs_are_controlled_and_resumed_by_server(tmp_path: Path) -> None:
    sources, outs = ([tmp_path / f"{kind}{i}" for i in range(3)] for kind in ("source", "out"))
    for source in sources:
        feed(source, 15)
    with serving(tmp_path / "server") as client:
        drained, suspended, left = (
            client.run(windows(source, out), streaming=True, shards=2)
            for source, out in zip(sources, outs, strict=True)
        )
        p = beam.Pipeline()
        _ = p | beam.Create([1, 2, 3]) | beam.Map(lambda x: x)
        assert states(client, client.run(pipeline_proto(p)))[-1] == "DONE"
        for out in outs:
            until(lambda out=out: noted(out) == [list(range(10))])  # type: ignore[misc]
        until(lambda: counted(client, drained) == {"attempted": 15, "committed": 15})
        assert state(client, drained) == "RUNNING"
        status = status_of(client.channel, drained)
        assert status["micro_batch"] > 0
        names = {info.job_id: info.job_name for info in client.jobs.GetJobs(job_pb.GetJobsRequest()).job_info}
        assert status["name"] == names[drained]
        assert f":{drained}-" in status["driver"]["driver"], "its runs have the server's id"
        assert [cause for cause in status["causes"] if cause["kind"] == "restriction"]

        client.jobs.Drain(job_pb.DrainJobRequest(job_id=drained))
        assert states(client, drained)[-2:] == ["DRAINING", "DRAINED"]
        assert sorted(noted(outs[0])) == [list(range(10)), list(range(10, 15))]

        folder, name = split_path(request_savepoint(client.channel, RequestKind.SUSPEND, suspended, "pause"))
        assert states(client, suspended)[-1] == "STOPPED"
        found = inspect(FolderBlobs(folder), savepoint=name, check=True)
        assert found.problems == ()
        assert found.job_graph is not None
        assert found.job_graph.name == names[suspended]
        feed(sources[1], 20, end=True)
        client.jobs.Run(job_pb.RunJobRequest(preparation_id=suspended))
        assert states(client, suspended)[-1] == "DONE"
        assert sorted(noted(outs[1])) == [list(range(10)), list(range(10, 20))]
        request_savepoint(client.channel, RequestKind.SAVEPOINT, left, "kept")
    feed(sources[2], 20, end=True)
    with serving(tmp_path / "server") as client:
        assert states(client, left)[-4:] == ["RUNNING", "STARTING", "RUNNING", "DONE"]
        assert sorted(noted(outs[2])) == [list(range(10)), list(range(10, 20))]
        assert (state(client, drained), state(client, suspended)) == ("DRAINED", "DONE")
        texts = [m.message_response.message_text for m in client.messages(left) if m.HasField("message_response")]
        assert [text for text in texts if "resumes from its last commit" in text]
        assert [text for text in texts if text.startswith("micro-batch ") and "watermark" in text]
