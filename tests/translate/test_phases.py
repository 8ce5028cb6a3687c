"""How a pipeline becomes stages and channels: fusion, exchanges, side inputs, splittable DoFns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from random import Random
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.pvalue import AsDict, AsIter, AsList, AsMultiMap, AsSingleton
from apache_beam.runners.portability.fn_api_runner import translations
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer

from arcbeam.model.plan import Routing
from arcbeam.translate import ParsedPipeline, phases, translate
from arcbeam.translate.parsing.parsedpipeline import KNOWN_URNS
from arcbeam.translate.validate import RUNNABLE
from tests.harness.drive import Collect, Driven
from tests.translate.plans import channels, combine, names, plan_of, proto_of, source, stage_of, winding

# Fusion.


@pytest.mark.contract("PLAN-01")
def test_producers_consumers_and_siblings_share_a_stage() -> None:
    def build(p: Any) -> None:
        one = source(p) | "one" >> beam.Map(str)
        one | "left" >> beam.Map(str)
        one | "right" >> beam.Map(str)

    plan = plan_of(build)
    (stage,) = plan.stages
    assert names(stage) == ["one", "left", "right"]
    assert stage.source is None
    assert not plan.channels


@pytest.mark.contract("PLAN-01")
def test_siblings_after_an_exchange_share_a_stage() -> None:
    def build(p: Any) -> None:
        moved = source(p) | beam.Reshuffle()
        moved | "left" >> beam.Map(str)
        moved | "right" >> beam.Map(str)

    plan = plan_of(build)
    assert [names(stage) for stage in plan.stages] == [[], ["left", "right"]]
    (channel,) = plan.channels
    assert (channel.routing, channel.producers, channel.consumers) == (Routing.SPREAD, ("s0",), ("s1",))


@pytest.mark.contract("PLAN-05")
def test_siblings_are_in_the_order_of_the_pipeline() -> None:
    def build(p: Any) -> None:
        one = source(p) | "one" >> beam.Map(str)
        for name in ("zebra", "ape", "newt"):
            one | name >> beam.Map(str)

    (stage,) = plan_of(build).stages
    assert names(stage) == ["one", "zebra", "ape", "newt"]


def waits_for(plan: Any) -> dict[str, set[str]]:
    """Return, for each stage, the stages that must run before it."""
    return {
        stage.id: {
            producer
            for channel in [*([] if stage.source is None else [stage.source]), *(s.channel for s in stage.side_inputs)]
            for producer in plan.channels[channel].producers
        }
        for stage in plan.stages
    }


@pytest.mark.contract("PLAN-01")
def test_mutual_side_inputs_are_in_separate_stages() -> None:
    def build(p: Any) -> None:
        a, b = source(p, "Create a"), source(p, "Create b")
        a | "a with b" >> beam.Map(lambda x, side: x, AsIter(b))
        b | "b with a" >> beam.Map(lambda x, side: x, AsIter(a))

    plan = plan_of(build)
    assert sorted(map(names, plan.stages)) == [[], ["a with b"], ["b with a"]]
    TopologicalSorter(waits_for(plan)).prepare()


@pytest.mark.contract("PLAN-01")
@pytest.mark.parametrize("seed", range(20))
def test_no_stage_waits_for_itself(seed: int) -> None:
    random = Random(seed)

    def build(p: Any) -> None:
        made = [source(p, "first"), source(p, "second")]
        for n in range(12):
            main, *sides = random.sample(made, min(len(made), random.choice([1, 2, 2, 3])))
            if random.random() < 0.2:
                main = main | f"key {n}" >> beam.Map(lambda x: (x, x)) | f"group {n}" >> beam.GroupByKey()
            made.append(main | f"use {n}" >> beam.Map(lambda x, *_: x, *map(AsIter, sides)))

    plan = plan_of(build)
    TopologicalSorter(waits_for(plan)).prepare()
    found = [name for stage in plan.stages for name in names(stage)]
    assert {f"use {n}" for n in range(12)} <= set(found)
    assert len(found) == len(set(found))


@pytest.mark.contract("PLAN-05")
def test_without_fusion_every_transform_is_a_stage() -> None:
    def build(p: Any) -> None:
        one = source(p) | "one" >> beam.Map(lambda kv: kv)
        one | "left" >> beam.Map(str)
        one | beam.GroupByKey() | "right" >> beam.Map(str)

    plan = plan_of(build, fusion=False)
    assert all(len(stage.transforms) <= 1 for stage in plan.stages)
    assert {name for stage in plan.stages for name in names(stage)} == {"one", "left", "right"}
    assert stage_of(plan, "one").sinks == stage_of(plan_of(build, fusion=False), "one").sinks


@pytest.mark.contract("PLAN-01")
def test_consumers_in_several_stages_have_separate_channels() -> None:
    class Stateful(beam.DoFn):
        def process(self, element: Any, state: Any = beam.DoFn.StateParam(BagStateSpec("s", VarIntCoder()))) -> Any:
            yield element

    def build(p: Any) -> None:
        one = source(p) | "one" >> beam.Map(lambda kv: kv).with_output_types(tuple[str, int])
        one | "state" >> beam.ParDo(Stateful())
        one | "group" >> beam.GroupByKey() | "grouped" >> beam.Map(str)
        one | "move" >> beam.Reshuffle() | "moved" >> beam.Map(str)
        source(p, "Create main") | "side" >> beam.Map(lambda kv, d: kv, AsDict(one))

    plan = plan_of(build)
    assert sorted(c.routing for c in plan.channels) == sorted(
        [Routing.KEYED, Routing.GROUPED, Routing.SPREAD, Routing.SIDE]
    )
    assert len(stage_of(plan, "one").sinks) == 4
    state = stage_of(plan, "state")
    assert state.stateful
    assert state.states == (("state", "s"),)
    assert plan.channels[state.source or 0].routing is Routing.KEYED


@pytest.mark.contract("PLAN-01")
def test_different_environment_starts_a_stage() -> None:
    proto = proto_of(lambda p: source(p) | "one" >> beam.Map(str) | "two" >> beam.Map(str))
    other = runner_pb.Environment(urn=python_urns.EMBEDDED_PYTHON, payload=b"", resource_hints={"other": b"1"})
    proto.components.environments["other"].CopyFrom(other)
    for transform in proto.components.transforms.values():
        if transform.unique_name == "two":
            transform.environment_id = "other"
    plan = translate(ParsedPipeline(proto))
    assert stage_of(plan, "one") is not stage_of(plan, "two")


# Splittable DoFns.


class Ranges(beam.RestrictionProvider):
    def initial_restriction(self, element: Any) -> OffsetRange:
        return OffsetRange(0, 4)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def split(self, element: Any, restriction: OffsetRange) -> Iterator[OffsetRange]:
        yield from restriction.split(2)

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return restriction.size()


class Positions(beam.DoFn):
    def process(self, element: Any, tracker: Any = beam.DoFn.RestrictionParam(Ranges())) -> Iterator[int]:
        position = tracker.current_restriction().start
        while tracker.try_claim(position):
            yield position
            position += 1


@pytest.mark.contract("PLAN-03")
@pytest.mark.parametrize("drain", [False, True])
def test_splittable_dofn_has_split_exchange_process(drain: bool) -> None:
    plan = plan_of(lambda p: p | beam.Create([1], reshuffle=False) | "read" >> beam.ParDo(Positions()), drain=drain)
    parts = common_urns.sdf_components
    split, process = plan.stages
    urns = [t.urn for t in split.transforms]
    assert urns[-2:] == [
        parts.PAIR_WITH_RESTRICTION.urn,
        parts.SPLIT_AND_SIZE_RESTRICTIONS.urn,
    ]
    truncated = [parts.TRUNCATE_SIZED_RESTRICTION.urn] if drain else []
    assert [t.urn for t in process.transforms] == [*truncated, parts.PROCESS_SIZED_ELEMENTS_AND_RESTRICTIONS.urn]
    assert process.splittable
    assert not split.splittable
    (channel,) = plan.channels
    assert (channel.routing, channel.producers, channel.consumers) == (Routing.SPREAD, (split.id,), (process.id,))


# Exchanges.


@pytest.mark.contract("PLAN-04")
@pytest.mark.parametrize(
    "urn",
    [
        common_urns.composites.RESHUFFLE.urn,
        common_urns.composites.REDISTRIBUTE_ARBITRARILY.urn,
        common_urns.composites.REDISTRIBUTE_BY_KEY.urn,
    ],
)
def test_redistribution_is_one_exchange_without_keys(urn: str) -> None:
    proto = proto_of(lambda p: source(p) | "move" >> beam.Reshuffle() | "next" >> beam.Map(str))
    for transform in proto.components.transforms.values():
        if transform.unique_name == "move":
            transform.spec.urn = urn
    plan = translate(ParsedPipeline(proto))
    assert [c.routing for c in plan.channels] == [Routing.SPREAD]
    assert [names(stage) for stage in plan.stages] == [[], ["next"]]


# Side inputs.


@pytest.mark.contract("BAT-02")
@pytest.mark.parametrize(
    ("view", "routing"),
    [
        (AsList, Routing.SIDE),
        (AsIter, Routing.SIDE),
        (AsSingleton, Routing.SIDE),
        (AsDict, Routing.SIDE),
        (AsMultiMap, Routing.SIDE_KEYED),
    ],
)
def test_side_input_has_its_own_channel(view: Any, routing: Routing) -> None:
    plan = plan_of(lambda p: source(p) | "use" >> beam.Map(lambda kv, x: kv, view(source(p, "Create side"))))
    ((channel, (use,)),) = [(channel, stage_of(plan, "use").side_inputs) for channel in channels(plan, routing)]
    assert (use.transform, use.channel) == ("use", channel.index)
    assert not channel.consumers


@pytest.mark.contract("BAT-02", "PLAN-01")
def test_side_input_is_complete_before_its_reader() -> None:
    def build(p: Any) -> None:
        one = source(p)
        first = one | "first" >> beam.Map(lambda kv: kv)
        second = one | "second" >> beam.Map(lambda kv, x: kv, AsList(first))
        one | "third" >> beam.Map(lambda kv, x, y: kv, AsList(second), AsList(first))

    plan = plan_of(build)
    ran = set()
    for stage in plan.stages:
        for use in stage.side_inputs:
            assert set(plan.channels[use.channel].producers) <= ran
        ran.add(stage.id)
    users = [stage_of(plan, name) for name in ("second", "third")]
    assert [len(user.side_inputs) for user in users] == [1, 2]
    assert len({stage_of(plan, name).id for name in ("first", "second", "third")}) == 3


# Timers of a stage.


class Reminders(beam.DoFn):
    """Declares three timer families."""

    FIRST = TimerSpec("first", TimeDomain.WATERMARK)
    MIDDLE = TimerSpec("middle", TimeDomain.WATERMARK)
    LAST = TimerSpec("last", TimeDomain.REAL_TIME)

    def process(
        self,
        element: Any,
        first: Any = beam.DoFn.TimerParam(FIRST),
        middle: Any = beam.DoFn.TimerParam(MIDDLE),
        last: Any = beam.DoFn.TimerParam(LAST),
    ) -> None: ...

    @on_timer(FIRST)
    def first(self) -> None: ...

    @on_timer(MIDDLE)
    def middle(self) -> None: ...

    @on_timer(LAST)
    def last(self) -> None: ...


@pytest.mark.parametrize("expiration", ["", "ts-first", "ts-middle"])
def test_named_timer_family_is_the_callback_on_window_expiration(expiration: str) -> None:
    proto = proto_of(lambda p: source(p) | "Remind" >> beam.ParDo(Reminders()))
    (transform,) = [each for each in proto.components.transforms.values() if each.unique_name == "Remind"]
    payload = runner_pb.ParDoPayload.FromString(transform.spec.payload)
    payload.on_window_expiration_timer_family_spec = expiration
    transform.spec.payload = payload.SerializeToString()
    timers = stage_of(translate(ParsedPipeline(proto), name="test"), "Remind").timers
    assert {timer.family: timer.follows for timer in timers} == {
        "ts-first": "event time",
        "ts-middle": "event time",
        "ts-last": "processing time",
    } | ({expiration: "window expiration"} if expiration else {})


# One plan for one pipeline.


@pytest.mark.contract("PLAN-05", "PLAN-06")
@pytest.mark.parametrize("fusion", [True, False])
def test_same_pipeline_has_same_plan(fusion: bool) -> None:
    proto = proto_of(winding)
    # The SDK hashes its stages by memory address.
    plans = [translate(ParsedPipeline(proto), fusion=fusion) for _ in range(5)]
    assert all(plan == plans[0] for plan in plans)


# The SDK's internals that the phases use.


class TestInternals:
    """If one of these fails after a change in Beam, `translate.phases` must be adapted."""

    def test_phases_take_stages_and_a_context(self) -> None:
        for name in (
            "annotate_downstream_side_inputs",
            "annotate_stateful_dofns_as_roots",
            "pack_combiners",
            "lift_combiners",
            "expand_sdf",
            "expand_gbk",
            "sink_flattens",
            "greedily_fuse",
            "read_to_impulse",
            "impulse_to_input",
            "sort_stages",
            "add_impulse_to_dangling_transforms",
        ):
            parameters = list(inspect.signature(getattr(translations, name)).parameters)
            assert parameters[0] == "stages", name
            assert len(parameters) >= 2, name

    def test_a_stage(self) -> None:
        stage = translations.Stage(
            "name", [runner_pb.PTransform()], downstream_side_inputs=frozenset(), must_follow=frozenset()
        )
        for attribute in ("name", "transforms", "downstream_side_inputs", "must_follow", "forced_root"):
            assert hasattr(stage, attribute), attribute

    def test_the_context(self) -> None:
        parameters = list(inspect.signature(translations.TransformContext.__init__).parameters)
        assert parameters[1:3] == ["components", "known_runner_urns"]
        assert "is_drain" in parameters
        for method in ("length_prefix_pcoll_coders", "add_data_channel_coder"):
            assert callable(getattr(translations.TransformContext, method)), method

    def test_buffers_are_named_by_kind(self) -> None:
        assert translations.create_buffer_id("x") == b"materialize:x"
        assert translations.create_buffer_id("x", kind="group") == b"group:x"
        assert translations.IMPULSE_BUFFER == b"impulse"

    def test_lifting_asks_the_trigger_of_the_input(self) -> None:
        def urns(fn: runner_pb.Trigger) -> set[str]:
            proto = proto_of(combine)
            for strategy in proto.components.windowing_strategies.values():
                strategy.trigger.CopyFrom(fn)
            context = phases._EmbeddedContext(proto.components, frozenset(KNOWN_URNS))
            stages = translations.leaf_transform_stages(proto.root_transform_ids, proto.components)
            return {t.spec.urn for s in translations.lift_combiners(list(stages), context) for t in s.transforms}

        precombine = common_urns.combine_components.COMBINE_PER_KEY_PRECOMBINE.urn
        assert precombine in urns(phases._LIFTED)
        assert precombine not in urns(phases._NOT_LIFTED)

    def test_harness_runs_known_urns(self) -> None:
        parts, combining = common_urns.sdf_components, common_urns.combine_components
        for urn in (
            common_urns.primitives.PAR_DO.urn,
            common_urns.primitives.GROUP_BY_KEY.urn,
            common_urns.primitives.FLATTEN.urn,
            common_urns.primitives.IMPULSE.urn,
            common_urns.primitives.ASSIGN_WINDOWS.urn,
            common_urns.composites.COMBINE_PER_KEY.urn,
            combining.COMBINE_GROUPED_VALUES.urn,
            combining.COMBINE_PER_KEY_MERGE_ACCUMULATORS.urn,
            combining.COMBINE_PER_KEY_EXTRACT_OUTPUTS.urn,
            parts.PROCESS_SIZED_ELEMENTS_AND_RESTRICTIONS.urn,
        ):
            assert urn in RUNNABLE, urn

    def test_pcollection_names_have_known_form(self) -> None:
        proto = proto_of(lambda p: source(p) | "One" >> beam.Map(str).with_output_types(str))
        assert "3One.None" in {pcoll.unique_name for pcoll in proto.components.pcollections.values()}


def chain(length: int) -> Callable[[Any], Any]:
    def build(p: Any) -> Any:
        made = p | beam.Create([0, 1])
        for n in range(length):
            made = made | f"Map{n}" >> beam.Map(lambda x: x + 1)
        return made

    return build


@pytest.mark.contract("PLAN-01")
class TestLongChains:
    def test_are_cut(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(phases, "_CHAIN_TRANSFORMS_MAX", 10)
        plan = plan_of(chain(45))
        assert max(len(stage.transforms) for stage in plan.stages) <= 10
        assert len(plan.stages) == 6
        assert [t for stage in plan.stages for t in names(stage)] == [f"Map{n}" for n in range(45)]
        assert {channel.routing for channel in plan.channels} == {Routing.SPREAD, Routing.FORWARD}

    def test_impulse_is_part_of_the_length(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(phases, "_CHAIN_TRANSFORMS_MAX", 10)

        def build(p: Any) -> None:
            made = p | beam.Impulse()
            for n in range(12):
                made = made | f"Map{n}" >> beam.Map(lambda x: x)

        assert [len(stage.transforms) for stage in plan_of(build).stages] == [9, 3]

    def test_elements_stay_in_their_place_in_a_streaming_job_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(phases, "_CHAIN_TRANSFORMS_MAX", 10)
        plan = plan_of(chain(45), bounded=False)
        assert {channel.routing for channel in plan.channels} == {Routing.SPREAD, Routing.FORWARD}

    def test_others_are_not(self) -> None:
        assert len(plan_of(chain(90)).stages) == len(plan_of(chain(3)).stages)

    def test_wide_stages_are_not_cut(self) -> None:
        def build(p: Any) -> None:
            made = p | beam.Create([0, 1], reshuffle=False)
            _ = [made | f"Map{n}" >> beam.Map(lambda x: x + 1) for n in range(120)] | beam.Flatten()

        assert max(len(stage.transforms) for stage in plan_of(build).stages) > 120

    def test_ways_of_different_length_meet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(phases, "_CHAIN_TRANSFORMS_MAX", 10)

        def build(p: Any) -> None:
            made = p | beam.Create([0, 1], reshuffle=False)
            long = made
            for n in range(25):
                long = long | f"Long{n}" >> beam.Map(lambda x: x + 1)
            _ = (made, long) | beam.Flatten() | "After" >> beam.Map(lambda x: x) | Collect()

        with Driven() as p:
            build(p)
        assert sorted(p.values()) == [0, 1, 25, 26]

    def test_run(self) -> None:
        with Driven() as p:
            chain(300)(p) | Collect()
        assert sorted(p.values()) == [300, 301]
