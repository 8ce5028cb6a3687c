"""Services that start SDK workers: what a missing one means to the job."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.portability.api import endpoints_pb2
from apache_beam.utils.thread_pool_executor import UnboundedThreadPoolExecutor

from arcbeam.errors import SubmitterLostError
from arcbeam.fnapi.environments import external
from arcbeam.fnapi.lost import SdkWorkerLostError

pytestmark = pytest.mark.contract("API-08")

RESTART = "run it again"


def payload(url: str) -> Any:
    return runner_pb.ExternalPayload(endpoint=endpoints_pb2.ApiServiceDescriptor(url=url))


@pytest.fixture
def closed() -> str:
    """Return an address of this machine where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"localhost:{listening.getsockname()[1]}"


@pytest.fixture
def empty() -> Iterator[str]:
    """Return the address of a gRPC server that starts no workers."""
    server = grpc.server(UnboundedThreadPoolExecutor())
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"localhost:{port}"
    server.stop(None)


def test_closed_port_of_submitter_is_its_end(closed: str) -> None:
    with pytest.raises(SubmitterLostError, match=f"submitted the job has ended .nothing listens at {closed}") as raised:
        external.start(payload(closed), "worker", "localhost:1", RESTART)
    assert raised.value.remedy == RESTART


def test_closed_port_of_worker_pool_is_retried(closed: str) -> None:
    with pytest.raises(SdkWorkerLostError, match=f"workers at {closed} cannot be reached .UNAVAILABLE"):
        external.start(payload(closed), "worker", "localhost:1")


def test_port_that_still_listens_is_retried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"localhost:{listening.getsockname()[1]}"
        assert not external._is_closed(url)


@pytest.mark.parametrize("url", ["192.0.2.1:1", "unix:/tmp/socket", "no.such.host.invalid:1", "localhost:port"])
def test_other_addresses_prove_nothing(url: str) -> None:
    assert not external._is_closed(url)


def test_service_that_refuses_the_call_is_retried(empty: str) -> None:
    with pytest.raises(SdkWorkerLostError, match="cannot be reached"):
        external.start(payload(empty), "worker", "localhost:1", RESTART)
