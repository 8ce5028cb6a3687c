"""What a guarded service answers: the same for each of gRPC's four kinds of calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from arcbeam.errors import JobNotFoundError
from arcbeam.jobs.guard import MAX_DETAILS, CallGuard
from tests.jobs.fakes import WAIT

pytestmark = pytest.mark.contract("API-02", "OPS-05")

KINDS = [(False, False), (False, True), (True, False), (True, True)]
"""Whether requests, and answers, are streams."""


def answer(text: str) -> str:
    match text:
        case "unknown":
            raise JobNotFoundError("there is no job 'j-9'")
        case "fault":
            raise ValueError("oh")
        case "elsewhere":
            raise grpc.RpcError("a service that this one has called")
        case "long":
            raise ValueError("é" * MAX_DETAILS)
    return text.upper()


def joined(requests: Iterator[str]) -> str:
    return "".join(map(answer, requests))


@pytest.fixture(scope="module")
def call() -> Iterator[Callable[..., list[str]]]:
    """Call the service of a kind with requests; a service answers with its requests in capitals."""

    def handler(requests: bool, answers: bool) -> Any:
        def behave(request: Any, context: Any) -> Any:
            return joined(request) if requests else answer(request)

        def stream(request: Any, context: Any) -> Iterator[str]:
            yield from map(answer, request) if requests else (answer(request),)

        make = getattr(grpc, f"{_kind(requests, answers)}_rpc_method_handler")
        return make(stream if answers else behave, bytes.decode, str.encode)

    methods = {_kind(*kind): handler(*kind) for kind in KINDS}
    server = grpc.server(ThreadPoolExecutor(2), interceptors=[CallGuard("s3cret")])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Service", methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:

        def called(kind: tuple[bool, bool], *requests: bytes, token: str = "s3cret") -> list[str]:
            method = getattr(channel, _kind(*kind))(f"/test.Service/{_kind(*kind)}")
            metadata = (("authorization", f"Bearer {token}"),)
            found = method(iter(requests) if kind[0] else requests[0], metadata=metadata, timeout=WAIT)
            return [each.decode() for each in (found if kind[1] else [found])]

        yield called
    server.stop(None).wait()


def _kind(requests: bool, answers: bool) -> str:
    return "_".join("stream" if each else "unary" for each in (requests, answers))


@pytest.mark.parametrize("kind", KINDS)
def test_call_with_token_reaches_the_service(call: Callable[..., list[str]], kind: tuple[bool, bool]) -> None:
    assert "".join(call(kind, b"a", b"b")) == ("AB" if kind[0] else "A")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("request_", "token", "code", "details"),
    [
        (b"a", "wrong", grpc.StatusCode.UNAUTHENTICATED, "requires a token"),
        (b"\xff", "s3cret", grpc.StatusCode.INVALID_ARGUMENT, "the request is malformed"),
        (b"unknown", "s3cret", grpc.StatusCode.NOT_FOUND, "there is no job 'j-9'"),
        (b"fault", "s3cret", grpc.StatusCode.INTERNAL, "ValueError('oh')"),
        (b"elsewhere", "s3cret", grpc.StatusCode.INTERNAL, "a service that this one has called"),
        (b"long", "s3cret", grpc.StatusCode.INTERNAL, "more characters in the server's log"),
    ],
)
def test_failure_has_its_status(
    call: Callable[..., list[str]],
    kind: tuple[bool, bool],
    request_: bytes,
    token: str,
    code: grpc.StatusCode,
    details: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(grpc.RpcError) as error:
        call(kind, request_, token=token)
    assert error.value.code() is code
    assert details in error.value.details()
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(logged) == (code is grpc.StatusCode.INTERNAL), "only faults of the server are errors in its log"
