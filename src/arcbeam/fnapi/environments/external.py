"""Workers of an EXTERNAL environment: a service starts them. `LOOPBACK` is such a service in the submitting program.

Owns the calls of that service.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from typing import Any, Final

import grpc
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_fn_api_pb2_grpc as fn_grpc
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.portability.api import endpoints_pb2

from arcbeam.errors import SubmitterLostError
from arcbeam.fnapi.lost import SdkWorkerLostError

_CALL_SECONDS_MAX: Final = 30.0
"""For a call. A service that starts a process answers before the worker is ready."""
_CONNECT_SECONDS: Final = 2.0


def payload_of(environment: Any) -> Any:
    """Return the `ExternalPayload` of an EXTERNAL environment."""
    return runner_pb.ExternalPayload.FromString(environment.payload)


def start(payload: Any, worker: str, address: str, restart: str = "") -> None:
    """Start a worker.

    Args:
        payload: `ExternalPayload`.
        worker: the id under which it connects.
        address: of the server to which it connects.
        restart: if the service is the program that submitted the job: how the job continues after that program's end.

    Raises:
        SdkWorkerLostError: the service cannot be reached, or cannot start it.
        SubmitterLostError: the service was the program that submitted the job, and has ended.
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
            response = fn_grpc.BeamFnExternalWorkerPoolStub(channel).StartWorker(request, timeout=_CALL_SECONDS_MAX)
    except grpc.RpcError as e:
        if restart and e.code() is grpc.StatusCode.UNAVAILABLE and _is_closed(url):
            raise SubmitterLostError(
                f"the program that submitted the job has ended (nothing listens at {url} any more). The job's "
                "transforms run in that program (LOOPBACK)",
                restart,
            ) from None
        raise SdkWorkerLostError(f"the service for SDK workers at {url} cannot be reached ({e.code().name})") from None
    if response.error:
        raise SdkWorkerLostError(f"the service at {url} cannot start an SDK worker: {response.error}")


def _is_closed(url: str) -> bool:
    """Return whether no process of this machine listens at an address.

    SUBTLE: only a refused connection within this machine proves it. A busy process answers late, or not at all, but the
    system does not refuse for it; between machines, anything on the way may refuse.
    """
    host, _, port = url.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return False
    return bool(found) and all(_refuses(family, place) for family, _, _, _, place in found)


def _refuses(family: int, place: Any) -> bool:
    if not ipaddress.ip_address(place[0]).is_loopback:
        return False
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.settimeout(_CONNECT_SECONDS)
        try:
            tried.connect(place)
        except ConnectionRefusedError:
            return True
        except OSError as e:
            return e.errno == errno.EADDRNOTAVAIL and family == socket.AF_INET6  # a machine without IPv6
    return False


def stop(payload: Any, worker: str) -> None:
    """Stop a worker, if its service still runs."""
    with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(payload.endpoint.url) as channel:
        request = fn_pb.StopWorkerRequest(worker_id=worker)
        fn_grpc.BeamFnExternalWorkerPoolStub(channel).StopWorker(request, timeout=_CALL_SECONDS_MAX)
