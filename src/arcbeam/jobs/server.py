"""The gRPC server of the Job API: its address, access to it, and its orderly end.

Owns addresses, TLS and tokens. Must not know what the services do.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from apache_beam.portability.api import beam_artifact_api_pb2_grpc as artifact_grpc
from apache_beam.portability.api import beam_job_api_pb2_grpc as job_grpc

from arcbeam.errors import SetupError
from arcbeam.jobs.artifacts import StagingServicer
from arcbeam.jobs.controlservice import job_control
from arcbeam.jobs.execution import ExecutorFactory
from arcbeam.jobs.exposure import check_exposure, is_loopback
from arcbeam.jobs.guard import CallGuard
from arcbeam.jobs.lifecycle import Jobs
from arcbeam.jobs.option_forms import plain_of_bytes
from arcbeam.jobs.registry import Registry
from arcbeam.jobs.service import JobServicer
from arcbeam.secrets.peers import is_own_process

_THREADS = 512
"""Each open stream needs one; they are started as needed."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of a server.

    Attributes:
        folder: for the registry and staged files.
        host: address to listen on.
        port: port to listen on; 0: a free one.
        advertise: host:port (or host) for submitters, if it differs from the address itself.
        token: that calls must have; None: none.
        certificate: PEM chain for TLS; None: no TLS.
        key: PEM key of the certificate.
        insecure: listen to other users of this machine, or on an address that other machines can reach, also without a
            token and TLS.
        defaults: pipeline options for jobs that do not set them.
    """

    folder: Path
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    token: str | None = field(default=None, repr=False)
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


class JobServer:
    """Serves the Job API, from construction on.

    Args:
        settings: of the server.
        executors: run pipelines.
        ready: called when the server owns port and folder, before it answers the first call. Its exceptions are raised.

    Raises:
        SetupError: the port is in use, the folder belongs to another server, a file cannot be read, or other machines
            could reach the server without a token and TLS.
    """

    def __init__(
        self, settings: ServerSettings, executors: ExecutorFactory, ready: Callable[[], None] = lambda: None
    ) -> None:
        check_exposure(settings)
        credentials = _credentials(settings)
        self._registry = Registry(settings.folder / "jobs.sqlite")
        try:
            self.port = 0
            self._settings = settings
            # The port comes before the jobs: a server that cannot listen must not touch their states.
            self._server = grpc.server(
                ThreadPoolExecutor(_THREADS, thread_name_prefix="job-api"),
                interceptors=[CallGuard(settings.token, self._admits if _is_own(settings) else None)],
                options=[
                    ("grpc.so_reuseport", 0),  # otherwise a second server on the same port would get some of its calls
                    ("grpc.max_receive_message_length", -1),
                    ("grpc.max_send_message_length", -1),
                    ("grpc.http2.max_pings_without_data", 0),
                    ("grpc.http2.max_ping_strikes", 0),
                ],
            )
            self.port = self._bind(credentials)
            self.jobs = Jobs(
                self._registry, executors, settings.folder / "staged", settings.defaults, plain=plain_of_bytes
            )
            ready()
        except BaseException:
            if self.port:
                self._server.stop(None)
            self._registry.close()
            raise
        job_grpc.add_JobServiceServicer_to_server(JobServicer(self.jobs, lambda: self.endpoint), self._server)
        artifact_grpc.add_ArtifactStagingServiceServicer_to_server(StagingServicer(self.jobs), self._server)
        self._server.add_generic_rpc_handlers((job_control(self.jobs),))
        self._server.start()
        self.jobs.resume()

    def _admits(self, peer: str) -> bool:
        return is_own_process(peer, self.port)

    def _bind(self, credentials: Any) -> int:
        host, port = self._settings.host, self._settings.port
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if port and (why := _why_not(host, port)):
            # Checked before gRPC tries, which would log the failure itself.
            raise _cannot_listen(host, port, why)
        try:
            if credentials is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            bound = 0
        if not bound:
            raise _cannot_listen(host, port, _why_not(host, port) or "the address or the TLS certificate is refused")
        return int(bound)

    @property
    def endpoint(self) -> str:
        """The address for submitters, host:port."""
        given = self._settings.advertise
        if given is not None:
            return given if ":" in given else f"{given}:{self.port}"
        host = self._settings.host
        if is_loopback(host):
            return f"localhost:{self.port}" if ":" not in host else f"[{host}]:{self.port}"
        if host in ("0.0.0.0", "::"):
            return f"{socket.gethostname()}:{self.port}"
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def stop(self, grace: float = 10.0, again: threading.Event | None = None) -> None:
        """End running jobs, wait for that, and close everything; see `Jobs.close`."""
        self.jobs.close(grace, again)
        self._server.stop(1.0).wait()
        self._registry.close()


def _is_own(settings: ServerSettings) -> bool:
    """Return whether a server is for its user alone: Beam's clients cannot give a token, so most servers have none."""
    return settings.token is None and is_loopback(settings.host) and not settings.insecure


def _credentials(settings: ServerSettings) -> Any:
    if settings.certificate is None or settings.key is None:
        return None
    try:
        pair = (settings.key.read_bytes(), settings.certificate.read_bytes())
    except OSError as e:
        raise SetupError(f"cannot read the TLS certificate or key: {e}") from e
    return grpc.ssl_server_credentials([pair])


def _cannot_listen(host: str, port: int, why: str) -> SetupError:
    return SetupError(f"cannot listen on port {port} of {host}: {why}", "choose another --port; 0: a free one")


def _why_not(host: str, port: int) -> str:
    """Return why the system refuses this address; "" if it accepts it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as e:
            return "it is in use" if "in use" in str(e) else str(e)
    return ""
