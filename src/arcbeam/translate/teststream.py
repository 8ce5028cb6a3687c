"""TestStreams: translates their protos, from a payload or from a service, to a script.

Owns what an event means, the unit of its times, and which events are invalid. Must not know when an event happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.utils import proto_utils
from google.protobuf.message import DecodeError
from typing_extensions import override

from arcbeam.errors import ArcbeamError, InvalidPipelineError, JobFailedError
from arcbeam.model.script import AddElements, AdvanceClock, AdvanceWatermark, Script, ScriptEvent, ScriptOver
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp

URN: str = common_urns.primitives.TEST_STREAM.urn

_UNTAGGED = "None"
"""The SDK's tag of an output without a tag."""

_INLINE_MICROS = 1000
_SERVICE_MICROS = 1
"""Microseconds per unit of time.

SUBTLE: the same protos have milliseconds in a payload but microseconds when a service sends them. The SDK's services
write them so, and its local runner reads them so.
"""


def of(pipeline: Any) -> Any:
    """Return the TestStream of a pipeline; None if it has none."""
    return next((t for t in pipeline.components.transforms.values() if t.spec.urn == URN), None)


def payload_of(transform: Any) -> Any:
    """Return the `TestStreamPayload` of a transform; None if it is not a TestStream.

    Raises:
        InvalidPipelineError: the payload cannot be read.
    """
    if transform.spec.urn != URN:
        return None
    try:
        return proto_utils.parse_Bytes(transform.spec.payload, runner_pb.TestStreamPayload)
    except DecodeError as e:
        raise InvalidPipelineError(f"the payload of '{transform.unique_name}' is malformed: {e}") from e


def script_of(transform: Any, outputs: Mapping[str, str]) -> Script:
    """Return the script of a TestStream.

    Args:
        transform: the TestStream.
        outputs: for each tag, the uid of the stage that outputs its elements.

    Raises:
        InvalidPipelineError: an event is invalid.
    """
    payload, name = payload_of(transform), transform.unique_name
    endpoint = payload.endpoint.url
    if endpoint and payload.events:
        raise InvalidPipelineError(f"TestStream '{name}' has both events and a service for events ('{endpoint}')")
    reader = _Reader(name, outputs, _INLINE_MICROS)
    try:
        return Script(name, outputs, tuple(map(reader.event, payload.events)), endpoint)
    except ValueError as e:
        raise InvalidPipelineError(str(e)) from e


def check(transform: Any, components: Any) -> None:
    """Check a TestStream as far as its proto allows.

    Raises:
        InvalidPipelineError: the payload is invalid.
    """
    payload = payload_of(transform)
    if payload.coder_id not in components.coders:
        raise InvalidPipelineError(
            f"TestStream '{transform.unique_name}' names a coder '{payload.coder_id}' that does not exist"
        )
    script_of(transform, {tag: tag for tag in transform.outputs})


class _Reader:
    """Translates protos to events, in their order."""

    def __init__(self, name: str, outputs: Mapping[str, str], micros: int) -> None:
        self._name, self._outputs, self._micros = name, outputs, micros
        self._watermarks: dict[str, Timestamp] = {}
        self._events = 0

    def event(self, proto: Any) -> ScriptEvent:
        """Return the event of a `TestStreamPayload.Event`; raise ValueError if it is invalid."""
        self._events += 1
        match proto.WhichOneof("event"):
            case "element_event":
                added = proto.element_event
                stage = self._stage(added.tag)
                return AddElements(
                    stage, tuple((each.encoded_element, self._time(each.timestamp)) for each in added.elements)
                )
            case "watermark_event":
                return self._advanced(proto.watermark_event)
            case "processing_time_event":
                by = proto.processing_time_event.advance_duration * self._micros
                if by < 0:
                    raise self._wrong(f"moves processing time back by {-by} µs")
                return AdvanceClock(Duration(by))
            case _:
                raise self._wrong("has an unknown kind")

    def _advanced(self, moved: Any) -> AdvanceWatermark:
        stage, watermark = self._stage(moved.tag), self._time(moved.new_watermark)
        before = self._watermarks.get(stage, MIN_TIMESTAMP)
        if watermark < before:
            raise self._wrong(f"moves the watermark of output '{moved.tag}' back, from {before} to {watermark} µs")
        self._watermarks[stage] = watermark
        return AdvanceWatermark(stage, watermark)

    def _stage(self, tag: str) -> str:
        stage = self._outputs.get(tag or _UNTAGGED)
        if stage is None and not tag and len(self._outputs) == 1:
            (stage,) = self._outputs.values()  # SDKs name a single output as they like
        if stage is None:
            tags = ", ".join(map(repr, sorted(self._outputs)))
            raise self._wrong(f"names output '{tag}', but the TestStream has only {tags}")
        return stage

    def _time(self, units: int) -> Timestamp:
        time = units * self._micros
        if not MIN_TIMESTAMP <= time <= MAX_TIMESTAMP:
            raise self._wrong(f"has a time out of range: {time} µs (Beam allows {MIN_TIMESTAMP} to {MAX_TIMESTAMP} µs)")
        return Timestamp(time)

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"event {self._events} of TestStream '{self._name}' {what}")


class TestStreamEvents(Protocol):
    """The events of a script, one after the other; the last is its end."""

    def __next__(self) -> ScriptEvent:
        """Return the next event; may wait for it.

        Raises:
            ArcbeamError: the script cannot be read or is invalid.
        """

    def close(self) -> None:
        """Stop. A thread that waits for the next event gets an error. Any thread may call this."""


def events_of(script: Script, number: int) -> TestStreamEvents:
    """Return the events of a script after the first `number` of them."""
    return _OfService(script, number) if script.endpoint else _Inline(script, number)


class _Inline(TestStreamEvents):
    """Events that the script contains."""

    def __init__(self, script: Script, number: int) -> None:
        self._events: Iterator[ScriptEvent] = iter((*script.events[number:], ScriptOver()))

    def __next__(self) -> ScriptEvent:
        return next(self._events)

    @override
    def close(self) -> None:
        pass


class _OfService(TestStreamEvents):
    """Events from a service, which always sends them all, from the first."""

    def __init__(self, script: Script, number: int) -> None:
        # Imported here because few jobs need it.
        import grpc
        from apache_beam.portability.api import beam_interactive_api_pb2 as interactive_pb
        from apache_beam.portability.api import beam_interactive_api_pb2_grpc as interactive_grpc

        self._script, self._error = script, grpc.RpcError
        self._reader = _Reader(script.name, script.outputs, _SERVICE_MICROS)
        self._channel = grpc.insecure_channel(script.endpoint)
        service = interactive_grpc.TestStreamServiceStub(self._channel)
        self._call = service.Events(interactive_pb.EventsRequest(output_ids=sorted(script.outputs)))
        self._number, self._before = number, 0

    def __next__(self) -> ScriptEvent:
        try:
            for proto in self._call:
                event = self._reader.event(proto)
                self._before += 1
                if self._before > self._number:
                    return event
        except self._error as e:
            raise self._failed(f"cannot be read: {e.code().name}: {e.details()}") from e
        except ValueError as e:
            raise JobFailedError(str(e)) from e
        if self._before < self._number:
            raise self._failed(f"has {self._before} event(s), but {self._number} have already happened")
        return ScriptOver()

    @override
    def close(self) -> None:
        self._call.cancel()
        self._channel.close()

    def _failed(self, what: str) -> ArcbeamError:
        return JobFailedError(f"the service of TestStream '{self._script.name}' at '{self._script.endpoint}' {what}")
