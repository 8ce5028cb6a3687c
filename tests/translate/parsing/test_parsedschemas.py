"""The schema of a channel: that of its collection, if its elements are rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.portability.api import schema_pb2
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.utils.timestamp import Timestamp

from arcbeam.explain import as_json
from arcbeam.model.plan import Field, FieldType, TypeKind
from arcbeam.translate.parsing.parsedschemas import schema_of
from tests.translate.plans import plan_of

TYPES = {
    "number": int,
    "tail": str | None,
    "delays": Sequence[float],
    "seats": Mapping[str, int],
    "to": RowTypeConstraint.from_fields([("name", str)]),
    "at": Timestamp,
}
FLIGHT = RowTypeConstraint.from_fields([(name, convert_to_beam_type(of)) for name, of in TYPES.items()])


def test_channel_of_rows_has_their_schema() -> None:
    def build(p: Any) -> None:
        flights = p | beam.Create([1]) | beam.Map(lambda n: n).with_output_types(FLIGHT)
        _ = flights | "Rows" >> beam.Reshuffle() | beam.Map(str).with_output_types(str) | "Text" >> beam.Reshuffle()

    plan = plan_of(build)
    rows, text = [channel for channel in plan.channels if channel.routing == "spread"]
    assert text.schema is None
    assert rows.schema is not None
    assert rows.schema[:2] == (
        Field("number", FieldType(TypeKind.INT64)),
        Field("tail", FieldType(TypeKind.STRING, nullable=True)),
    )
    shown = {
        "number": "int64",
        "tail": "string?",
        "delays": "array<double>",
        "seats": "map<string, int64>",
        "to": "row<name: string>",
        "at": "beam:logical_type:micros_instant:v1",
    }
    assert {field.name: str(field.type) for field in rows.schema} == shown
    assert [channel["schema"] for channel in as_json(plan)["channels"] if channel["schema"]] == [shown]


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff",
        schema_pb2.Schema(fields=[schema_pb2.Field(name="a")]).SerializeToString(),
        schema_pb2.Schema(
            fields=[schema_pb2.Field(name="a", type=schema_pb2.FieldType(atomic_type=schema_pb2.UNSPECIFIED))]
        ).SerializeToString(),
    ],
    ids=["malformed", "without a type", "of an unknown type"],
)
def test_unreadable_schema_is_none(payload: bytes) -> None:
    spec = runner_pb.FunctionSpec(urn="beam:coder:row:v1", payload=payload)
    assert schema_of(runner_pb.Coder(spec=spec)) is None
