"""Sinks, and DoFns that are called at the end, run in Spark's Python workers, also in pipelines with SDK workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.transforms import userstate
from apache_beam.transforms.window import FixedWindows, Sessions
from apache_beam.typehints.typecheck import OutputCheckWrapperDoFn, TypeCheckWrapperDoFn

import arcbeam
from arcbeam.io import Publish, Publisher, WriteParts
from arcbeam.io.kafka import WriteToKafka
from arcbeam.model.plan import Plan
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.embedding import with_parts
from arcbeam.translate.proto import pipeline_proto
from tests.fnapi.stage.inworkers import external
from tests.harness.batch.splittables import Range
from tests.spark.streaming.fed import fed


def planned(build: Callable[[Any], None], edit: Callable[[Any], None] = lambda proto: None) -> Plan:
    """Return the plan of a pipeline whose Python transforms have SDK workers."""
    p = beam.Pipeline()
    build(p)
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external("localhost:1"))
    edit(proto)
    return translate(ParsedPipeline(proto), bounded=False)


def embedded(plan: Plan) -> list[str]:
    """Return the transforms that run in the task's process."""
    return sorted(each.name for stage in plan.stages if stage.remote is None for each in stage.transforms)


class Confirm(Publisher):
    def publish(self, committables: Any) -> None: ...


def of_another(name: str) -> Callable[[Any], None]:
    """Return an edit: the transform of that name belongs to another SDK."""

    def edit(proto: Any) -> None:
        other = proto.components.environments["other"]
        other.CopyFrom(external("localhost:2"))
        other.capabilities[:] = [each for each in other.capabilities if each.startswith("beam:coder:")]
        (transform,) = (t for t in proto.components.transforms.values() if t.unique_name == name)
        transform.environment_id = "other"

    return edit


def rows(p: Any) -> Any:
    return p | beam.Create([1]) | "Rows" >> beam.Map(str).with_output_types(str)


def pairs(p: Any) -> Any:
    return rows(p) | "Pair" >> beam.Map(lambda row: (row, 1)).with_output_types(tuple[str, int])


def staged(rows: Any, label: str = "Stage") -> Any:
    return rows | label >> beam.Map(lambda row: row).with_output_types(str)


@pytest.mark.contract("API-04")
def test_staging_and_publishing_share_a_stage() -> None:
    plan = planned(lambda p: staged(rows(p)) | Publish(Confirm()))
    assert embedded(plan) == ["Publish(Confirm)/Publish", "Stage"]
    (stage,) = (stage for stage in plan.stages if stage.publishers)
    assert [each.name for each in stage.transforms] == ["Stage", "Publish(Confirm)/Publish"]


@pytest.mark.contract("API-04")
def test_staging_is_found_through_what_passes_elements_on() -> None:
    def build(p: Any) -> None:
        made = rows(p)
        both = (staged(made, "One"), staged(made, "Two") | beam.Reshuffle()) | beam.Flatten()
        _ = both | beam.WindowInto(FixedWindows(1)) | Publish(Confirm())

    expected = ["One", "Publish(Confirm)/Publish", "Two"]
    assert [name for name in embedded(planned(build)) if name in ("Rows", *expected)] == expected


@pytest.mark.contract("API-04")
def test_committables_of_groupings_and_other_sdks_are_published() -> None:
    pairs = lambda p: rows(p) | "Pair" >> beam.Map(lambda row: (row, 1)).with_output_types(tuple[str, int])  # noqa: E731
    assert embedded(planned(lambda p: pairs(p) | beam.GroupByKey() | Publish(Confirm()))) == [
        "Publish(Confirm)/Publish"
    ]
    plan = planned(lambda p: staged(rows(p)) | Publish(Confirm()), of_another("Stage"))
    assert embedded(plan) == ["Publish(Confirm)/Publish"]


def _written(folder: str, windows: Any, **arguments: Any) -> Callable[[Any], None]:
    def build(p: Any) -> None:
        _ = rows(p) | "Windows" >> beam.WindowInto(windows) | "Files" >> WriteParts(folder, **arguments) | beam.Map(str)

    return build


def _endless(folder: str) -> Callable[[Any], None]:
    def build(p: Any) -> None:
        numbers = fed(p, Path(folder)) | "Rows" >> beam.Map(str).with_output_types(str)
        windowed = numbers | "Windows" >> beam.WindowInto(FixedWindows(10))
        _ = windowed | "Files" >> WriteParts(folder, success="_SUCCESS") | beam.Map(str)

    return build


def _produced(p: Any) -> None:
    pairs = rows(p) | "Pair" >> beam.Map(lambda row: (b"", row.encode())).with_output_types(tuple[bytes, bytes])
    _ = pairs | "Files" >> WriteToKafka({"bootstrap.servers": "localhost:1"}, "topic", staging="/tmp/staging")


@pytest.mark.contract("API-04", "END-06")
@pytest.mark.parametrize(
    "build",
    [
        _written("/tmp/out", FixedWindows(10)),
        _written("/tmp/out", FixedWindows(10), shards=2, success="_SUCCESS"),
        _written("/tmp/out", Sessions(10)),
        _endless("/tmp/out"),
        _produced,
    ],
)
def test_sinks_have_the_stages_of_an_embedded_pipeline(build: Callable[[Any], None]) -> None:
    p = beam.Pipeline()
    build(p)
    alone = translate(ParsedPipeline(pipeline_proto(p)), bounded=False)

    def inside(plan: Plan) -> list[list[str]]:
        named = ([each.name for each in stage.transforms if each.name.startswith("Files/")] for stage in plan.stages)
        return sorted(names for names in named if names)

    plan = planned(build)
    assert inside(plan) == inside(alone)
    assert {stage.remote is None for stage in plan.stages if inside(plan) and stage.publishers} == {True}
    remote = {each.name for stage in plan.stages if stage.remote is not None for each in stage.transforms}
    assert not [name for name in remote if name.startswith("Files/")]
    assert "Rows" in remote


@pytest.mark.contract("API-04")
def test_sink_of_another_sdks_pipeline_is_embedded() -> None:
    names = embedded(planned(_written("/tmp/out", FixedWindows(10)), of_another("Rows")))
    assert "Rows" not in names
    assert {name.split("/")[0] for name in names} == {"Files"}


def test_writing_to_kafka_at_once_stays_in_workers() -> None:
    def build(p: Any) -> None:
        pairs = rows(p) | "Pair" >> beam.Map(lambda row: (b"", row.encode())).with_output_types(tuple[bytes, bytes])
        _ = pairs | WriteToKafka({"bootstrap.servers": "localhost:1"}, "topic", exactly_once=False)

    assert embedded(planned(build)) == []


class Ends(beam.DoFn, arcbeam.GracefulShutdown):
    def process(self, element: Any) -> Iterator[Any]:
        yield element


class EndsFirst(arcbeam.GracefulShutdown, beam.DoFn):
    def process(self, element: Any) -> Iterator[Any]:
        yield element


class Shows(Ends):
    def display_data(self) -> dict[str, Any]:
        return {"mine": 1}


class Pickles(Ends):
    def __getstate__(self) -> dict[str, Any]:
        return {}


class Mixin:
    def display_data(self) -> dict[str, Any]:
        return {}


class Mixed(Mixin, Pickles):
    pass


class Base(arcbeam.GracefulShutdown):
    """Not a DoFn itself."""


class OfBase(beam.DoFn, Base):
    def process(self, element: Any) -> Iterator[Any]:
        yield element


class Stateful(Ends):
    SEEN = userstate.ReadModifyWriteStateSpec("seen", VarIntCoder())

    def process(self, element: Any, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Any]:
        yield element


class Splits(Range, arcbeam.GracefulShutdown):
    pass


FORMS = [Ends, EndsFirst, Shows, Pickles, Mixed, OfBase, Stateful]


@pytest.mark.contract("API-04", "END-05")
@pytest.mark.parametrize("kind", FORMS)
def test_dofn_that_is_called_at_the_end_is_embedded(kind: Any) -> None:
    plan = planned(lambda p: pairs(p) | "It" >> beam.ParDo(kind()) | "After" >> beam.Map(str))
    assert embedded(plan) == ["It"]


@pytest.mark.contract("API-04", "END-05")
@pytest.mark.parametrize(
    "wrapped",
    [
        beam.ParDo(Shows()).with_exception_handling(),
        beam.ParDo(Pickles()).with_exception_handling(timeout=10),
        beam.ParDo(Ends()).with_exception_handling(use_subprocess=True),
        beam.ParDo(Ends()).with_resource_hints(min_ram="1GB"),
        beam.ParDo(Ends()).with_outputs("other", main="main"),
        beam.ParDo(OutputCheckWrapperDoFn(TypeCheckWrapperDoFn(Shows(), beam.DoFn().get_type_hints()), "It")),
    ],
)
def test_dofn_that_the_sdk_has_wrapped_is_embedded(wrapped: Any) -> None:
    plan = planned(lambda p: rows(p) | "It" >> wrapped)
    assert [name.split("/")[0] for name in embedded(plan)] == ["It"]


@pytest.mark.contract("API-04", "END-05")
def test_splittable_dofn_that_is_called_at_the_end_is_embedded() -> None:
    def build(p: Any) -> None:
        numbers = rows(p) | "Number" >> beam.Map(int).with_output_types(int)
        _ = numbers | "It" >> beam.ParDo(Splits()) | "After" >> beam.Map(str)

    assert {name.split("/")[0] for name in embedded(planned(build))} == {"It"}


def test_only_environments_with_embedded_parts_need_files_in_spark() -> None:
    def parts(build: Callable[[Any], None]) -> Iterable[str]:
        p = beam.Pipeline()
        build(p)
        proto = pipeline_proto(p)
        for environment in proto.components.environments.values():
            environment.CopyFrom(external("localhost:1"))
        return with_parts(ParsedPipeline(proto))

    assert parts(rows) == frozenset()
    assert len(list(parts(lambda p: rows(p) | beam.ParDo(Ends())))) == 1
