"""Go pipelines with a Python transform, which the SDK's expansion service expands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_expansion_api_pb2_grpc as expansion_grpc
from apache_beam.runners.portability.expansion_service import ExpansionServiceServicer
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.utils.thread_pool_executor import shared_unbounded_instance

from arcbeam.jobs.environments import EMBEDDED_TYPE
from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from tests.fnapi.stage.inworkers import worker_service
from tests.sdks.goprograms import built, ran

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark")]


def with_one(word: str) -> tuple[str, int]:
    return word, 1


class Number(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Numbers the elements of each key, with state."""

    SEEN = ReadModifyWriteStateSpec("seen", VarIntCoder())

    def process(self, element: tuple[str, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[tuple[str, int]]:
        number = (seen.read() or 0) + 1
        seen.write(number)
        yield element[0], number


def shown(group: tuple[str, Iterable[int]], counts: dict[str, int]) -> str:
    word, numbers = group
    return f"{word} {sorted(numbers)} {counts[word]}"


@beam.PTransform.register_urn("arcbeam:test:python:count:v1", None)
class Counted(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Counts words in three ways: with state, in groups, and by a combiner whose result is a side input."""

    def expand(self, words: Any) -> Any:
        pairs = words | beam.Map(with_one).with_output_types(tuple[str, int])
        groups = pairs | beam.ParDo(Number()).with_output_types(tuple[str, int]) | beam.GroupByKey()
        counts = beam.pvalue.AsDict(words | beam.combiners.Count.PerElement())
        return groups | beam.Map(shown, counts).with_output_types(str)

    def to_runner_api_parameter(self, context: Any) -> tuple[str, None]:
        return "arcbeam:test:python:count:v1", None

    @staticmethod
    def from_runner_api_parameter(transform: Any, payload: Any, context: Any) -> Counted:
        return Counted()


@pytest.fixture(params=["embedded", "external"])
def expansion(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run an expansion service whose transforms run in embedded Python, or in external workers; yield its address."""
    with worker_service() as workers:
        where = {"embedded": [EMBEDDED_TYPE], "external": ["EXTERNAL", f"--environment_config={workers}"]}
        kind, *more = where[request.param]
        options = [f"--environment_type={kind}", *more, "--experiments=disable_logging_submission_environment"]
        server = grpc.server(shared_unbounded_instance())
        service = ExpansionServiceServicer(PipelineOptions([*options, "--sdk_location=container"]))
        expansion_grpc.add_ExpansionServiceServicer_to_server(service, server)
        port = server.add_insecure_port("localhost:0")
        server.start()
        yield f"localhost:{port}"
        server.stop(None).wait()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("./programs", tmp_path_factory.mktemp("go"))


@pytest.fixture(scope="module")
def endpoint(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = JobServer(ServerSettings(folder=tmp_path_factory.mktemp("jobs")), SparkExecutor)
    yield server.endpoint
    server.stop()


BOUNDED = [
    "brown [1] 1 [*]",
    "dog [1] 1 [*]",
    "fox [1, 2, 3] 3 [*]",
    "jumps [1] 1 [*]",
    "lazy [1] 1 [*]",
    "naïve [1] 1 [*]",
    "naïve\0 [1] 1 [*]",
    "over [1] 1 [*]",
    "quick [1] 1 [*]",
    "the [1, 2, 3] 3 [*]",
]
IN_WINDOWS = [
    "brown [1] 1 [0:6000)",
    "dog [1] 1 [6000:12000)",
    "fox [1] 1 [0:6000)",
    "fox [1] 1 [6000:12000)",
    "jumps [1] 1 [0:6000)",
    "lazy [1] 1 [6000:12000)",
    "naïve\0 [1] 1 [6000:12000)",
    "over [1] 1 [0:6000)",
    "quick [1] 1 [0:6000)",
    "the [1, 2] 2 [6000:12000)",
    "the [1] 1 [0:6000)",
]


@pytest.mark.contract("API-03", "API-07")
@pytest.mark.parametrize(("program", "expected"), [("crossing", BOUNDED), ("crossingstream", IN_WINDOWS)])
def test_python_transform_between_go_transforms(
    programs: Path, endpoint: str, expansion: str, tmp_path: Path, program: str, expected: list[str]
) -> None:
    runner = ("--runner=universal", f"--endpoint={endpoint}", "--environment_type=LOOPBACK")
    found = ran(programs, program, tmp_path, *runner, f"--expansion={expansion}")
    assert not found.code, found.log
    assert found.collected["crossed"] == sorted(expected)
    assert found.collected["groups"] == sorted(re.sub(r" \[.*?\]", "", each, count=1) for each in expected)
