"""An SDK worker in the test's process that does what a test tells it to: correct things, traps, and faults."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import grpc
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_fn_api_pb2_grpc as fn_grpc

SECONDS = 10.0
"""Limit for whatever should happen at once."""


class ScriptedWorker:
    """Connects like an SDK's worker; what it does then, the test says.

    Args:
        address: of the server.
        worker: the worker's id.
    """

    def __init__(self, address: str, worker: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._metadata = (("worker_id", worker),)
        self._responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outputs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._inputs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._control = fn_grpc.BeamFnControlStub(self._channel)
        self._state_requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._state_opened = False
        self._never: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reading = threading.Event()
        self._reading.set()
        self._data_call: Any = None
        self._entries: list[Any] = []
        self.last_request: Any = None

    def __enter__(self) -> Self:
        self._listen(self._control.Control(iter(self._responses.get, None), metadata=self._metadata), self._requests)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def _listen(self, stream: Any, into: queue.SimpleQueue[Any]) -> None:
        def listen() -> None:
            try:
                for message in stream:
                    self._reading.wait()
                    into.put(message)
                into.put(None)
            except grpc.RpcError as error:
                into.put(error)

        threading.Thread(target=listen, daemon=True).start()

    def end(self) -> None:
        """End all streams, as the end of its process does."""
        self._channel.close()

    def request(self) -> Any:
        """Return the next request on the control stream; None if the server has ended the stream."""
        self.last_request = self._requests.get(timeout=SECONDS)
        return self.last_request

    def end_stream(self, stream: str) -> None:
        """End one stream, "data" or "state", after it was opened, as a worker does in which a thread has failed."""
        (self._outputs if stream == "data" else self._state_requests).put(None)

    def open_again(self, stream: str) -> Any:
        """Open a second stream, "data" or "state"; return the error with which the server ends it."""
        if stream == "data":
            call = fn_grpc.BeamFnDataStub(self._channel).Data(iter(self._never.get, None), metadata=self._metadata)
        else:
            call = fn_grpc.BeamFnStateStub(self._channel).State(iter(self._never.get, None), metadata=self._metadata)
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._listen(call, ended)
        return ended.get(timeout=SECONDS)

    def respond(self, id: str, **response: Any) -> None:
        """Send an `InstructionResponse`."""
        self._responses.put(fn_pb.InstructionResponse(instruction_id=id, **response))

    def descriptor(self, id: str) -> Any:
        """Ask for a descriptor."""
        request = fn_pb.GetProcessBundleDescriptorRequest(process_bundle_descriptor_id=id)
        return self._control.GetProcessBundleDescriptor(request, metadata=self._metadata, timeout=SECONDS)

    def _open_data(self) -> None:
        if self._data_call is None:
            data = fn_grpc.BeamFnDataStub(self._channel)
            self._data_call = data.Data(iter(self._outputs.get, None), metadata=self._metadata)
            self._listen(self._data_call, self._inputs)

    def pause(self) -> None:
        """Stop reading all streams, as a worker does whose threads wait."""
        self._reading.clear()

    def resume(self) -> None:
        """Read again."""
        self._reading.set()

    def put_out(self, id: str, transform: str, data: bytes, last: bool = False) -> None:
        """Send elements of an output."""
        self._open_data()
        each = fn_pb.Elements.Data(instruction_id=id, transform_id=transform, data=data, is_last=last)
        self._outputs.put(fn_pb.Elements(data=[each]))

    def set_timers(self, id: str, transform: str, family: str, data: bytes, last: bool = False) -> None:
        """Send timers that were set."""
        self._open_data()
        to = {"instruction_id": id, "transform_id": transform, "timer_family_id": family}
        self._outputs.put(fn_pb.Elements(timers=[fn_pb.Elements.Timers(timers=data, is_last=last, **to)]))

    def respond_with_outputs(self, id: str, elements: Any, **response: Any) -> None:
        """Send the response for a bundle, with its outputs: `Elements`."""
        self.respond(id, process_bundle=fn_pb.ProcessBundleResponse(elements=elements, **response))

    def message(self) -> Any:
        """Return the next `Elements` of the runner."""
        self._open_data()
        return self._inputs.get(timeout=SECONDS)

    def input(self) -> Any:
        """Return the next `Elements.Data` of the runner."""
        if not self._entries:
            self._entries += self.message().data
        return self._entries.pop(0)

    def inputs(self) -> Iterator[Any]:
        """Yield the runner's `Elements.Data` up to the last one."""
        while True:
            each = self.input()
            yield each
            if each.is_last:
                return

    def log(self, **entry: Any) -> None:
        """Log one entry; return when the server has taken it."""
        self.log_all([fn_pb.LogEntry(**entry)])

    def log_all(self, some: list[Any]) -> None:
        """Log `LogEntry`s; return when the server has taken them."""
        entries = fn_pb.LogEntry.List(log_entries=some)
        list(fn_grpc.BeamFnLoggingStub(self._channel).Logging(iter([entries]), metadata=self._metadata))

    def state(self, **request: Any) -> Any:
        """Ask for state, without waiting; return a function that returns the next answer.

        Its error is that of the stream.
        """
        if not self._state_opened:
            self._state_opened = True
            requests = iter(self._state_requests.get, None)
            state = fn_grpc.BeamFnStateStub(self._channel)
            self._listen(state.State(requests, metadata=self._metadata), self._answers)
        self._state_requests.put(fn_pb.StateRequest(**request))

        def answer() -> Any:
            found = self._answers.get(timeout=SECONDS)
            if isinstance(found, grpc.RpcError):
                raise found
            return found

        return answer
