"""The methods that the Job API lacks: savepoints, suspension and status, as a separate service.

Owns its names and messages, on both sides. Messages are Structs: there is no schema to compile.

    /arcbeam.Steering/Savepoint   {job_id, savepoint} -> {path}
    /arcbeam.Steering/Suspend     {job_id, savepoint} -> {path}
    /arcbeam.Steering/Status      {job_id} -> {status}: JSON, for a Struct has no integers
    /arcbeam.Steering/Jobs        {} -> {jobs}: JSON; see `Overview.overview`
    /arcbeam.Steering/Job         {job_id, more} -> {job}: JSON; see `Overview.details`
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf import struct_pb2

from arcbeam.jobs.lifecycle import Jobs
from arcbeam.jobs.overview import Overview
from arcbeam.store.log.requests import RequestKind

_SERVICE = "arcbeam.Steering"
_STATUS, _JOBS, _JOB = "Status", "Jobs", "Job"
_METHODS = {RequestKind.SAVEPOINT: "Savepoint", RequestKind.SUSPEND: "Suspend"}


def job_control(jobs: Jobs) -> Any:
    """Return the server's side: a generic handler for a gRPC server."""

    def method(what: RequestKind) -> Callable[[Any, Any], Any]:
        def requested(request: Any, context: Any = None) -> Any:
            answer = struct_pb2.Struct()
            answer["path"] = jobs.ask(str(request["job_id"]), what, str(request["savepoint"]))
            return answer

        return requested

    def status(request: Any, context: Any = None) -> Any:
        answer = struct_pb2.Struct()
        answer["status"] = json.dumps(jobs.status(str(request["job_id"])))
        return answer

    overview = Overview(jobs)

    def listed(request: Any, context: Any = None) -> Any:
        answer = struct_pb2.Struct()
        answer["jobs"] = json.dumps(overview.overview())
        return answer

    def details(request: Any, context: Any = None) -> Any:
        answer = struct_pb2.Struct()
        answer["job"] = json.dumps(overview.details(str(request["job_id"]), bool(request["more"])))
        return answer

    methods = {name: method(what) for what, name in _METHODS.items()}
    methods |= {_STATUS: status, _JOBS: listed, _JOB: details}
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            call, struct_pb2.Struct.FromString, struct_pb2.Struct.SerializeToString
        )
        for name, call in methods.items()
    }
    return grpc.method_handlers_generic_handler(_SERVICE, handlers)


def request_savepoint(channel: Any, what: RequestKind, job: str, savepoint: str, **call: Any) -> str:
    """Call the server from a client; wait until the request is carried out.

    Args:
        channel: to the server.
        what: a savepoint, or a suspension.
        job: its id.
        savepoint: a name; "": a name with the time.
        call: options of the call: `timeout`, `metadata`.

    Returns:
        The savepoint's path.
    """
    return str(_call(channel, _METHODS[what], {"job_id": job, "savepoint": savepoint}, **call)["path"])


def status_of(channel: Any, job: str, **call: Any) -> dict[str, Any]:
    """Return a streaming job's status from the server; see `arcbeam.streaming.status.status.as_record`.

    Args:
        channel: to the server.
        job: its id.
        call: options of the call: `timeout`, `metadata`.
    """
    found: dict[str, Any] = json.loads(_call(channel, _STATUS, {"job_id": job}, **call)["status"])
    return found


def overview_of(channel: Any, **call: Any) -> list[dict[str, Any]]:
    """Return a server's jobs; see `Overview.overview` and `status_of`."""
    found: list[dict[str, Any]] = json.loads(_call(channel, _JOBS, {}, **call)["jobs"])
    return found


def details_of(channel: Any, job: str, more: bool, **call: Any) -> dict[str, Any]:
    """Return one of a server's jobs; see `Overview.details` and `status_of`."""
    found: dict[str, Any] = json.loads(_call(channel, _JOB, {"job_id": job, "more": more}, **call)["job"])
    return found


def _call(channel: Any, method: str, fields: dict[str, str | bool], **call: Any) -> Any:
    request = struct_pb2.Struct()
    request.update(fields)
    ask = channel.unary_unary(
        f"/{_SERVICE}/{method}", struct_pb2.Struct.SerializeToString, struct_pb2.Struct.FromString
    )
    return ask(request, **call)
