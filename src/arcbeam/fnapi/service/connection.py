"""One SDK worker, from its start to its end.

Owns the instructions that are open in the worker, and what waits to be sent to it. Must not know gRPC: the server moves
the messages.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final

from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb

from arcbeam.fnapi.lost import ProcessEnd, SdkWorkerLostError, WorkerAccount
from arcbeam.fnapi.service.instruction import Incoming, Instruction, Output, Responded, StateRequested
from arcbeam.fnapi.service.workerend import EXIT_SECONDS_MAX, GIVES_UP, OUTPUT_SECONDS, WorkerEnd
from arcbeam.sizes import threshold

_UNSENT_BYTES_MAX: Final = threshold(16 << 20)
"""Bytes of input that may wait for the worker."""
_BOTH: Final = "it has put out elements of one bundle on its data stream and also in its response"


class WorkerStream(Enum):
    """A stream of a worker. Each is opened once, and a worker that has ended one of them is lost."""

    CONTROL = "control"
    DATA = "data"
    STATE = "state"


class Connection:
    """An SDK worker, whether it has connected already or not.

    Args:
        worker: its id, which no other process can guess.
        name: of its environment, for messages.

    Attributes:
        worker: its id.
        name: its name in messages.
        descriptors: the bundle descriptors that it may ask for, by id.
    """

    def __init__(self, worker: str, name: str) -> None:
        self.worker = worker
        self.descriptors: dict[str, Any] = {}
        self.name = name
        # SUBTLE: the threads that send wait each for its own condition. If a state request woke all of them, it would
        # cost several times as much as its answer.
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._requested = threading.Condition(lock)
        self._sent = threading.Condition(lock)
        self._answered = threading.Condition(lock)
        self._instructions: dict[str, Instruction] = {}
        self._numbers = itertools.count(1)
        self._requests: deque[Any] = deque()
        self._unsent: deque[Any] = deque()
        self._unsent_bytes = 0
        self._answers: deque[Any] = deque()
        self._streams: set[WorkerStream] = set()
        self._closed = False
        self._lost = ""
        self._end = WorkerEnd()
        self._running: tuple[str, ...] = ()
        self._has_answered = self._idle = False

    # For the task's thread.

    def connected(self, seconds: float) -> None:
        """Wait for the worker's control stream.

        Raises:
            SdkWorkerLostError: it does not come in time.
        """
        with self._changed:
            self._changed.wait_for(lambda: WorkerStream.CONTROL in self._streams or self._lost, seconds)
            if WorkerStream.CONTROL not in self._streams:
                late = "" if self._lost else f"the SDK worker of {self.name} did not connect within {seconds:g} s"
                raise SdkWorkerLostError(str(self._account(late)))
            problem = self._problem()
            if problem is not None:
                raise problem

    @property
    def is_lost(self) -> bool:
        """Whether the worker has ended."""
        return bool(self._lost)

    def begin(self, descriptor: str, tokens: Sequence[Any] = ()) -> Instruction:
        """Begin a bundle of a descriptor; close it with `end_bundle`.

        Args:
            descriptor: its id.
            tokens: `CacheToken`s: the worker may use what it has cached with an equal token.
        """
        request = fn_pb.ProcessBundleRequest(process_bundle_descriptor_id=descriptor, cache_tokens=tokens)
        return self.request(process_bundle=request)

    def finalize(self, bundle: str) -> None:
        """Finalize a bundle that has ended, whose output is committed.

        Raises:
            SdkWorkerLostError: the worker is gone, or has failed.
        """
        self.ask(finalize_bundle=fn_pb.FinalizeBundleRequest(instruction_id=bundle))

    def end_bundle(self, bundle: Instruction) -> None:
        """Forget a bundle. What the worker still sends for it is dropped."""
        with self._changed:
            self._instructions.pop(bundle.id, None)
            self._has_answered = self._has_answered or bundle.has_response
        for arrival in bundle.close():
            if isinstance(arrival, StateRequested):
                self._answer_late(arrival.request)

    def send(self, bundle: Instruction, message: Any, took: Callable[[Incoming], None]) -> None:
        """Send input of a bundle. While too much waits for the worker, take what arrives for the bundle.

        SUBTLE: a worker that waits for room to send does not read. If the task only waited for room, too, neither would
        ever continue.

        Args:
            bundle: the bundle.
            message: `Elements`; see `arcbeam.fnapi.wire.outgoing`.
            took: is called with each arrival.

        Raises:
            SdkWorkerLostError: the worker is gone.
        """
        while not self.has_room():
            for arrival in bundle.take(self.has_room):
                took(arrival)
        with self._changed:
            problem = self._problem()
            if problem is not None:
                raise problem
            self._unsent.append(message)
            self._unsent_bytes += message.ByteSize()
            self._sent.notify_all()

    def answer(self, response: Any) -> None:
        """Send a `StateResponse`."""
        with self._changed:
            self._answers.append(response)
            self._answered.notify_all()

    def _answer_late(self, request: Any) -> None:
        # A worker waits for the answer, whatever has become of the bundle.
        self.answer(fn_pb.StateResponse(id=request.id, error="the bundle has ended"))

    def has_room(self) -> bool:
        """Return whether more may wait for the worker."""
        return self._unsent_bytes <= _UNSENT_BYTES_MAX

    def ask(self, **request: Any) -> Any:
        """Send a request that is no bundle; return its response.

        Raises:
            SdkWorkerLostError: the worker is gone, or cannot answer.
        """
        response = self.ask_during(None, lambda arrival: None, **request)
        if response.error:
            raise SdkWorkerLostError(f"the SDK worker of {self.name} cannot answer: {response.error}")
        return response

    def ask_during(
        self,
        bundle: Instruction | None,
        took: Callable[[Incoming], None],
        is_moot: Callable[[], bool] = lambda: False,
        **request: Any,
    ) -> Any:
        """Send a request about a bundle; return its response, which may be an error.

        Args:
            bundle: the bundle; it may have to be served until the worker can answer.
            took: is called with each arrival for the bundle.
            is_moot: whether an arrival for the bundle has made the response useless. Then this returns None.
            **request: the field of the `InstructionRequest`.

        Raises:
            SdkWorkerLostError: the worker is gone.
        """
        requested = self.request(**request)
        try:
            while bundle is not None and not requested.has_arrivals:
                if is_moot():
                    return None
                for arrival in bundle.take(lambda: requested.has_arrivals):
                    took(arrival)
            (arrival,) = requested.take(lambda: False)
        finally:
            self.end_bundle(requested)
        assert isinstance(arrival, Responded)
        return arrival.response

    def request(self, **request: Any) -> Instruction:
        """Send a request, and do not wait for the response; close it with `end_bundle`.

        Args:
            **request: the field of the `InstructionRequest`.

        Raises:
            SdkWorkerLostError: the worker is gone.
        """
        with self._changed:
            problem = self._problem()
            if problem is not None:
                raise problem
            # Ids are never used again: workers reject an id that they have seen.
            (kind,) = request
            instruction = Instruction(f"{self.worker[:8]}-{next(self._numbers)}", kind, self._changed, self._problem)
            self._instructions[instruction.id] = instruction
            self._requests.append(fn_pb.InstructionRequest(instruction_id=instruction.id, **request))
            self._requested.notify_all()
        return instruction

    def close(self) -> None:
        """End the streams of the worker, which then ends itself. Idempotent."""
        self.end("it was stopped")

    # For the server's threads.

    def claim(self, stream: WorkerStream) -> bool:
        """Take a stream of the worker; return False if there was one before.

        SUBTLE: two streams of a kind would each get some of the messages.
        """
        with self._changed:
            if stream in self._streams or self._closed:
                return False
            self._streams.add(stream)
            self._changed.notify_all()
            return True

    def requests(self) -> Iterator[Any]:
        """Yield `InstructionRequest`s until the end."""
        yield from self._queued(self._requests, self._requested)

    def input(self) -> Iterator[Any]:
        """Yield `Elements` for the worker until the end."""
        for message in self._queued(self._unsent, self._sent):
            yield message
            with self._changed:
                self._unsent_bytes -= message.ByteSize()
                self._changed.notify_all()

    def answers(self) -> Iterator[Any]:
        """Yield `StateResponse`s until the end."""
        yield from self._queued(self._answers, self._answered)

    def _queued(self, queue: deque[Any], added: threading.Condition) -> Iterator[Any]:
        while True:
            with added:
                added.wait_for(lambda: queue or self._closed)
                if self._closed:
                    return
                message = queue.popleft()
            yield message

    def responded(self, response: Any) -> None:
        """Add an `InstructionResponse`. Only the first one for an instruction counts.

        The outputs of a small bundle may be in the response. Then none of them are on the data stream.
        """
        instruction = self._instruction(response.instruction_id)
        if instruction is None or instruction.has_response:
            return
        kind = response.WhichOneof("response")
        if not response.error and kind != instruction.kind:
            self.end(f"it has answered a request '{instruction.kind}' with '{kind}'")
            return
        if response.process_bundle.HasField("elements") and not response.error:
            if instruction.has_output:
                self.end(_BOTH)
                return
            instruction.is_embedded = True
            for _, output in _outputs(response.process_bundle.elements):
                instruction.add(output)
        instruction.add(Responded(response))

    def received(self, elements: Any) -> None:
        """Add `Elements` of the worker's data stream. Waits while a bundle does not take its outputs."""
        for id, output in _outputs(elements):
            # Without an instruction: of a bundle that has failed, or that the task has given up.
            if (instruction := self._instruction(id)) is None:
                continue
            if instruction.is_embedded:
                self.end(_BOTH)
                return
            instruction.add(output)

    def requested(self, request: Any) -> None:
        """Add a `StateRequest`."""
        instruction = self._instruction(request.instruction_id)
        if instruction is None or not instruction.add(StateRequested(request)):
            self._answer_late(request)

    def _instruction(self, id: str) -> Instruction | None:
        with self._changed:
            return self._instructions.get(id)

    def logs(self, *, begins: bool) -> None:
        """A stream of the log of the worker, or of the program that started it, begins or ends."""
        with self._changed:
            self._end.logs += 1 if begins else -1
            self._changed.notify_all()

    def logged(self, text: str, *, error: bool, by_boot: bool) -> None:
        """A warning or an error was logged.

        Args:
            text: the text.
            error: whether it is an error.
            by_boot: whether the boot program has logged it, which started the worker.
        """
        with self._changed:
            if by_boot and text.startswith(GIVES_UP):
                self._end.gave_up = True
                self.end("its boot program gives up")
            elif error or by_boot:
                self._end.logged(text, by_boot=by_boot)
                self._changed.notify_all()

    def process_ended(self, end: ProcessEnd) -> None:
        """The process that was started has ended: the worker, or what has started it."""
        with self._changed:
            self._end.process = end
            self.end(end.why)

    def end(self, why: str) -> None:
        """The worker has ended: open instructions fail. Only the first call counts."""
        with self._changed:
            if not self._lost:
                self._lost = why
                self._idle = self._has_answered and not self._instructions
                self._running = tuple(each for one in self._instructions.values() for each in one.running())
            self._closed = True
            for instruction in self._instructions.values():
                instruction.drop_more()
            for waited_for in (self._changed, self._requested, self._sent, self._answered):
                waited_for.notify_all()

    def _problem(self) -> Exception | None:
        if not self._lost:
            return None
        return SdkWorkerLostError(f"the SDK worker of {self.name} is gone: {self._lost}", self._account)

    def set_output(self, output: Callable[[], Iterable[str]], *, process: bool) -> None:
        """Set what returns the last lines of the worker's output, and whether the end of a process will be known."""
        self._end.output, self._end.has_process = output, process

    def _account(self, instead: str = "") -> WorkerAccount:
        """Return what is known of the worker's end.

        Args:
            instead: why the worker is given up, if it has not ended.
        """
        with self._changed:
            if self._lost:
                # The streams end first, then the process, and what it has logged is read last.
                self._changed.wait_for(self._end.is_complete, EXIT_SECONDS_MAX)
                # SUBTLE: its output was written before, but comes by another way.
                self._changed.wait_for(lambda: False, OUTPUT_SECONDS)
            how = self._end.how() if self._lost else ""
            process = self._end.process
            is_same = process is not None and (process.why, process.how) == (self._lost, how)
            why = f"{how} ({self._lost})" if how and not is_same else self._lost
            why = instead or f"the SDK worker of {self.name} is gone: {why}"
            return WorkerAccount(why, self._end.last_lines(), how, self._running, self._idle)


def _outputs(elements: Any) -> Iterator[tuple[str, Output]]:
    """Yield the outputs in `Elements`, each after the id of its instruction."""
    for each in elements.data:
        yield each.instruction_id, Output(each.transform_id, each.data, each.is_last)
    for each in elements.timers:
        yield each.instruction_id, Output(each.transform_id, each.timers, each.is_last, each.timer_family_id)
