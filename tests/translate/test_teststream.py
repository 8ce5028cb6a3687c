"""TestStreams become scripts, or are rejected by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue

from arcbeam.errors import InvalidPipelineError
from arcbeam.model.script import AddElements, AdvanceClock, AdvanceWatermark, Script
from arcbeam.model.timestamps import MAX_TIMESTAMP, Duration, Timestamp
from arcbeam.translate import ParsedPipeline, translate
from tests.golden import check_message
from tests.translate.plans import plan_of, proto_of, stage_of

pytestmark = pytest.mark.contract("ENG-09")

_encode = FastPrimitivesCoder().encode


def stream() -> Any:
    return test_stream.TestStream()


def _two(p: Any) -> None:
    script = (
        stream()
        .advance_watermark_to(3, tag="b")
        .add_elements([TimestampedValue("x", 1.5)], tag="a")
        .advance_processing_time(0.25)
        .advance_watermark_to_infinity(tag="a")
    )
    outputs = p | "Script" >> script
    outputs["a"] | "A" >> beam.Map(str)
    outputs["b"] | "B" >> beam.Map(str) | beam.Reshuffle()


def test_each_output_is_a_source() -> None:
    plan = plan_of(_two, bounded=False)
    assert not plan.bounded
    assert plan.script == Script(
        "Script",
        {"a": "Script/a", "b": "Script/b"},
        (
            AdvanceWatermark("Script/b", Timestamp(3_000_000)),
            AddElements("Script/a", ((_encode("x"), Timestamp(1_500_000)),)),
            AdvanceClock(Duration(250_000)),
            AdvanceWatermark("Script/a", MAX_TIMESTAMP),
        ),
    )
    for name in ("A", "B"):
        stage = stage_of(plan, name)
        assert (stage.uid, stage.scripted, stage.source) == (f"Script/{name.lower()}", True, None)
    assert [stage.scripted for stage in plan.stages] == [True, True, False]


def test_single_output_is_named_after_transform() -> None:
    def build(p: Any) -> None:
        p | "Script" >> stream().add_elements([1]) | "A" >> beam.Map(str) | "B" >> beam.Map(str)

    for fusion in (True, False):
        plan = plan_of(build, fusion=fusion, bounded=False)
        assert plan.script is not None
        assert plan.script.outputs == {"None": "Script"}
        assert plan.stages[0].uid == "Script"


def test_unread_output_is_kept() -> None:
    plan = plan_of(
        lambda p: p | "Script" >> stream().add_elements([1], tag="a").add_elements([2], tag="b"), bounded=False
    )
    assert plan.script is not None
    assert {stage.uid for stage in plan.stages} == set(plan.script.outputs.values()) == {"Script/a", "Script/b"}


def test_script_names_service_of_events() -> None:
    plan = plan_of(lambda p: p | "Script" >> test_stream.TestStream(endpoint="localhost:7"), bounded=False)
    assert plan.script == Script("Script", {"None": "Script"}, (), "localhost:7")


def _event(**of: Any) -> Any:
    return runner_pb.TestStreamPayload.Event(**of)


def _moved(**of: Any) -> Any:
    return _event(watermark_event=runner_pb.TestStreamPayload.Event.AdvanceWatermark(**of))


_CLOCK = runner_pb.TestStreamPayload.Event.AdvanceProcessingTime
_ADDED = runner_pb.TestStreamPayload.Event.AddElements
_ELEMENT = runner_pb.TestStreamPayload.TimestampedElement


@pytest.mark.contract("API-04")
@pytest.mark.parametrize(
    ("change", "id"),
    [
        (lambda p: p.events.append(_event()), "event-unknown"),
        (lambda p: p.events.append(_moved(new_watermark=4)), "watermark-back"),
        (lambda p: p.events.append(_moved(new_watermark=9, tag="x")), "output-unknown"),
        (lambda p: p.events.append(_moved(new_watermark=1 << 62)), "watermark-out-of-range"),
        (
            lambda p: p.events.append(_event(element_event=_ADDED(elements=[_ELEMENT(timestamp=-(1 << 62))]))),
            "time-out-of-range",
        ),
        (
            lambda p: p.events.append(_event(processing_time_event=_CLOCK(advance_duration=-1))),
            "clock-back",
        ),
        (lambda p: setattr(p.endpoint, "url", "localhost:7"), "events-and-service"),
        (lambda p: setattr(p, "coder_id", "gone"), "coder-missing"),
    ],
)
def test_invalid_teststream_is_refused(change: Callable[[Any], Any], id: str) -> None:
    proto = proto_of(lambda p: p | "Script" >> stream().advance_watermark_to(0.005))
    (transform,) = (t for t in proto.components.transforms.values() if t.unique_name == "Script")
    payload = runner_pb.TestStreamPayload.FromString(transform.spec.payload)
    change(payload)
    transform.spec.payload = payload.SerializeToString()
    with pytest.raises(InvalidPipelineError) as caught:
        translate(ParsedPipeline(proto), bounded=False)
    check_message(f"teststream-{id}", str(caught.value))


def test_unreadable_payload_is_refused() -> None:
    proto = proto_of(lambda p: p | "Script" >> stream())
    (transform,) = (t for t in proto.components.transforms.values() if t.unique_name == "Script")
    transform.spec.payload = b"\xff"
    with pytest.raises(InvalidPipelineError, match="the payload of 'Script' is malformed"):
        translate(ParsedPipeline(proto), bounded=False)
