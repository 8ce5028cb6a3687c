"""The page "Connectors": what it says of Beam's own sources and sinks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow
import pytest
from apache_beam.io import fileio, mongodbio
from apache_beam.io.gcp import bigtableio, pubsub
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from arcbeam import ArcbeamRunner
from arcbeam.errors import UnsupportedPipelineError
from arcbeam.options import ArcbeamOptions
from arcbeam.translate import ParsedPipeline
from arcbeam.translate.proto import pipeline_proto, plan_of
from tests.docs.blocks import ROOT

pytestmark = pytest.mark.contract("IO-01")

_AVRO = {"type": "record", "name": "P", "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "long"}]}
_ARROW = pyarrow.schema([("name", pyarrow.string()), ("age", pyarrow.int64())])


class Person(NamedTuple):
    name: str
    age: int


PEOPLE = [Person("Ann", 31), Person("Bob", 17)]


def person(of: dict[str, Any]) -> Person:
    return Person(**of)


def from_row(row: Any) -> Person:
    return Person(row.name, row.age)


def from_text(text: str) -> Person:
    name, age = text.split("=")
    return Person(name, int(age))


def text(of: Person) -> str:
    return f"{of.name}={of.age}"


def as_row(of: Person) -> beam.Row:
    return beam.Row(name=of.name, age=of.age)


def lines(file: fileio.ReadableFile) -> list[str]:
    return file.read_utf8().splitlines()


_SOURCES: dict[str, Callable[[str], Any]] = {
    "text": lambda path: beam.io.ReadFromText(f"{path}/text*") | beam.Map(from_text),
    "csv": lambda path: beam.io.ReadFromCsv(f"{path}/csv*") | beam.Map(from_row),
    "json": lambda path: beam.io.ReadFromJson(f"{path}/json*") | beam.Map(from_row),
    "avro": lambda path: beam.io.ReadFromAvro(f"{path}/avro*") | beam.Map(person),
    "parquet": lambda path: beam.io.ReadFromParquet(f"{path}/parquet*") | beam.Map(person),
    "files": lambda path: (
        fileio.MatchFiles(f"{path}/files/*") | fileio.ReadMatches() | beam.FlatMap(lines) | beam.Map(from_text)
    ),
}
_SINKS: dict[str, Callable[[str], Any]] = {
    "text": lambda path: beam.Map(text) | beam.io.WriteToText(f"{path}/text"),
    "csv": lambda path: beam.Map(as_row).with_output_types(Person) | beam.io.WriteToCsv(f"{path}/csv"),
    "json": lambda path: beam.Map(as_row).with_output_types(Person) | beam.io.WriteToJson(f"{path}/json"),
    "avro": lambda path: beam.Map(Person._asdict) | beam.io.WriteToAvro(f"{path}/avro", _AVRO),
    "parquet": lambda path: beam.Map(Person._asdict) | beam.io.WriteToParquet(f"{path}/parquet", _ARROW),
    "files": lambda path: beam.Map(text) | fileio.WriteToFiles(f"{path}/files", sink=lambda _: fileio.TextSink()),
}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "streaming"])
def test_each_source_reads_what_its_sink_has_written(tmp_path: Path, streaming: bool) -> None:
    options = PipelineOptions(streaming=streaming)
    with beam.Pipeline(runner=ArcbeamRunner(), options=options) as p:
        people = p | beam.Create(PEOPLE)
        for name, sink in _SINKS.items():
            _ = people | name >> sink(str(tmp_path))
    with beam.Pipeline(runner=ArcbeamRunner(), options=options) as p:
        for name, source in _SOURCES.items():
            assert_that(p | name >> source(str(tmp_path)), equal_to(PEOPLE), label=f"{name} is read")


def _plan(transform: Callable[[beam.Pipeline], Any], *arguments: str) -> Any:
    options = PipelineOptions(list(arguments))
    p = beam.Pipeline(options=options)
    transform(p)
    return plan_of(ParsedPipeline(pipeline_proto(p, options)), options.view_as(ArcbeamOptions))


@pytest.mark.parametrize(
    "transform",
    [
        lambda p: p | mongodbio.ReadFromMongoDB("mongodb://localhost", "a", "b"),
        lambda p: p | beam.Create([{"a": 1}]) | mongodbio.WriteToMongoDB("mongodb://localhost", "a", "b"),
        lambda p: p | beam.Create([b"x"]) | pubsub.WriteToPubSub("projects/a-project/topics/b"),
        lambda p: p | beam.Create([1]) | bigtableio.WriteToBigTable("a", "b", "c"),
        lambda p: p | beam.io.ReadFromBigQuery(query="select 1", gcs_location="gs://a/b"),
        lambda p: p | fileio.MatchContinuously("/nowhere/*"),
    ],
    ids=["mongodb read", "mongodb written", "pubsub written", "bigtable written", "bigquery read", "folder watched"],
)
def test_accepted_connector_has_a_plan(transform: Callable[[beam.Pipeline], Any]) -> None:
    assert _plan(transform, "--project=a-project", "--temp_location=gs://a/b").stages


def test_pubsub_source_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedPipelineError, match="pubsub_read") as refused:
        _plan(lambda p: p | pubsub.ReadFromPubSub(subscription="projects/a-project/subscriptions/b"), "--streaming")
    assert refused.value.items[0].transform == "ReadFromPubSub/Read"


def test_page_names_each_kind_of_source() -> None:
    page = (ROOT / "docs" / "reference" / "connectors.md").read_text(encoding="utf-8")
    readers = re.findall(r"^def (ReadFrom\w+)|^class (ReadFrom\w+)", _sources(), re.MULTILINE)
    assert sorted({a or b for a, b in readers} - set(re.findall(r"\w+", page))) == []


def _sources() -> str:
    """Return the text of the modules of Beam that `apache_beam.io` exports."""
    folder = Path(beam.io.__file__).parent
    modules = [path for path in sorted(folder.glob("*.py")) if not path.name.endswith("_test.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in modules)
