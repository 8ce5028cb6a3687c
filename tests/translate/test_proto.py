"""The one path from a pipeline to its plan: coders and types are those that the SDK's runners set."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms import userstate
from apache_beam.transforms.timeutil import TimeDomain

from arcbeam.errors import InvalidPipelineError
from arcbeam.options import ArcbeamOptions
from arcbeam.translate import ParsedPipeline
from arcbeam.translate.proto import pipeline_proto, plan_of


def differently_typed(*arguments: str) -> beam.Pipeline:
    """Return two inputs whose values have different types: their grouping has a union type."""
    p = beam.Pipeline(options=PipelineOptions(list(arguments)))
    start = p | beam.Create([1])
    counts, names = start | "Counts" >> beam.Map(lambda x: ("a", x)), start | "Names" >> beam.Map(lambda x: ("a", "b"))
    {"counts": counts, "names": names} | beam.CoGroupByKey()
    return p


def ours(*arguments: str) -> ArcbeamOptions:
    return PipelineOptions(list(arguments)).view_as(ArcbeamOptions)


def test_union_type_is_grouped() -> None:
    proto = pipeline_proto(differently_typed())
    (group,) = [
        t for t in proto.components.transforms.values() if t.spec.urn == common_urns.primitives.GROUP_BY_KEY.urn
    ]
    (given,), (made,) = group.inputs.values(), group.outputs.values()
    coders, of = proto.components.coders, proto.components.pcollections
    key, value = coders[of[given].coder_id].component_coder_ids
    made_key, values = coders[of[made].coder_id].component_coder_ids
    assert (made_key, coders[values].component_coder_ids) == (key, [value])
    assert plan_of(ParsedPipeline(proto), ours()).stages


def test_second_proto_of_a_pipeline_is_equal() -> None:
    p = differently_typed()
    first, second = (pipeline_proto(p).components.coders for _ in range(2))
    assert sorted(first) == sorted(second)


def test_nondeterministic_keys_are_refused_unless_allowed() -> None:
    def grouped(*arguments: str) -> Any:
        p = beam.Pipeline(options=PipelineOptions(list(arguments)))
        pairs = p | beam.Create([1]) | beam.Map(lambda x: (Key(), x)).with_output_types(tuple[Key, int])
        _ = pairs | "Group" >> beam.GroupByKey()
        return pipeline_proto(p)

    class Key:
        pass

    class Loose(beam.coders.PickleCoder):
        def as_deterministic_coder(self, step_label: str, error_message: str | None = None) -> beam.coders.Coder:
            raise ValueError(error_message or step_label)

    beam.coders.registry.register_coder(Key, Loose)
    try:
        with pytest.raises(InvalidPipelineError, match="Group"):
            grouped()
        assert grouped("--allow_non_deterministic_key_coders")
    finally:
        beam.coders.registry._coders.pop(Key)


def test_plan_follows_options() -> None:
    proto = pipeline_proto(differently_typed())
    fused, apart = (
        plan_of(ParsedPipeline(proto), ours(), name="a"),
        plan_of(ParsedPipeline(proto), ours("--no_fusion"), name="b"),
    )
    assert (fused.name, apart.name) == ("a", "b")
    assert len(fused.stages) < len(apart.stages)
    with pytest.raises(InvalidPipelineError, match="shards=0"):
        plan_of(ParsedPipeline(proto), ours("--shards=0"))


def test_empty_pipeline_is_refused() -> None:
    with pytest.raises(InvalidPipelineError, match="no transforms"):
        plan_of(ParsedPipeline(pipeline_proto(beam.Pipeline())), ours())


_looked: list[int] = []


class _Counting(beam.DoFn):
    """Records each request for its attributes."""

    SEEN = userstate.BagStateSpec("seen", beam.coders.VarIntCoder())

    def __dir__(self) -> list[str]:
        _looked.append(id(self))
        return list(super().__dir__())

    def process(self, element: tuple[int, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> None:
        """Keeps nothing."""


def test_each_dofn_is_inspected_for_state_once() -> None:
    p = beam.Pipeline()
    pairs = p | beam.Create([(1, 2)])
    for name in ("One", "Other"):
        _ = pairs | name >> beam.ParDo(_Counting())
    own = userstate.get_dofn_specs
    _looked.clear()
    proto = pipeline_proto(p)
    assert len(_looked) == len(set(_looked)) == 2
    for name in ("One", "Other"):
        (transform,) = [t for t in proto.components.transforms.values() if t.unique_name == name]
        assert list(runner_pb.ParDoPayload.FromString(transform.spec.payload).state_specs) == ["seen"]
    assert userstate.get_dofn_specs is own


def test_failed_proto_leaves_sdk_unpatched() -> None:
    own = userstate.get_dofn_specs
    p = beam.Pipeline()
    hold = beam.Map(str)
    _ = p | beam.Create([1]) | "Hold" >> hold
    hold.fn.held = iter(x for x in [1])
    with pytest.raises(InvalidPipelineError, match="'Hold' cannot be pickled"):
        pipeline_proto(p)
    assert userstate.get_dofn_specs is own


class _Beside(beam.DoFn):
    LATER = userstate.TimerSpec("later", TimeDomain.WATERMARK)

    def process(
        self, element: Any, a: Any, b: Any, c: Any, d: Any, e: Any, later: Any = beam.DoFn.TimerParam(LATER)
    ) -> None:
        """Sets nothing."""

    @userstate.on_timer(LATER)
    def fired(self) -> None:
        """Does nothing."""


def test_key_coder_is_not_taken_from_side_input() -> None:
    own = beam.ParDo._get_key_and_window_coder
    p = beam.Pipeline()
    names = p | beam.Create(["a"])
    # The SDK takes one of all inputs, by chance.
    sides = [beam.pvalue.AsSingleton(names | str(i) >> beam.Map(str).with_output_types(str)) for i in range(5)]
    _ = p | "Pairs" >> beam.Create([(1, 2)]) | "Keep" >> beam.ParDo(_Beside(), *sides)
    components = pipeline_proto(p).components
    assert beam.ParDo._get_key_and_window_coder is own
    keep = next(t for t in components.transforms.values() if t.unique_name == "Keep")
    (timers,) = runner_pb.ParDoPayload.FromString(keep.spec.payload).timer_family_specs.values()
    key, _ = components.coders[timers.timer_family_coder_id].component_coder_ids
    assert components.coders[key].spec.urn == common_urns.coders.VARINT.urn
