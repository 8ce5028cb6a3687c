"""What is rejected at submission: all unsupported features at once, by name, and malformed protos."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import PickleCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.trigger import (
    AccumulationMode,
    AfterAll,
    AfterAny,
    AfterCount,
    AfterEach,
    AfterProcessingTime,
    AfterWatermark,
    Repeatedly,
)
from apache_beam.transforms.window import FixedWindows

from arcbeam.errors import InvalidPipelineError, UnsupportedPipelineError
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.golden import check_message

TRANSFORMS = common_urns.primitives


def keyed(p: Any) -> Any:
    return (
        p
        | beam.Create([("a", 1)])
        | beam.GroupByKey()
        | "Last" >> beam.Map(lambda kv, x: kv, beam.pvalue.AsList(p | "Side" >> beam.Create([1])))
    )


def proto_of(build: Callable[[Any], Any] = keyed) -> Any:
    p = beam.Pipeline()
    build(p)
    return pipeline_proto(p)


def transform(proto: Any, name: str) -> Any:
    (found,) = [t for t in proto.components.transforms.values() if t.unique_name == name]
    return found


def refused(proto: Any) -> list[tuple[str, str]]:
    with pytest.raises(UnsupportedPipelineError) as caught:
        translate(ParsedPipeline(proto))
    for item in caught.value.items:
        assert item.transform in str(caught.value)
        assert item.what in str(caught.value)
    return [(item.transform, item.what) for item in caught.value.items]


@pytest.mark.contract("API-04")
def test_everything_unsupported_is_reported_at_once() -> None:
    def build(p: Any) -> None:
        p | "Stream" >> TestStream()
        p | "Another" >> TestStream()
        p | beam.Create([1]) | "Odd" >> beam.Map(str)

    proto = proto_of(build)
    transform(proto, "Odd").spec.urn = "beam:transform:odd:v1"
    proto.requirements.extend(["beam:requirement:odd:v1", "beam:requirement:other:v1"])
    found = refused(proto)
    assert {(name, what) for name, what in found if "Stream" in what} == {
        ("Stream", "one of several TestStreams"),
        ("Another", "one of several TestStreams"),
    }
    assert set(found) >= {
        ("pipeline", "requirement beam:requirement:odd:v1"),
        ("pipeline", "requirement beam:requirement:other:v1"),
        ("Odd", "transform beam:transform:odd:v1"),
    }
    assert len(found) == 5


@pytest.mark.contract("API-04")
@pytest.mark.parametrize(
    "requirement",
    [
        common_urns.requirements.REQUIRES_STATEFUL_PROCESSING,
        common_urns.requirements.REQUIRES_BUNDLE_FINALIZATION,
        common_urns.requirements.REQUIRES_SPLITTABLE_DOFN,
        common_urns.requirements.REQUIRES_STABLE_INPUT,
        common_urns.requirements.REQUIRES_TIME_SORTED_INPUT,
        common_urns.requirements.REQUIRES_ON_WINDOW_EXPIRATION,
    ],
    ids=lambda r: r.urn,
)
def test_supported_requirements_are_accepted(requirement: Any) -> None:
    proto = proto_of()
    proto.requirements.append(requirement.urn)
    assert translate(ParsedPipeline(proto)).stages


@pytest.mark.contract("API-04")
def test_timer_in_unknown_time_domain_is_refused() -> None:
    proto = proto_of()
    last = transform(proto, "Last")
    payload = runner_pb.ParDoPayload.FromString(last.spec.payload)
    payload.timer_family_specs["odd"].time_domain = runner_pb.TimeDomain.UNSPECIFIED
    last.spec.payload = payload.SerializeToString()
    assert refused(proto) == [("Last", "timer family 'odd' in an unknown time domain")]


@pytest.mark.contract("API-04")
@pytest.mark.parametrize("domain", [runner_pb.TimeDomain.PROCESSING_TIME, None])
def test_callback_on_window_expiration_needs_event_time_family(domain: Any) -> None:
    proto = proto_of()
    last = transform(proto, "Last")
    payload = runner_pb.ParDoPayload.FromString(last.spec.payload)
    payload.on_window_expiration_timer_family_spec = "expires"
    if domain is not None:
        payload.timer_family_specs["expires"].time_domain = domain
    last.spec.payload = payload.SerializeToString()
    what = "a callback on window expiration, 'expires', that is no timer family in event time"
    assert refused(proto) == [("Last", what)]


@pytest.mark.contract("API-04")
def test_unbounded_source_is_refused() -> None:
    proto = proto_of(lambda p: p | "Read" >> beam.Create([1]))
    read = proto.components.transforms["read"]
    read.unique_name = "Endless"
    read.spec.urn = common_urns.deprecated_primitives.READ.urn
    read.spec.payload = runner_pb.ReadPayload(is_bounded=runner_pb.IsBounded.UNBOUNDED).SerializeToString()
    pcoll = next(iter(proto.components.pcollections))
    proto.components.pcollections["endless"].CopyFrom(proto.components.pcollections[pcoll])
    read.outputs["out"] = "endless"
    proto.root_transform_ids.append("read")
    assert refused(proto) == [("Endless", "an unbounded source")]


@pytest.mark.contract("API-04")
def test_unbounded_splittable_dofn_that_ends_is_accepted() -> None:
    """Whether a splittable DoFn ends is known only when it runs; this one stops at a time."""
    plan = translate(ParsedPipeline(proto_of(lambda p: p | PeriodicImpulse(0, 1, 1))))
    assert any(stage.splittable for stage in plan.stages)


def drop_coder(proto: Any) -> None:
    last = transform(proto, "Last")
    del proto.components.coders[proto.components.pcollections[last.outputs["None"]].coder_id]


def drop_pcollection(proto: Any) -> None:
    del proto.components.pcollections[transform(proto, "Last").outputs["None"]]


def drop_subtransform(proto: Any) -> None:
    inner = transform(proto, "Create").subtransforms[0]
    del proto.components.transforms[inner]


def drop_strategy(proto: Any) -> None:
    proto.components.windowing_strategies.clear()


def drop_part_of_coder(proto: Any) -> None:
    proto.components.coders["odd"].component_coder_ids.append("missing")


def drop_window_coder(proto: Any) -> None:
    for strategy in proto.components.windowing_strategies.values():
        strategy.window_coder_id = "missing"


def drop_environment(proto: Any) -> None:
    proto.components.environments.clear()


def drop_root(proto: Any) -> None:
    proto.root_transform_ids.append("missing")


def drop_everything(proto: Any) -> None:
    proto.Clear()


def garble_payload(proto: Any) -> None:
    transform(proto, "Last").spec.payload = b"\xff\xff\xff"


def drop_side_input(proto: Any) -> None:
    last = transform(proto, "Last")
    del last.inputs[next(tag for tag in last.inputs if "side" in tag)]


def drop_groups_input(proto: Any) -> None:
    transform(proto, "GroupByKey").inputs.clear()


def unkey(proto: Any) -> None:
    group = transform(proto, "GroupByKey")
    pcoll = proto.components.pcollections[next(iter(group.inputs.values()))]
    pcoll.coder_id = proto.components.pcollections[transform(proto, "Side/Map(decode)").outputs["None"]].coder_id


def swallow_itself(proto: Any) -> None:
    create = next(id for id, t in proto.components.transforms.items() if t.unique_name == "Create")
    proto.components.transforms[create].subtransforms.append(create)


def empty_pairs(proto: Any) -> None:
    for coder in proto.components.coders.values():
        if coder.spec.urn == common_urns.coders.KV.urn:
            del coder.component_coder_ids[:]


@pytest.mark.contract("API-04")
@pytest.mark.parametrize(
    "spoil",
    [
        drop_coder,
        drop_pcollection,
        drop_subtransform,
        drop_strategy,
        drop_part_of_coder,
        drop_window_coder,
        drop_environment,
        drop_root,
        drop_everything,
        garble_payload,
        drop_side_input,
        swallow_itself,
        empty_pairs,
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_malformed_pipeline_is_refused(spoil: Callable[[Any], None]) -> None:
    proto = proto_of()
    spoil(proto)
    with pytest.raises(InvalidPipelineError) as caught:
        translate(ParsedPipeline(proto))
    id = spoil.__name__.replace("_", "-")
    check_message(f"malformed-{id}", str(caught.value), REF=re.compile(r"\bref_[^']+"))


@pytest.mark.contract("API-04")
@pytest.mark.parametrize(
    ("spoil", "message"),
    [(drop_groups_input, "Unexpected number of inputs"), (unkey, "Bad coder for input")],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_graph_that_sdk_finds_invalid_is_refused(spoil: Callable[[Any], None], message: str) -> None:
    proto = proto_of()
    spoil(proto)
    with pytest.raises(InvalidPipelineError, match=message):
        translate(ParsedPipeline(proto))


class Odd:
    pass


class OddCoder(PickleCoder):
    def as_deterministic_coder(self, step_label: str, error_message: str | None = None) -> Any:
        return self

    def is_deterministic(self) -> bool:
        return False

    def to_type_hint(self) -> Any:
        return Odd


@pytest.fixture
def odd_keys() -> Iterator[None]:
    beam.coders.registry.register_coder(Odd, OddCoder)
    yield
    del beam.coders.registry._coders[Odd]
    beam.coders.registry.custom_types.remove(Odd)


@pytest.mark.contract("API-04")
@pytest.mark.usefixtures("odd_keys")
@pytest.mark.parametrize("name", ["GroupByKey", "Sum"])
def test_nondeterministic_key_coder_is_refused(name: str) -> None:
    def build(p: Any) -> None:
        pairs = p | beam.Create([1]) | beam.Map(lambda n: (Odd(), n)).with_output_types(tuple[Odd, int])
        pairs | (beam.GroupByKey() if name == "GroupByKey" else name >> beam.CombinePerKey(sum))

    with pytest.raises(InvalidPipelineError) as caught:
        translate(ParsedPipeline(proto_of(build)))
    check_message(f"key-coder-{name.lower()}", str(caught.value))


@pytest.mark.contract("API-04")
@pytest.mark.parametrize(
    ("trigger", "id"),
    [
        (AfterProcessingTime(-5), "negative-delay"),
        (Repeatedly(AfterAny(AfterCount(2), AfterProcessingTime(-1))), "nested-negative-delay"),
        (AfterWatermark(late=AfterAll()), "late-without-triggers"),
        (AfterEach(), "without-triggers"),
    ],
)
def test_invalid_trigger_is_refused(trigger: Any, id: str) -> None:
    windowing = beam.WindowInto(
        FixedWindows(10), trigger=trigger, accumulation_mode=AccumulationMode.DISCARDING, allowed_lateness=5
    )
    p = beam.Pipeline(options=PipelineOptions(["--allow_unsafe_triggers"]))
    p | beam.Create([("a", 1)]) | "Windows" >> windowing | beam.GroupByKey()
    with pytest.raises(InvalidPipelineError) as caught:
        translate(ParsedPipeline(pipeline_proto(p)))
    check_message(f"trigger-{id}", str(caught.value))


def test_valid_pipeline_is_not_changed() -> None:
    proto = proto_of()
    before = proto.SerializeToString(deterministic=True)
    translate(ParsedPipeline(proto))
    assert proto.SerializeToString(deterministic=True) == before
