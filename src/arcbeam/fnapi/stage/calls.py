"""Calls of a single transform in an SDK worker: one element in, and its outputs.

Owns the bundle of a call. Must not know what the element is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb

from arcbeam.fnapi.descriptors import SOURCE
from arcbeam.fnapi.lost import SdkWorkerLostError
from arcbeam.fnapi.service.connection import Connection
from arcbeam.fnapi.service.instruction import Instruction, Output, Responded, StateRequested
from arcbeam.fnapi.stage.workererrors import error_in, names_in
from arcbeam.fnapi.wire import outgoing

Serve = Callable[[Callable[[], bool]], None]
"""Serves another open bundle of the same worker until a condition is true; returns at once if there is none."""


def serve_nothing(until: Callable[[], bool]) -> None:
    """See `Serve`: there is no other bundle."""


class Calls:
    """A transform that is called with one element; each call is a bundle of its own.

    SUBTLE: a call may be needed while a bundle of the stage is open. That bundle is served meanwhile: a worker that
    waits for room to send its outputs would not answer the call.

    Args:
        worker: the worker.
        made: the `ProcessBundleDescriptor`; it has one output.
        step: the name of the transform, for errors.
        serve: serves the open bundle of the stage.
        answer: answers a `StateRequest`; None if the transform has no side inputs.

    Attributes:
        step: the name of the transform.
        names: all transforms, by id.
    """

    def __init__(
        self,
        worker: Connection,
        made: Any,
        step: str,
        serve: Serve = serve_nothing,
        answer: Callable[[Any], Any] | None = None,
    ) -> None:
        self._worker, self._descriptor, self.step, self._serve, self._answer = worker, made.id, step, serve, answer
        self.names = names_in(made)
        worker.descriptors[made.id] = made

    def __call__(self, element: bytes) -> bytes:
        """Return the encoded outputs for an encoded element.

        Raises:
            UserCodeError: the transform has failed.
            SdkWorkerLostError: the worker is gone.
        """
        worker, serve = self._worker, self._serve
        call = _Call(self, worker.begin(self._descriptor))
        bundle = call.bundle
        try:
            for message in (outgoing.elements(bundle.id, SOURCE, element), outgoing.end(bundle.id, SOURCE, ())):
                serve(worker.has_room)
                worker.send(bundle, message, call.took)
            while not call.is_done:
                serve(lambda: bundle.has_arrivals)
                for arrival in bundle.take(lambda: False):
                    call.took(arrival)
        finally:
            worker.end_bundle(bundle)
        return b"".join(call.output)

    def answer(self, request: Any) -> Any:
        """Return the `StateResponse` of a `StateRequest`."""
        if self._answer is None:
            return fn_pb.StateResponse(id=request.id, error="a window function has no state and no side input")
        return self._answer(request)


class _Call:
    """One call."""

    def __init__(self, calls: Calls, bundle: Instruction) -> None:
        self._calls, self.bundle = calls, bundle
        self.output: list[bytes] = []
        self._ended = self._responded = False

    @property
    def is_done(self) -> bool:
        return self._ended and self._responded

    def took(self, arrival: Any) -> None:
        match arrival:
            case Output(data=data, last=last):
                self.output.append(data)
                self._ended = self._ended or last
            case StateRequested(request):
                self._calls._worker.answer(self._calls.answer(request))
            case Responded(response):
                if response.error:
                    raise error_in(response.error, self._calls.step, self._calls.names)
                if response.process_bundle.residual_roots:
                    raise SdkWorkerLostError(f"the SDK worker has deferred a call of {self._calls.step!r}")
                self._responded = True
                self._ended = self._ended or response.process_bundle.HasField("elements")
