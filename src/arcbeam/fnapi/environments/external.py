"""Workers of an EXTERNAL environment: a service starts them. `LOOPBACK` is such a service in the submitting program.

Owns the calls of that service.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import grpc
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_fn_api_pb2_grpc as fn_grpc
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.portability.api import endpoints_pb2

from arcbeam.fnapi.lost import SdkWorkerLostError

_SECONDS: Final = 30.0
"""For a call. A service that starts a process answers before the worker is ready."""


def payload_of(environment: Any) -> Any:
    """Return the `ExternalPayload` of an EXTERNAL environment."""
    return runner_pb.ExternalPayload.FromString(environment.payload)


def start(payload: Any, worker: str, address: str) -> None:
    """Start a worker.

    Args:
        payload: `ExternalPayload`.
        worker: the id under which it connects.
        address: of the server to which it connects.

    Raises:
        SdkWorkerLostError: the service cannot be reached, or cannot start it.
    """
    url = payload.endpoint.url
    endpoint = endpoints_pb2.ApiServiceDescriptor(url=address)
    request = fn_pb.StartWorkerRequest(
        worker_id=worker,
        control_endpoint=endpoint,
        logging_endpoint=endpoint,
        artifact_endpoint=endpoint,
        provision_endpoint=endpoint,
        params=payload.params,
    )
    try:
        with grpc.insecure_channel(url) as channel:
            response = fn_grpc.BeamFnExternalWorkerPoolStub(channel).StartWorker(request, timeout=_SECONDS)
    except grpc.RpcError as e:
        raise SdkWorkerLostError(
            f"the service for SDK workers at {url} cannot be reached ({e.code().name}). With LOOPBACK it is the "
            "program that submitted the job, which must run until the job ends"
        ) from None
    if response.error:
        raise SdkWorkerLostError(f"the service at {url} cannot start an SDK worker: {response.error}")


def stop(payload: Any, worker: str) -> None:
    """Stop a worker, if its service still runs."""
    with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(payload.endpoint.url) as channel:
        request = fn_pb.StopWorkerRequest(worker_id=worker)
        fn_grpc.BeamFnExternalWorkerPoolStub(channel).StopWorker(request, timeout=_SECONDS)
