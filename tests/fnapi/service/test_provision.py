"""What a worker can ask for before it has connected."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from apache_beam.portability.api import beam_artifact_api_pb2 as artifact_pb
from apache_beam.portability.api import beam_artifact_api_pb2_grpc as artifact_grpc
from apache_beam.portability.api import beam_provision_api_pb2 as provision_pb
from apache_beam.portability.api import beam_provision_api_pb2_grpc as provision_grpc
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from google.protobuf import struct_pb2

from arcbeam.fnapi.service import provision as provision_module
from arcbeam.fnapi.service.provision import Provision
from arcbeam.fnapi.service.server import Server
from arcbeam.secrets import redacted

BINARY = b"\x7fELF" * 10


def artifact(content: bytes, role: str = "beam:artifact:role:go_worker_binary:v1") -> Any:
    payload = runner_pb.ArtifactFilePayload(path="worker", sha256=hashlib.sha256(content).hexdigest())
    return runner_pb.ArtifactInformation(
        type_urn="beam:artifact:type:file:v1", type_payload=payload.SerializeToString(), role_urn=role
    )


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[tuple[grpc.Channel, tuple[tuple[str, str], ...], Server]]:
    server = Server()
    (tmp_path / hashlib.sha256(BINARY).hexdigest()).write_bytes(BINARY)
    options = struct_pb2.Struct()
    options.update({"beam:option:go_options:v1": {"options": {"a": "b"}}, "beam:option:my_token:v1": "hush-hush"})
    provision = Provision("job-1", options.SerializeToString(), (tmp_path,))
    environment = runner_pb.Environment(dependencies=[artifact(BINARY)])
    connection = server.expect("the test", provision, environment)
    with grpc.insecure_channel(server.address) as channel:
        yield channel, (("worker_id", connection.worker),), server
    server.stop()


def test_worker_gets_options_files_and_addresses(channel: Any) -> None:
    channel, metadata, server = channel
    stub = provision_grpc.ProvisionServiceStub(channel)
    info = stub.GetProvisionInfo(provision_pb.GetProvisionInfoRequest(), metadata=metadata).info
    assert info.pipeline_options["beam:option:go_options:v1"]["options"]["a"] == "b"
    assert list(info.dependencies) == [artifact(BINARY)]
    for endpoint in (info.control_endpoint, info.logging_endpoint, info.artifact_endpoint):
        assert endpoint.url == server.address
    assert info.retrieval_token == info.metadata["job_id"] == "job-1"
    assert redacted("its token is hush-hush") == "its token is …"


def test_worker_gets_only_files_of_its_environment(channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision_module, "_CHUNK", 7)
    channel, metadata, _ = channel
    stub = artifact_grpc.ArtifactRetrievalServiceStub(channel)
    resolve = artifact_pb.ResolveArtifactsRequest(artifacts=[artifact(BINARY)])
    (resolved,) = stub.ResolveArtifacts(resolve, metadata=metadata).replacements
    # As boot programs do, which set another role.
    resolved.role_urn = "beam:artifact:role:staging_to:v1"
    answers = stub.GetArtifact(artifact_pb.GetArtifactRequest(artifact=resolved), metadata=metadata)
    assert b"".join(answer.data for answer in answers) == BINARY
    with pytest.raises(grpc.RpcError, match="the environment has no such file"):
        list(stub.GetArtifact(artifact_pb.GetArtifactRequest(artifact=artifact(b"other")), metadata=metadata))


def test_other_processes_get_nothing(channel: Any) -> None:
    channel, _, _ = channel
    stub = provision_grpc.ProvisionServiceStub(channel)
    with pytest.raises(grpc.RpcError, match="no worker with this id is expected"):
        stub.GetProvisionInfo(provision_pb.GetProvisionInfoRequest(), metadata=(("worker_id", "guess"),))


def test_environment_without_files_has_the_token_for_that() -> None:
    info = Provision("job-1").info(runner_pb.Environment(), "localhost:1")
    assert info.retrieval_token == "__no_artifacts_staged__"
