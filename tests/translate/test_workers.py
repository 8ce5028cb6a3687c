"""Pipelines of other SDKs: their strings, TestStreams, states and side inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.testing import test_stream
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, CombiningValueStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import FixedWindows

from arcbeam.errors import UnsupportedPipelineError
from arcbeam.model.observers import ANNOTATION
from arcbeam.model.plan import Plan
from arcbeam.model.script import AddElements
from arcbeam.model.urns import LATE_ANNOTATION, PUBLISH_ANNOTATION, READ_URN, ReadSpec
from arcbeam.options import ArcbeamOptions
from arcbeam.runner.job import default_shards
from arcbeam.store.manifest.values import differences
from arcbeam.streaming.physicalplan import shape_of
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto, plan_of
from tests.fnapi.stage.inworkers import external
from tests.harness.batch.splittables import Range


def of_another_sdk(build: Callable[[Any], None], edit: Callable[[Any], None] = lambda proto: None) -> Plan:
    """Translate a pipeline as if another SDK than Python's had made it."""
    p = beam.Pipeline()
    build(p)
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external("localhost:1"))
        environment.capabilities[:] = [each for each in environment.capabilities if each.startswith("beam:coder:")]
    edit(proto)
    return translate(ParsedPipeline(proto), bounded=False)


def _grouped(p: Any) -> None:
    pairs = p | beam.Create([("a", 1)]) | beam.Map(lambda pair: pair).with_output_types(tuple[str, int])
    _ = pairs | beam.GroupByKey() | "After" >> beam.Map(len)


def test_strings_need_not_be_utf8() -> None:
    plan = of_another_sdk(_grouped)
    (remote,) = (stage.remote for stage in plan.stages if stage.name.endswith("After"))
    assert remote is not None
    coders = runner_pb.Components.FromString(remote.components).coders
    key_of_theirs, key_of_ours = (
        coders[coders[coders[id].component_coder_ids[0]].component_coder_ids[0]].spec.urn
        for id in (remote.source.coder, remote.source.ours)
    )
    assert (key_of_theirs, key_of_ours) == ("beam:coder:string_utf8:v1", "beam:coder:bytes:v1")


@pytest.mark.parametrize("capabilities", ["all", "without nullables", "without nullables in one of two"])
def test_only_what_some_environment_does_not_know_is_prefixed(capabilities: str) -> None:
    """Two SDKs disagree on the bytes of a prefixed string, so no known coder may be prefixed."""

    def nullable(proto: Any) -> None:
        coders = proto.components.coders
        coders["maybe"].spec.urn = "beam:coder:nullable:v1"
        coders["maybe"].component_coder_ids[:] = ["text"]
        coders["text"].spec.urn = "beam:coder:string_utf8:v1"
        for coder in coders.values():
            if coder.spec.urn == "beam:coder:kv:v1":
                coder.component_coder_ids[0] = "maybe"
        (environment,) = proto.components.environments.values()
        if capabilities == "without nullables in one of two":
            proto.components.environments["other"].CopyFrom(environment)
            environment = proto.components.environments["other"]
            last = next(t for t in proto.components.transforms.values() if t.unique_name == "After")
            last.environment_id = "other"
        if capabilities != "all":
            environment.capabilities.remove("beam:coder:nullable:v1")

    for stage in of_another_sdk(_grouped, nullable).stages:
        if stage.remote is None or not stage.name.endswith("After"):
            continue
        coders = runner_pb.Components.FromString(stage.remote.components).coders
        pair = coders[coders[stage.remote.source.coder].component_coder_ids[0]]
        key, values = (coders[id] for id in pair.component_coder_ids)
        prefixed = "beam:coder:length_prefix:v1"
        assert (key.spec.urn == prefixed) is (capabilities != "all"), key
        if key.spec.urn == prefixed:
            (within,) = key.component_coder_ids
            assert coders[coders[within].component_coder_ids[0]].spec.urn == "beam:coder:string_utf8:v1", "once"
        (value,) = values.component_coder_ids
        assert coders[value].spec.urn == "beam:coder:varint:v1"
        break
    else:
        raise AssertionError("no such stage")


class _Later(beam.DoFn):
    LATER = TimerSpec("later", TimeDomain.WATERMARK)

    def process(self, pair: Any, later: Any = beam.DoFn.TimerParam(LATER)) -> Any:
        yield pair

    @on_timer(LATER)
    def fired(self) -> Any:
        yield "late", 1


def test_worker_has_its_timers_and_inner_collections() -> None:
    def build(p: Any) -> None:
        ranges = p | beam.Create([3], reshuffle=False) | "Split" >> beam.ParDo(Range()).with_output_types(int)
        pairs = ranges | "Pair" >> beam.Map(lambda n: ("a", n)).with_output_types(tuple[str, int])
        later = pairs | "Later" >> beam.ParDo(_Later()).with_output_types(tuple[str, int])
        _ = later | "Text" >> beam.Map(str) | "End" >> beam.Map(len)

    timers: set[tuple[str, str]] = set()
    for stage in of_another_sdk(build).stages:
        assert stage.remote is not None
        timers.update(stage.remote.timers)
        part = runner_pb.Components.FromString(stage.remote.components)
        leaving = {port.pcoll for port in (stage.remote.source, *stage.remote.sinks.values())}
        # What pairs elements with restrictions only prepares them.
        elements = {
            pcoll
            for transform in part.transforms.values()
            if transform.spec.urn != common_urns.sdf_components.PAIR_WITH_RESTRICTION.urn
            for pcoll in transform.outputs.values()
        }
        assert {port.pcoll for port in stage.remote.inner} == elements - leaving
    assert timers == {("Later", "ts-later")}


def _scripted_twice(p: Any) -> None:
    script = p | "Script" >> test_stream.TestStream().add_elements([1])
    _ = script | "Here" >> beam.Map(str)
    _ = script | "There" >> beam.Map(str)


def _scripted(p: Any) -> None:
    _ = p | "Script" >> test_stream.TestStream().add_elements([1]) | beam.Map(str)


def test_single_output_of_script_needs_no_tag() -> None:
    def renamed(proto: Any) -> None:
        for transform in proto.components.transforms.values():
            if transform.spec.urn == "beam:transform:teststream:v1":
                pcoll = transform.outputs.pop("None")
                transform.outputs["i0"] = pcoll
                payload = runner_pb.TestStreamPayload.FromString(transform.spec.payload)
                for event in payload.events:
                    event.element_event.tag = ""
                transform.spec.payload = payload.SerializeToString()

    plan = of_another_sdk(_scripted, renamed)
    assert plan.script is not None
    assert [type(event) for event in plan.script.events] == [AddElements]
    assert plan.script.outputs == {"i0": "Script"}


def _python(proto: Any) -> None:
    for environment in proto.components.environments.values():
        environment.CopyFrom(external("localhost:1"))


def test_python_worker_decodes_elements_of_script() -> None:
    plan = of_another_sdk(_scripted, _python)
    assert plan.script is not None
    assert plan.script.real_clock
    (stage,) = (stage for stage in plan.stages if stage.scripted)
    assert stage.remote is not None
    part = runner_pb.Components.FromString(stage.remote.components)
    coder = part.coders[part.pcollections[stage.remote.source.pcoll].coder_id]
    assert coder.spec.urn == "beam:coder:length_prefix:v1"
    assert "Script/Decode None" in {transform.name for transform in stage.transforms}


@pytest.mark.parametrize(
    ("declared", "prefixed", "nested"),
    [("beam:coder:varint:v1", False, True), ("beam:coder:row:v1", False, False), ("of:the:sdk", True, True)],
)
def test_length_of_scripted_element_is_read_only_if_it_is_written(declared: str, prefixed: bool, nested: bool) -> None:
    """Go puts a length before an element of its own types, and names the coder of what follows."""

    def coded(proto: Any) -> None:
        for transform in proto.components.transforms.values():
            if transform.spec.urn == "beam:transform:teststream:v1":
                payload = runner_pb.TestStreamPayload.FromString(transform.spec.payload)
                proto.components.coders[payload.coder_id].spec.urn = declared
                for id in transform.outputs.values() if prefixed else ():
                    proto.components.pcollections[id].coder_id = "prefixed"
                    proto.components.coders["prefixed"].spec.urn = "beam:coder:length_prefix:v1"
                    proto.components.coders["prefixed"].component_coder_ids[:] = [payload.coder_id]

    plan = of_another_sdk(_scripted, coded)
    (stage,) = (stage for stage in plan.stages if stage.scripted)
    specs = [each.spec for each in runner_pb.Components.FromString(stage.payload).transforms.values()]
    (spec,) = (ReadSpec.from_bytes(each.payload) for each in specs if each.urn == READ_URN)
    assert (spec.mode, spec.nested) == ("script", nested)


def test_clock_of_script_begins_with_the_job() -> None:
    script = of_another_sdk(_scripted).script
    assert script is not None
    assert script.real_clock


def test_script_beside_several_sdks_is_refused() -> None:
    def mixed(proto: Any) -> None:
        proto.components.environments["python"].CopyFrom(external("localhost:1"))
        leaves = [t for t in proto.components.transforms.values() if t.environment_id and not t.subtransforms]
        leaves[-1].environment_id = "python"

    with pytest.raises(UnsupportedPipelineError, match="a TestStream beside workers of several SDKs"):
        of_another_sdk(_scripted_twice, mixed)


def test_unknown_merging_windows_are_refused() -> None:
    def of_the_moon(proto: Any) -> None:
        for strategy in proto.components.windowing_strategies.values():
            strategy.window_fn.urn = "beam:window_fn:moon:v1"
            strategy.merge_status = runner_pb.MergeStatus.NEEDS_MERGE

    with pytest.raises(UnsupportedPipelineError, match="merging windows of 'beam:window_fn:moon:v1' in an SDK worker"):
        of_another_sdk(_grouped, of_the_moon)


def _java(proto: Any) -> None:
    for environment in proto.components.environments.values():
        environment.capabilities.append("beam:version:sdk_base:apache/beam_java17_sdk:2.73.0")


def test_java_worker_merges_windows() -> None:
    def merging(proto: Any) -> None:
        _java(proto)
        for strategy in proto.components.windowing_strategies.values():
            strategy.window_fn.urn = "beam:window_fn:serialized_java:v1"
            strategy.merge_status = runner_pb.MergeStatus.NEEDS_MERGE

    assert of_another_sdk(_grouped, merging).stages


def test_unknown_window_mapping_is_refused() -> None:
    def build(p: Any) -> None:
        numbers = p | beam.Create([1])
        _ = numbers | "Look" >> beam.Map(lambda x, y: x, beam.pvalue.AsIter(numbers))

    def mapped(urn: str) -> Callable[[Any], None]:
        def edit(proto: Any) -> None:
            for transform in proto.components.transforms.values():
                if transform.unique_name == "Look" and not transform.subtransforms:
                    payload = runner_pb.ParDoPayload.FromString(transform.spec.payload)
                    for side in payload.side_inputs.values():
                        side.window_mapping_fn.urn = urn
                    transform.spec.payload = payload.SerializeToString()

        return edit

    for known in ("beam:go:windowmapping:fixed:v1", "beam:windowmappingfn:javasdk:0.1"):
        assert of_another_sdk(build, mapped(known)).stages
    with pytest.raises(UnsupportedPipelineError, match="the window mapping 'beam:moon:v1'"):
        of_another_sdk(build, mapped("beam:moon:v1"))


class _Keeping(beam.DoFn):
    def process(self, pair: Any, state: Any = beam.DoFn.StateParam(BagStateSpec("kept", VarIntCoder()))) -> None: ...


def _with_state(p: Any) -> None:
    _ = p | beam.Create([("a", 1)]) | "Keep" >> beam.ParDo(_Keeping())


def _with_side(p: Any) -> None:
    numbers = p | beam.Create([1])
    _ = p | "Main" >> beam.Create([2]) | "Look" >> beam.Map(lambda x, y: x, beam.pvalue.AsIter(numbers))


def _in_windows(p: Any) -> None:
    pairs = p | beam.Create([("a", 1)]) | beam.Map(lambda pair: pair).with_output_types(tuple[str, int])
    _ = pairs | beam.WindowInto(FixedWindows(10)) | beam.GroupByKey() | "After" >> beam.Map(len)


@pytest.mark.contract("API-04")
@pytest.mark.parametrize(
    ("build", "what"), [(_with_state, "state or timers"), (_with_side, "the side input 'python_side_input0'")]
)
def test_windows_of_java_are_refused_where_their_ends_are_unknown(build: Callable[[Any], None], what: str) -> None:
    def in_windows_of_its_own(proto: Any) -> None:
        proto.components.coders["own"].spec.urn = "beam:coders:javasdk:0.1"
        for strategy in proto.components.windowing_strategies.values():
            strategy.window_coder_id = "own"

    def in_java(proto: Any) -> None:
        in_windows_of_its_own(proto)
        _java(proto)

    assert of_another_sdk(_grouped, in_java).stages
    assert of_another_sdk(_in_windows, in_windows_of_its_own).stages
    assert of_another_sdk(build, _java).stages
    assert of_another_sdk(build, in_windows_of_its_own).stages
    with pytest.raises(UnsupportedPipelineError, match=f"{what} with windows of a type of its own in a Java worker"):
        of_another_sdk(build, in_java)


@pytest.mark.contract("API-04")
@pytest.mark.parametrize(
    ("annotation", "what"),
    [
        (ANNOTATION, "a transform that observes watermarks"),
        (LATE_ANNOTATION, "a collection of late elements"),
        (PUBLISH_ANNOTATION, "a publisher"),
    ],
)
def test_what_only_the_task_can_do_is_refused_in_workers(annotation: str, what: str) -> None:
    def annotated(proto: Any) -> None:
        for environment in proto.components.environments.values():
            environment.CopyFrom(external("localhost:1"))
            del environment.capabilities[:]  # Python's become embedded
        (transform,) = (t for t in proto.components.transforms.values() if t.unique_name == "Some")
        transform.annotations[annotation] = b""

    with pytest.raises(UnsupportedPipelineError, match=f"{what} in an SDK worker"):
        of_another_sdk(lambda p: p | beam.Create([1]) | "Some" >> beam.Map(lambda x: x), annotated)


def _endless(p: Any) -> None:
    _ = p | PeriodicImpulse() | beam.Map(str)


@pytest.mark.parametrize(
    ("build", "arguments", "shards"), [(_grouped, [], 2), (_grouped, ["--streaming"], 16), (_endless, [], 16)]
)
def test_bounded_pipeline_has_a_shard_for_each_task(
    build: Callable[[Any], None], arguments: list[str], shards: int
) -> None:
    p = beam.Pipeline()
    build(p)
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external("localhost:1"))
    plan = plan_of(ParsedPipeline(proto), PipelineOptions(arguments).view_as(ArcbeamOptions))
    assert not plan.bounded
    assert default_shards(plan, 2) == shards
    assert default_shards(plan, 32) == 32


class _Counts(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    def process(self, element: Any, count: Any = beam.DoFn.StateParam(CombiningValueStateSpec("count", sum))) -> None:
        count.add(1)


@pytest.mark.contract("STORE-05")
@pytest.mark.parametrize(
    ("key", "counts", "refused"),
    [(str, False, ()), (object, False, ("GroupByKey",)), (str, True, ("Counts",)), (object, True, ("Counts",))],
)
def test_stage_that_moves_to_workers_keeps_its_state_or_is_refused(
    key: type, counts: bool, refused: tuple[str, ...]
) -> None:
    def build(p: Any) -> None:
        pairs = p | beam.Create([("a", 1)]) | beam.Map(lambda pair: pair).with_output_types(tuple[key, int])
        _ = pairs | ("Counts" >> beam.ParDo(_Counts()) if counts else beam.GroupByKey()) | beam.Map(print)

    here, there = shape_of(_embedded(build), 2), shape_of(of_python_workers(build), 2)
    moved, back = differences(here, there), differences(there, here)
    assert not differences(there, there)
    assert moved == [f"stage '{name}' {to_workers}" for name in refused]
    assert back == [f"stage '{name}' {from_workers}" for name in refused]


to_workers = "has state of Spark's Python workers, which SDK workers cannot read: omit --environment_type"
from_workers = (
    "has state of SDK workers, which Spark's Python workers cannot read: set --environment_type to LOOPBACK, "
    "EXTERNAL, PROCESS or DOCKER"
)


@pytest.mark.contract("STORE-05")
def test_restrictions_of_source_do_not_move_to_workers() -> None:
    moved = differences(*(shape_of(make(_endless), 2) for make in (_embedded, of_python_workers)))
    assert moved == [f"stage 'PeriodicImpulse/GenSequence/Process' {to_workers}"]


def _embedded(build: Callable[[Any], None]) -> Plan:
    p = beam.Pipeline()
    build(p)
    return translate(ParsedPipeline(pipeline_proto(p)), bounded=False)


def of_python_workers(build: Callable[[Any], None]) -> Plan:
    """Translate a pipeline whose transforms run in workers of the Python SDK."""
    p = beam.Pipeline(options=PipelineOptions(["--allow_non_deterministic_key_coders"]))
    build(p)
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.urn, environment.payload = external("localhost:1").urn, external("localhost:1").payload
    return translate(ParsedPipeline(proto), bounded=False)
