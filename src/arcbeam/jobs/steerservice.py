"""What the Job API has no method for: savepoints and suspension, as a service of our own beside it.

Owns its names and messages, on both sides. Messages are Structs: there is no schema to compile.

    /arcbeam.Steering/Savepoint   {job_id, savepoint} -> {path}
    /arcbeam.Steering/Suspend     {job_id, savepoint} -> {path}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf import struct_pb2

from arcbeam.jobs.lifecycle import Jobs
from arcbeam.store.log.requests import Asked

_SERVICE = "arcbeam.Steering"
_METHODS = {Asked.SAVEPOINT: "Savepoint", Asked.SUSPEND: "Suspend"}


def steering(jobs: Jobs) -> Any:
    """The server's side: a generic handler for a gRPC server."""

    def method(what: Asked) -> Callable[[Any, Any], Any]:
        def asked(request: Any, context: Any = None) -> Any:
            answer = struct_pb2.Struct()
            answer["path"] = jobs.ask(str(request["job_id"]), what, str(request["savepoint"]))
            return answer

        return asked

    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            method(what), struct_pb2.Struct.FromString, struct_pb2.Struct.SerializeToString
        )
        for what, name in _METHODS.items()
    }
    return grpc.method_handlers_generic_handler(_SERVICE, handlers)


def asked_of(channel: Any, what: Asked, job: str, savepoint: str, **call: Any) -> str:
    """The client's side: waits until it is done.

    Args:
        channel: to the server.
        what: a savepoint, or a suspension.
        job: its id.
        savepoint: a name; "": one that says when this was.
        call: how to call: `timeout`, `metadata`.

    Returns:
        The savepoint's path.
    """
    request = struct_pb2.Struct()
    request.update({"job_id": job, "savepoint": savepoint})
    ask = channel.unary_unary(
        f"/{_SERVICE}/{_METHODS[what]}", struct_pb2.Struct.SerializeToString, struct_pb2.Struct.FromString
    )
    return str(ask(request, **call)["path"])
