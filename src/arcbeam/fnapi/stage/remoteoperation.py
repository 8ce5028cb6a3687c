"""The operation in the place of a worker's transforms, between a stage's read and its writes.

Owns a bundle in the worker: what is sent, what comes back, and when it has ended. Must not know how the worker was
started.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from apache_beam.coders.coder_impl import create_OutputStream
from apache_beam.metrics import monitoring_infos
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.pipeline_context import PipelineContext
from typing_extensions import override

from arcbeam.fnapi.descriptors import SOURCE, has_restrictions, is_port, sink_of
from arcbeam.fnapi.lost import SdkWorkerLostError
from arcbeam.fnapi.service.connection import Connection
from arcbeam.fnapi.service.instruction import Incoming, Instruction, Responded, StateRequested
from arcbeam.fnapi.stage.collectionsamples import CollectionSamples, SampledCollection
from arcbeam.fnapi.stage.keybatch import KeyBatch
from arcbeam.fnapi.stage.largegroups import LargeGroups
from arcbeam.fnapi.stage.shortids import ShortIds
from arcbeam.fnapi.stage.sinks import BlockSink, OutputSink, WorkerTimerSink
from arcbeam.fnapi.stage.staterequests import StateRequests
from arcbeam.fnapi.stage.watch import Watch
from arcbeam.fnapi.stage.workererrors import Named, error_in, names_in
from arcbeam.fnapi.wire import outgoing
from arcbeam.fnapi.wire.encodedblocks import BlockEncoder
from arcbeam.fnapi.wire.times import timer_in_millis, to_millis
from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.operations import registering
from arcbeam.harness.operations.encodedvalues import EncodedValues
from arcbeam.harness.operations.standin import StandIn
from arcbeam.harness.streaming.timers import TimerLog
from arcbeam.model.plan import Remote
from arcbeam.model.urns import REMOTE_URN
from arcbeam.sizes import threshold

_PCOLLECTION: Final = monitoring_infos.PCOLLECTION_LABEL
_PTRANSFORM: Final = monitoring_infos.PTRANSFORM_LABEL
_OWN_ERROR_SECONDS = 1.0
_MESSAGE: Final = threshold(1 << 20)
"""Bytes of a message to the worker."""


def _known(outputs: dict[Any, Any], id: Any) -> Any:
    """Return an output by what the worker calls it."""
    if id not in outputs:
        raise SdkWorkerLostError(f"the SDK worker has an output that its descriptor does not have: {id!r}")
    return outputs[id]


class RemoteOperation(StandIn):
    """Sends its input to a worker, and emits what the worker puts out.

    A bundle of the stage is a bundle in the worker. It is done when the worker has responded and all outputs have
    ended. Everything happens on the task's thread.

    Attributes:
        names: the worker's transforms, by id; set by `connect`.
        input_coder: coder of the input as the worker reads it, of windowed values; set by `connect`.
    """

    def __init__(self, name: Any, spec: Any, factory: Any, coder: Any, tags: list[str]) -> None:
        super().__init__(name, spec, factory, coder)
        self._tags = tags
        self._bundle: Instruction | None = None
        self._infos: dict[Any, Any] = {}
        self._families: dict[tuple[str, str], Any] = {}
        self._tokens: list[Any] = []
        self._large: LargeGroups | None = None
        self._samples: CollectionSamples | None = None
        self.names: dict[str, Named] = {}
        self.input_coder: Any = None

    def connect(
        self,
        worker: Connection,
        remote: Remote,
        descriptor: Any,
        requests: StateRequests,
        finalize_later: Callable[[Callable[[], object]], None],
    ) -> None:
        """Set the worker, once, before any bundle.

        Args:
            worker: the worker.
            remote: its part of the stage.
            descriptor: the `ProcessBundleDescriptor` of that part.
            requests: answers the worker's requests for state.
            finalize_later: takes a function that finalizes a bundle, to call when its output is committed.
        """
        self._requests, self._finalize_later = requests, finalize_later
        self._worker, self._descriptor = worker, descriptor.id
        step, self._splits = self.name_context.step_name, has_restrictions(descriptor)
        self._short_ids = ShortIds(worker, step)
        self.names = names_in(descriptor)
        self._watch = Watch(worker, step, {id: each.name for id, each in self.names.items()}, self.infos)
        self._source = remote.source.pcoll
        self._ends_once = outgoing.ends_once(runner_pb.Environment.FromString(remote.environment))
        self._sides = requests.sides
        worker.descriptors[descriptor.id] = descriptor
        coders = PipelineContext(descriptor).coders
        self.input_coder = coders.get_by_id(remote.source.ours)
        self._encode = self.input_coder.get_impl().encode_to_stream
        self._blocks = BlockEncoder(self.input_coder)
        self._sinks = {
            sink_of(tag): (
                n,
                BlockSink(descriptor.coders, remote.sinks[tag].ours, coders.get_by_id(remote.sinks[tag].ours)),
            )
            for n, tag in enumerate(self._tags)
        }
        self._timers = {
            family: WorkerTimerSink(descriptor.coders, id, coders.get_by_id(id)) for family, id in remote.timers.items()
        }
        self._encode_timer = {
            family: coders.get_by_id(id).get_impl().encode_nested for family, id in remote.timers.items()
        }

    def page_groups(self, coder: Any) -> None:
        """Let the worker read the values of large groups in pages.

        Args:
            coder: coder of one value.
        """
        self._large = LargeGroups(self._encode, coder, self._requests.keep)

    def sample(self, samples: CollectionSamples | None) -> None:
        """Set what takes samples in the following bundles; None: nothing does. No bundle is open."""
        self._samples = samples
        if samples is not None:
            self._worker.descriptors[samples.descriptor.id] = samples.descriptor

    def forget_caches(self) -> None:
        """Make the worker forget the state and the side inputs that it has cached: they may have changed."""
        token = uuid.uuid4().bytes
        of_state = fn_pb.ProcessBundleRequest.CacheToken(
            user_state=fn_pb.ProcessBundleRequest.CacheToken.UserState(), token=token
        )
        self._tokens = [of_state]
        for transform, side_input in self._sides:
            of = fn_pb.ProcessBundleRequest.CacheToken.SideInput(transform_id=transform, side_input_id=side_input)
            self._tokens.append(fn_pb.ProcessBundleRequest.CacheToken(side_input=of, token=token))

    def keys_are(self, key_batch: KeyBatch, log: TimerLog) -> None:
        """Set what knows the keys of the open bundle, and what takes the timers that they set, with the key."""
        self._key_batch, self._log = key_batch, log

    @override
    def start(self) -> None:
        super().start()
        self._unsent = create_OutputStream()
        self._due: dict[tuple[str, str], list[bytes]] = {}
        self._response: Any = None
        for sink in self._all_sinks():
            sink.begin()
        self._requests.begin()
        samples = self._samples
        if samples is not None:
            samples.begin()
        descriptor = self._descriptor if samples is None else samples.descriptor.id
        self._bundle = self._worker.begin(descriptor, self._tokens)
        self._bundle.watched_by(self._watch)
        self._watch.begin(self._bundle)

    @override
    def _take(self, block: Block) -> None:
        if self._samples is not None:
            self._sample_input(self._samples.input, block)
        block, encode, unsent, large = to_millis(block), self._encode, self._unsent, self._large
        together = (large is None or isinstance(block, EncodedValues)) and self._blocks.write(block, unsent)
        for element in () if together else block.elements():
            if large is not None and large.is_large(element):
                unsent.write(large.encoded(element))
            else:
                encode(element, unsent, True)
            if unsent.size() >= _MESSAGE:
                self._send()
                unsent = self._unsent
        if unsent.size() >= _MESSAGE:
            self._send()
        assert self._bundle is not None
        for arrival in self._bundle.take(lambda: True):
            self._took(arrival)

    def _sample_input(self, samples: SampledCollection, block: Block) -> None:
        for n in range(min(len(block), samples.missing)):
            element = block.element(n)
            if self._large is not None and self._large.is_large(element):
                samples.show(element)
            else:
                samples.keep(self.encoded(element))

    def take_encoded(self, data: bytes) -> None:
        """Take one element, encoded as the worker reads it."""
        if self._samples is not None and self._samples.input.missing:
            self._samples.input.keep(data)
        self._unsent.write(data)

    def encoded(self, element: Any) -> bytes:
        """Return an element as the worker reads it."""
        stream = create_OutputStream()
        self._encode(to_millis(Block.of([element])).element(0), stream, True)
        data: bytes = stream.get()
        return data

    def _send(self) -> None:
        assert self._bundle is not None
        data, self._unsent = self._unsent.get(), create_OutputStream()
        if data:
            self._worker.send(self._bundle, outgoing.elements(self._bundle.id, SOURCE, data), self._took)

    @override
    def timers_of(self, transform: str) -> _TimersOf:
        return _TimersOf(self, transform)

    def set_by(self, transform: str, family: str, log: Any) -> None:
        """Set what takes the timers of a family that the worker sets and clears: a coder of the SDK's timers."""
        self._families[transform, family] = log

    def fire(self, transform: str, family: str, timer: Any) -> None:
        """Fire a timer of the SDK, in the open bundle, at its end. All of them are of distinct keys."""
        self._due.setdefault((transform, family), []).append(
            self._encode_timer[transform, family](timer_in_millis(timer))
        )

    def _took(self, arrival: Incoming) -> None:
        if isinstance(arrival, Responded):
            if arrival.response.error:
                raise error_in(arrival.response.error, self.name_context.step_name, self.names)
            self._response = arrival.response.process_bundle
            if self._response.residual_roots and not self._splits:
                raise SdkWorkerLostError(
                    f"the SDK worker has deferred work of {self.running_step!r}, which has no restrictions"
                )
            if self._response.HasField("elements"):
                # These are all outputs of the bundle.
                for sink in self._all_sinks():
                    sink.end()
            return
        if isinstance(arrival, StateRequested):
            self._worker.answer(self._requests.answer(arrival.request))
            return
        if arrival.family is not None:
            owner = arrival.transform, arrival.family
            for timer in _known(self._timers, owner).timers(arrival):
                self._log.key = self._key_batch.key_of_timer(timer)
                self._families[owner].encode_to_stream(timer, None, True)
            return
        if self._samples is not None:
            if (inner := self._samples.inner.get(arrival.transform)) is not None:
                inner.output(arrival)
                return
            if (output := self._samples.outputs.get(arrival.transform)) is not None:
                output.look(arrival.data)
        index, sink = _known(self._sinks, arrival.transform)
        with self.scoped_process_state:
            for block in sink.blocks(arrival):
                self._outputs[index].emit(block)

    def _ended(self) -> bool:
        return self._response is not None and all(sink.ended for sink in self._all_sinks())

    def _all_sinks(self) -> Iterator[OutputSink]:
        yield from (sink for _, sink in self._sinks.values())
        yield from self._timers.values()
        yield from () if self._samples is None else self._samples.inner.values()

    def complete(self, look: Callable[[], None] = lambda: None, seconds: float | None = None) -> None:
        """End the input, and wait until the worker has ended the bundle.

        Args:
            look: is called at intervals.
            seconds: between two calls of it; None: only when something arrives.
        """
        assert self._bundle is not None
        self._send()
        for (transform, family), timers in self._due.items():
            message = outgoing.timers(self._bundle.id, transform, family, b"".join(timers))
            self._worker.send(self._bundle, message, self._took)
        end = outgoing.end(self._bundle.id, SOURCE, self._timers, once=self._ends_once)
        self._worker.send(self._bundle, end, self._took)
        while not self._ended():
            for arrival in self._bundle.take(lambda: False, seconds):
                self._took(arrival)
            look()

    def ask(self, is_moot: Callable[[], bool] = lambda: False, **request: Any) -> Any:
        """Send a request about the open bundle, and serve the bundle meanwhile; see `Connection.ask_during`."""
        assert self._bundle is not None
        for each in request.values():
            each.instruction_id = self._bundle.id
        return self._worker.ask_during(self._bundle, self._took, is_moot, **request)

    def serve(self, until: Callable[[], bool]) -> None:
        """Serve the open bundle, if any, until a condition of the worker is true."""
        while self._bundle is not None and not until():
            for arrival in self._bundle.take(until):
                self._took(arrival)

    @override
    def finish(self) -> None:
        super().finish()
        if not self._ended():
            self.complete()
        response = self._response
        self._infos = {monitoring_infos.to_key(info): info for info in self.infos(response) if self._is_theirs(info)}
        if response.requires_finalization:
            assert self._bundle is not None
            self._finalize_later(partial(self._worker.finalize, self._bundle.id))
        self.give_up()

    def _is_theirs(self, info: Any) -> bool:
        """Return whether a metric is of the worker's transforms: our ports are none, and what the stage reads is
        counted here, too.
        """
        labels = info.labels
        return labels.get(_PCOLLECTION) != self._source and not is_port(labels.get(_PTRANSFORM, ""))

    def infos(self, response: Any) -> list[Any]:
        """Return the metrics in the response for a bundle, or for its progress."""
        return list(response.monitoring_infos) or self._short_ids.infos(response.monitoring_data)

    @property
    def response(self) -> Any:
        """The `ProcessBundleResponse` of the bundle; None as long as there is none."""
        return self._response

    @property
    def running_step(self) -> str:
        """Name of the worker's transform that runs, or ran last, as far as is known."""
        return self._watch.running

    def await_own_error(self) -> None:
        """Wait a short time for the response of the open bundle, and raise its error, if it is one.

        SUBTLE: after the failure of a bundle, requests about it are answered with errors, too. Python's answer may be
        sent before the bundle's own response, which has the cause.
        """
        end = time.monotonic() + _OWN_ERROR_SECONDS
        assert self._bundle is not None
        while self._response is None and (left := end - time.monotonic()) > 0:
            for arrival in self._bundle.take(lambda: False, left):
                self._took(arrival)

    def give_up(self) -> None:
        """Forget the open bundle, if any."""
        if self._bundle is not None:
            self._watch.end()
            self._worker.end_bundle(self._bundle)
            self._bundle = None

    def monitoring_infos(self, transform_id: str, tag_to_pcollection_id: Any) -> dict[Any, Any]:
        """Return the worker's metrics of the last bundle."""
        return self._infos

    @override
    def reset(self) -> None:
        super().reset()
        self._infos = {}


class _TimersOf:
    """The timers of one of the worker's transforms, as the SDK's operations have them.

    Args:
        operation: represents the transform.
        transform: its id.
    """

    def __init__(self, operation: RemoteOperation, transform: str) -> None:
        self._operation, self._transform = operation, transform

    def add_timer_info(self, family: str, info: Any) -> None:
        """Set what takes the timers of a family."""
        self._operation.set_by(self._transform, family, info.timer_coder_impl)

    def process_timer(self, family: str, timer: Any) -> None:
        """Fire a timer."""
        self._operation.fire(self._transform, family, timer)


def register() -> None:
    """Register our operation in the SDK's factory. Idempotent."""
    registering.register(REMOTE_URN, RemoteOperation)
