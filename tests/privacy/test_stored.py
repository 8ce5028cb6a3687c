"""A job, a server and a pipeline's part files store only the names of secrets."""

from __future__ import annotations

import pickle
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from google.protobuf import struct_pb2

from arcbeam.errors import InvalidPipelineError, SetupError
from arcbeam.io import Text, WriteParts
from arcbeam.io.parts.naming import Template
from arcbeam.io.parts.packs import Roll
from arcbeam.io.parts.work import Work
from arcbeam.jobs import option_forms
from arcbeam.jobs.execution import Submission
from arcbeam.jobs.option_forms import plain_of_bytes, stored
from arcbeam.options import WITHHELD
from arcbeam.runner.executor import _with_secrets
from arcbeam.runner.jobgraph import job_graph_to_store
from arcbeam.secrets import known, variable
from arcbeam.spark.session.launch import without_secrets
from arcbeam.spark.tasks.shipping import WorkerSetup
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.manifest.jobgraphfile import decode, encode
from arcbeam.translate.proto import pipeline_proto
from tests.golden import check_message
from tests.privacy.planted import SECRET, unpickled

pytestmark = pytest.mark.contract("OPS-06")

_URL = f"s3://id:{SECRET}@bucket/temp"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the secrets that a test registers in this process."""
    monkeypatch.setattr(known, "_known", known._Known())


def test_job_graph_names_its_secrets() -> None:
    options = {"shards": 3, "s3_secret_access_key": SECRET, "arcbeam_temp": _URL, "spark_conf": [f"a.token={SECRET}"]}
    p = beam.Pipeline(options=PipelineOptions([]))
    _ = p | beam.Create([1])
    job_graph = job_graph_to_store("words", pipeline_proto(p).SerializeToString(), options, WorkerSetup()).job_graph
    name, data = encode(job_graph, 1)
    again = decode(data, name, "here")
    assert SECRET not in repr(again)
    assert again.options == {"shards": 3, "arcbeam_temp": "s3://bucket/temp", "spark_conf": []}
    assert again.secrets == ("arcbeam_temp", "s3_secret_access_key", "spark_conf:a.token")


def _struct() -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(
        {
            "beam:option:s3_secret_access_key:v1": SECRET,
            "beam:option:arcbeam_temp:v1": _URL,
            "beam:option:shards:v1": 3,
            "beam:option:spark_conf:v1": ["a=1", f"x.password={SECRET}"],
        }
    )
    return struct


def test_server_stores_options_without_secrets_and_remembers_them() -> None:
    raw = stored(_struct())
    assert SECRET.encode() not in raw
    assert plain_of_bytes(raw) == {
        "s3_secret_access_key": SECRET,
        "arcbeam_temp": _URL,
        "shards": 3,
        "spark_conf": ["a=1", f"x.password={SECRET}"],
    }
    harmless = struct_pb2.Struct()
    harmless.update({"beam:option:shards:v1": 3})
    assert stored(harmless) == harmless.SerializeToString()


def test_next_server_takes_secrets_from_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = stored(_struct())
    monkeypatch.setattr(option_forms, "_vault", type(option_forms._vault)())
    options = plain_of_bytes(raw)
    assert options[WITHHELD][1:] == ["arcbeam_temp", "s3_secret_access_key", "spark_conf:x.password"]
    submission = Submission("job-1", "job", b"", options, None)
    with pytest.raises(InvalidPipelineError) as raised:
        _with_secrets(submission)
    check_message("server-without-secrets", str(raised.value))
    monkeypatch.setenv(variable("s3_secret_access_key"), SECRET)
    monkeypatch.setenv(variable("arcbeam_temp"), _URL)
    monkeypatch.setenv(variable("spark_conf:x.password"), SECRET)
    assert _with_secrets(submission).options == {
        "s3_secret_access_key": SECRET,
        "arcbeam_temp": _URL,
        "shards": 3,
        "spark_conf": ["a=1", f"x.password={SECRET}"],
    }


def test_part_files_get_secrets_from_their_process() -> None:
    template = Template("{shard}-{part}", destinations=False, shards=None)
    work = Work("gs://bucket/parts", Text(), template, Roll(), {"a": "b"}, secrets=("s3_secret_access_key",))
    with pytest.raises(SetupError) as raised:
        work.staging()
    check_message("part-files-without-secrets", str(raised.value))


def test_pipeline_with_part_files_holds_no_secret() -> None:
    p = beam.Pipeline(options=PipelineOptions([f"--s3_secret_access_key={SECRET}", "--s3_access_key_id=id"]))
    _ = p | beam.Create(["a"]) | WriteParts("s3://bucket/parts")
    proto = pipeline_proto(p).SerializeToString()
    views = [proto, *unpickled(proto)]
    assert any(b"bucket/parts" in view for view in views[1:]), "what is pickled is looked at"
    assert [view for view in views if SECRET.encode() in view] == []
    assert known.installed("s3_secret_access_key") == SECRET
    with pytest.raises(ValueError, match="credentials") as raised:
        WriteParts(f"s3://id:{SECRET}@bucket/parts")
    assert SECRET not in str(raised.value)


def test_location_brings_secrets_to_another_process() -> None:
    location = JobLocation(_URL, secrets={"s3_secret_access_key": SECRET})
    assert SECRET not in repr(location)
    data = pickle.dumps(location)
    assert known.installed("s3_secret_access_key") is None
    assert pickle.loads(data).url == _URL
    assert known.installed("s3_secret_access_key") == SECRET


def test_settings_with_credentials_leave_the_command_line(tmp_path: Path) -> None:
    command = ["spark-submit", "--conf", f"spark.x={_URL}", "--conf", f"spark.apiKey={SECRET}", "--conf", "a=b", "x"]
    kept = without_secrets(command, tmp_path)
    assert SECRET not in " ".join(kept)
    assert kept[-3:-1] == ["--conf", "a=b"]
    assert (tmp_path / "secrets.properties").stat().st_mode & 0o077 == 0


def test_options_of_go_program_are_read_without_stored_secrets() -> None:
    options = struct_pb2.Struct()
    texts = {"shards": "3", "streaming": "true", "s3_secret_access_key": SECRET, "job_graph": "x", "no_fusion": "true"}
    options.update({"beam:option:go_options:v1": {"options": texts}, "beam:option:app_name:v1": "x"})
    kept = stored(options)
    assert SECRET.encode() not in kept
    plain = plain_of_bytes(kept)
    assert {name: plain.get(name) for name in ("shards", "no_fusion", "s3_secret_access_key", "job_graph")} == {
        "shards": "3",
        "no_fusion": True,
        "s3_secret_access_key": SECRET,
        "job_graph": None,
    }
