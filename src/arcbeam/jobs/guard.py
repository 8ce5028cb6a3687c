"""Checks before a service: authentication, malformed requests, errors to status codes.

Owns one gRPC interceptor. Must not know what the services do.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from typing_extensions import override

from arcbeam.errors import ArcbeamError, InvalidPipelineError, JobCancelledError, JobNotFoundError, SubmissionError
from arcbeam.model import texts

_LOG = logging.getLogger("arcbeam.jobs")

MAX_DETAILS = 5000
"""Limit in bytes for the text of a status: gRPC clients refuse trailers above 8 KiB."""


def status_of(error: BaseException) -> grpc.StatusCode:
    """Return the status code for an error, by its type."""
    match error:
        case JobNotFoundError():
            return grpc.StatusCode.NOT_FOUND
        case InvalidPipelineError():
            return grpc.StatusCode.INVALID_ARGUMENT
        case NotImplementedError():
            return grpc.StatusCode.UNIMPLEMENTED
        case SubmissionError():
            return grpc.StatusCode.FAILED_PRECONDITION
        case JobCancelledError():
            return grpc.StatusCode.CANCELLED
        case ArcbeamError():
            return grpc.StatusCode.FAILED_PRECONDITION
        case _:
            return grpc.StatusCode.INTERNAL


def details_of(error: BaseException) -> str:
    """Return an error's text, short enough for a status. The server's log has all of it."""
    text = texts.safe_text(str if isinstance(error, ArcbeamError | NotImplementedError) else repr, error)
    size, end = 0, 0
    for character in text:
        # As in gRPC's percent-encoding: other characters than printable ASCII take three bytes per byte.
        size += 1 if 32 <= ord(character) < 127 and character != "%" else 3 * len(character.encode("utf-8", "replace"))
        if size > MAX_DETAILS:
            break
        end += 1
    return text if end == len(text) else f"{text[:end]}… ({len(text) - end} more characters in the server's log)"


@dataclass(frozen=True, slots=True)
class _Malformed:
    """Replaces a request that could not be parsed."""

    error: Exception


class CallGuard(grpc.ServerInterceptor):  # type: ignore[misc]  # gRPC is untyped
    """Refuses calls without the token, or of other users, and turns errors into status codes.

    Requests that are refused for their token are not even parsed.

    Args:
        token: the value of `authorization: Bearer …`; None: calls need none.
        admits: whether a caller may call, by gRPC's name of the other end; None: all may.
    """

    def __init__(self, token: str | None, admits: Callable[[str], bool] | None = None) -> None:
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._guarded = partial(_guarded, admits)

    @override
    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        if not self._admits(handler_call_details.invocation_metadata):
            return _wrapped(handler, _deny, None)
        return _wrapped(handler, self._guarded, _lenient(handler.request_deserializer))

    def _admits(self, metadata: Any) -> bool:
        if self._expected is None:
            return True
        given = [value for key, value in metadata or () if key == "authorization"]
        return any(hmac.compare_digest(_bytes(value), self._expected) for value in given)


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _lenient(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except Exception as error:
            return _Malformed(error)

    return parsed


def _wrapped(handler: Any, wrap: Callable[[Any, bool], Any], parse: Callable[[bytes], Any] | None) -> Any:
    """Return the same kind of handler with its behaviour wrapped; without a parser, requests stay bytes."""
    match handler.request_streaming, handler.response_streaming:
        case False, False:
            make, behaviour = grpc.unary_unary_rpc_method_handler, handler.unary_unary
        case False, True:
            make, behaviour = grpc.unary_stream_rpc_method_handler, handler.unary_stream
        case True, False:
            make, behaviour = grpc.stream_unary_rpc_method_handler, handler.stream_unary
        case _:
            make, behaviour = grpc.stream_stream_rpc_method_handler, handler.stream_stream
    return make(
        wrap(behaviour, handler.response_streaming),
        request_deserializer=parse,
        response_serializer=handler.response_serializer,
    )


def _deny(behaviour: Any, response_streaming: bool) -> Any:
    def denied(request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "this server requires a token: authorization: Bearer <token>")

    def denied_stream(request: Any, context: Any) -> Iterator[Any]:
        denied(request, context)
        yield

    return denied_stream if response_streaming else denied


def _guarded(admits: Callable[[str], bool] | None, behaviour: Any, response_streaming: bool) -> Any:
    def admit(context: Any) -> None:
        if admits is not None and not admits(context.peer()):
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                "for other users than its own, start the server with a --token-file, or with --insecure",
            )

    def single(request: Any, context: Any) -> Any:
        admit(context)
        try:
            return behaviour(_checked(request), context)
        except BaseException as error:  # SystemExit too: unpickled code may raise it, and the caller needs an answer
            failure = error
        _abort(context, failure)

    def stream(request: Any, context: Any) -> Iterator[Any]:
        admit(context)
        try:
            yield from behaviour(_checked(request), context)
            return
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error
        _abort(context, failure)

    return stream if response_streaming else single


def _checked(request: Any) -> Any:
    """Return the request, or the stream of requests; raise if one is malformed."""
    if isinstance(request, _Malformed):
        raise InvalidPipelineError(f"the request is malformed: {request.error}")
    return _checked_all(request) if isinstance(request, Iterator) else request


def _checked_all(requests: Iterator[Any]) -> Iterator[Any]:
    for request in requests:
        yield _checked(request)


def _abort(context: Any, error: BaseException) -> None:
    if isinstance(error, grpc.RpcError) and not context.is_active():
        return  # the caller has disconnected
    code, details = status_of(error), details_of(error)
    if code is grpc.StatusCode.INTERNAL:
        _LOG.error("a request failed", exc_info=error)
    else:
        _LOG.warning("refused (%s): %s", code.name, error)
    context.abort(code, details)
