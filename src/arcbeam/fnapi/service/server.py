"""The server to which SDK workers connect: control, data, state, logging, provision and artifacts.

Owns gRPC, and who may connect: each stream names a worker that was expected, by its random id. All users of the machine
can read the id of a started program in its command line, so such a worker must be a process of this user. One server
per process, on its loopback interface.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_artifact_api_pb2 as artifact_pb
from apache_beam.portability.api import beam_artifact_api_pb2_grpc as artifact_grpc
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_fn_api_pb2_grpc as fn_grpc
from apache_beam.portability.api import beam_provision_api_pb2 as provision_pb
from apache_beam.portability.api import beam_provision_api_pb2_grpc as provision_grpc
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.utils.thread_pool_executor import UnboundedThreadPoolExecutor
from typing_extensions import override

from arcbeam.fnapi.service.connection import Connection, WorkerStream
from arcbeam.fnapi.service.provision import Provision, chunks
from arcbeam.fnapi.service.workerlogs import WorkerLog
from arcbeam.model import texts
from arcbeam.secrets import redacted
from arcbeam.secrets.peers import is_own_process

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # SUBTLE: otherwise another process of this user may listen on the same port, and get some of the streams.
    ("grpc.so_reuseport", 0),
    # Workers ping more often than gRPC's servers accept by default.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
)


class Server:
    """A server of this process.

    Attributes:
        address: where workers connect, as "host:port".
    """

    def __init__(self) -> None:
        self._connections: dict[str, Connection] = {}
        self._provided: dict[str, tuple[Provision, Any]] = {}
        self._grpc = grpc.server(UnboundedThreadPoolExecutor(), options=_OPTIONS)
        fn_grpc.add_BeamFnControlServicer_to_server(_Control(self), self._grpc)
        fn_grpc.add_BeamFnDataServicer_to_server(_Data(self), self._grpc)
        fn_grpc.add_BeamFnStateServicer_to_server(_State(self), self._grpc)
        fn_grpc.add_BeamFnLoggingServicer_to_server(_Logging(self), self._grpc)
        provision_grpc.add_ProvisionServiceServicer_to_server(_Provisioning(self), self._grpc)
        artifact_grpc.add_ArtifactRetrievalServiceServicer_to_server(_Artifacts(self), self._grpc)
        self._port = self._grpc.add_insecure_port("127.0.0.1:0")
        self.address = f"localhost:{self._port}"
        self._grpc.start()

    def expect(self, name: str, provision: Provision = Provision(), environment: Any = None) -> Connection:  # noqa: B008
        """Return a connection for a worker that is started next. Its id is new.

        Args:
            name: of its environment, for messages.
            provision: what it gets before it starts.
            environment: its `Environment` proto; None: one without files.
        """
        connection = Connection(uuid.uuid4().hex, name)
        self._connections[connection.worker] = connection
        self._provided[connection.worker] = provision, environment or runner_pb.Environment()
        return connection

    def forget(self, connection: Connection) -> None:
        """Close a connection; the worker cannot connect again."""
        self._connections.pop(connection.worker, None)
        self._provided.pop(connection.worker, None)
        connection.close()

    def stop(self) -> None:
        """Close all connections, and stop."""
        for connection in list(self._connections.values()):
            self.forget(connection)
        self._grpc.stop(None).wait()

    def connection_of(self, context: Any) -> Connection:
        """Return the connection of a stream; abort the stream if its worker was not expected."""
        named = dict(context.invocation_metadata()).get("worker_id", "")
        connection = self._connections.get(named)
        if connection is None or not self._admits(named, context.peer()):
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "no worker with this id is expected from this user")
        assert connection is not None
        return connection

    def _admits(self, worker: str, peer: str) -> bool:
        provided = self._provided.get(worker)
        if provided is None:
            return False
        # A service or a container may run its workers as another user.
        return provided[1].urn != common_urns.environments.PROCESS.urn or is_own_process(peer, self._port)

    def claimed(self, context: Any, stream: WorkerStream) -> Connection:
        """Return the connection of a stream, like `connection_of`; abort the stream if it is the second of its kind."""
        connection = self.connection_of(context)
        if not connection.claim(stream):
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"this worker has a {stream.value} stream already")
        return connection

    def provided_to(self, context: Any) -> tuple[Provision, Any]:
        """Return what the worker of a call gets, and its environment; abort the call if no such worker was expected."""
        return self._provided[self.connection_of(context).worker]


_here: tuple[int, Server] | None = None
_starting = threading.Lock()


def server_here() -> Server:
    """Return the server of this process; start it if there is none.

    SUBTLE: a forked process has a copy of its parent's server, which does not work there.
    """
    global _here
    with _starting:
        if _here is None or _here[0] != os.getpid():
            _here = os.getpid(), Server()
        return _here[1]


def _reading(messages: Iterator[Any], take: Callable[[Any], None], then: Callable[[], None]) -> None:
    """Take all messages of a stream, on a thread of its own."""

    def read() -> None:
        try:
            for message in messages:
                take(message)
        except grpc.RpcError:
            pass
        except Exception as e:
            # gRPC raises a bare Exception where a stream ends without having been closed.
            if type(e) is not Exception:
                raise
        finally:
            then()

    threading.Thread(target=read, name="sdk-worker-stream", daemon=True).start()


class _Control(fn_grpc.BeamFnControlServicer):  # type: ignore[misc]  # Beam is untyped
    def __init__(self, server: Server) -> None:
        self._server = server

    @override
    def Control(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:
        connection = self._server.claimed(context, WorkerStream.CONTROL)
        _reading(request_iterator, connection.responded, lambda: connection.end("its control stream ended"))
        yield from connection.requests()

    @override
    def GetProcessBundleDescriptor(self, request: Any, context: Any) -> Any:
        descriptor = self._server.connection_of(context).descriptors.get(request.process_bundle_descriptor_id)
        if descriptor is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no descriptor '{request.process_bundle_descriptor_id}'")
        return descriptor


class _Data(fn_grpc.BeamFnDataServicer):  # type: ignore[misc]  # Beam is untyped
    def __init__(self, server: Server) -> None:
        self._server = server

    @override
    def Data(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:
        connection = self._server.claimed(context, WorkerStream.DATA)
        _reading(request_iterator, connection.received, lambda: connection.end("its data stream ended"))
        yield from connection.input()


class _State(fn_grpc.BeamFnStateServicer):  # type: ignore[misc]  # Beam is untyped
    def __init__(self, server: Server) -> None:
        self._server = server

    @override
    def State(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:
        connection = self._server.claimed(context, WorkerStream.STATE)
        _reading(request_iterator, connection.requested, lambda: connection.end("its state stream ended"))
        yield from connection.answers()


class _Logging(fn_grpc.BeamFnLoggingServicer):  # type: ignore[misc]  # Beam is untyped
    def __init__(self, server: Server) -> None:
        self._server = server

    @override
    def Logging(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:
        connection = self._server.connection_of(context)
        log = WorkerLog(connection.worker, connection.name)
        connection.logs(begins=True)
        try:
            for entries in request_iterator:
                for entry in entries.log_entries:
                    log.log(entry)
                    if entry.severity >= fn_pb.LogEntry.Severity.WARN:
                        text = redacted(texts.fit(entry.message))
                        error = entry.severity >= fn_pb.LogEntry.Severity.ERROR
                        # SDKs' workers always log a place in their code, and boot programs never do.
                        connection.logged(text, error=error, by_boot=not entry.log_location)
        finally:
            log.end()
            connection.logs(begins=False)
        yield from ()


class _Provisioning(provision_grpc.ProvisionServiceServicer):  # type: ignore[misc]  # Beam is untyped
    def __init__(self, server: Server) -> None:
        self._server = server

    @override
    def GetProvisionInfo(self, request: Any, context: Any) -> Any:
        provision, environment = self._server.provided_to(context)
        return provision_pb.GetProvisionInfoResponse(info=provision.info(environment, self._server.address))


class _Artifacts(artifact_grpc.ArtifactRetrievalServiceServicer):  # type: ignore[misc]  # Beam is untyped
    def __init__(self, server: Server) -> None:
        self._server = server

    @override
    def ResolveArtifacts(self, request: Any, context: Any) -> Any:
        self._server.connection_of(context)
        return artifact_pb.ResolveArtifactsResponse(replacements=request.artifacts)

    @override
    def GetArtifact(self, request: Any, context: Any) -> Iterator[Any]:
        provision, environment = self._server.provided_to(context)
        path = provision.file(environment, request.artifact)
        if path is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "the environment has no such file")
        assert path is not None
        yield from chunks(path)
