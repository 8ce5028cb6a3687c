"""Which keys get a deterministic coder, and which are rejected at submission."""

from __future__ import annotations

from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms.environments import EmbeddedPythonEnvironment
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

from arcbeam.model.urns import KEY_CODER_URN
from arcbeam.translate import ParsedPipeline, keys, translate, validated


class Typed(NamedTuple):
    k: str
    v: int


class Stateful(beam.DoFn):
    SEEN = ReadModifyWriteStateSpec("seen", beam.coders.VarIntCoder())

    def process(self, pair: tuple[Any, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> None:
        seen.write(1)


def rows(p: Any, label: str = "") -> Any:
    made = p | f"{label}Create" >> beam.Create([1])
    row = made | f"{label}Row" >> beam.Map(lambda n: beam.Row(k=n, v=str(n)))
    return row | f"{label}Pairs" >> beam.Map(lambda row: (row, 1))


def grouped(p: Any) -> None:
    rows(p) | beam.GroupByKey()


def combined(p: Any) -> None:
    rows(p) | beam.CombinePerKey(sum)


def by_fields(p: Any) -> None:
    made = p | beam.Create([{"k": 1, "v": 2}]) | beam.Map(lambda d: beam.Row(k=d["k"], v=d["v"]))
    made | beam.GroupBy("k").aggregate_field("v", sum, "s")


def kept_state_for(p: Any) -> None:
    rows(p) | beam.ParDo(Stateful())


def looked_up(p: Any) -> None:
    p | beam.Create([1]) | "Look" >> beam.Map(lambda x, found: x, beam.pvalue.AsMultiMap(rows(p, "side")))


def in_a_tuple(p: Any) -> None:
    pairs = rows(p) | beam.Map(lambda kv: ((kv[0], "x"), kv[1])).with_output_types(tuple[tuple[Typed, str], int])
    pairs | beam.GroupByKey()


def anything(p: Any) -> None:
    p | beam.Create([1]) | beam.Map(lambda n: (n, 1)).with_output_types(tuple[Any, int]) | beam.GroupByKey()


def proto_of(build: Any) -> Any:
    p = beam.Pipeline()
    build(p)
    return p.to_runner_api(default_environment=EmbeddedPythonEnvironment.default())


def key_coders(pipeline: ParsedPipeline) -> set[str]:
    """Return the URNs of the coders of compared keys."""
    found = {pipeline.coder(pcoll).component_coder_ids[0] for _, pcoll in keys._keyed(pipeline)}
    return {pipeline.components.coders[id].spec.urn for id in found}


@pytest.fixture(autouse=True)
def typed_rows() -> Any:
    beam.coders.registry.register_coder(Typed, beam.coders.RowCoder)
    yield
    del beam.coders.registry._coders[Typed]
    beam.coders.registry.custom_types.remove(Typed)


@pytest.mark.parametrize("build", [grouped, combined, by_fields, kept_state_for, looked_up, in_a_tuple])
def test_compared_keys_are_made_deterministic(build: Any) -> None:
    proto = proto_of(build)
    before = runner_pb.Pipeline.FromString(proto.SerializeToString())
    assert key_coders(validated(ParsedPipeline(proto))) == {KEY_CODER_URN}
    assert proto == before
    assert translate(ParsedPipeline(proto)).stages


def typed(p: Any) -> None:
    p | beam.Create([("a", 1)]) | beam.GroupByKey()


def listed(p: Any) -> None:
    p | beam.Create([1]) | "Look" >> beam.Map(lambda x, found: x, beam.pvalue.AsList(rows(p, "side")))


@pytest.mark.parametrize("build", [typed, anything, listed])
def test_keys_made_deterministic_by_sdk_or_not_compared_are_unchanged(build: Any) -> None:
    pipeline = ParsedPipeline(proto_of(build))
    assert validated(pipeline) is pipeline


def test_display_name_does_not_show_key_coder() -> None:
    plan = translate(ParsedPipeline(proto_of(grouped)))
    assert "kv<row, varint>" in [channel.coder for channel in plan.channels]
