"""One pipeline with transforms in Python and in Go."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_expansion_api_pb2 as expansion_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.testing.util import assert_that, equal_to

from arcbeam.jobs.environments import EMBEDDED_TYPE
from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from tests.sdks.goprograms import built
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark")]


class GoPart:
    """Expands a transform to a part of a Go pipeline, as an expansion service does. The Go SDK has no such service.

    Args:
        pipeline: the Go pipeline.
        part: name of a composite transform of it, with one input.
    """

    def __init__(self, pipeline: Any, part: str) -> None:
        self._components, self._part = pipeline.components, part

    def Expand(self, request: Any) -> Any:
        """Implement the service's method."""
        there, response = self._components, expansion_pb.ExpansionResponse(components=request.components)
        (part,) = (t for t in there.transforms.values() if t.unique_name == self._part)
        (given,), (taken,) = request.transform.inputs.values(), part.inputs.values()

        def of(id: str) -> str:
            return given if id == taken else request.namespace + id

        def renamed(transform: Any) -> Any:
            copy = runner_pb.PTransform()
            copy.CopyFrom(transform)
            copy.unique_name = f"{request.transform.unique_name}{transform.unique_name.removeprefix(self._part)}"
            copy.environment_id = request.namespace + transform.environment_id if transform.environment_id else ""
            copy.subtransforms[:] = map(of, transform.subtransforms)
            for ports in (copy.inputs, copy.outputs):
                for tag, pcoll in list(ports.items()):
                    ports[tag] = of(pcoll)
            return copy

        for id, transform in there.transforms.items():
            if transform.unique_name.startswith(f"{self._part}/"):
                response.components.transforms[of(id)].CopyFrom(renamed(transform))
        for id, pcoll in there.pcollections.items():
            if id != taken:
                copy = response.components.pcollections[of(id)]
                copy.CopyFrom(pcoll)
                copy.coder_id, copy.windowing_strategy_id = of(pcoll.coder_id), of(pcoll.windowing_strategy_id)
        for id, strategy in there.windowing_strategies.items():
            copy = response.components.windowing_strategies[of(id)]
            copy.CopyFrom(strategy)
            copy.window_coder_id = of(strategy.window_coder_id)
            copy.environment_id = of(strategy.environment_id) if strategy.environment_id else ""
        for id, coder in there.coders.items():
            response.components.coders[of(id)].CopyFrom(coder)
            response.components.coders[of(id)].component_coder_ids[:] = map(of, coder.component_coder_ids)
        for id, environment in there.environments.items():
            response.components.environments[of(id)].CopyFrom(environment)
        response.transform.CopyFrom(renamed(part))
        # A composite of the Go SDK also has those outputs that only its own parts read.
        for t in there.transforms.values():
            for pcoll in t.inputs.values() if not t.subtransforms else ():
                response.transform.outputs.pop(pcoll, None)
        return response


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoPart]:
    folder = tmp_path_factory.mktemp("counting")
    file = folder / "proto"
    command = [str(built("./programs", folder)), "--program=served", f"--serve={file}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as program:
        until(file.exists, "the pipeline", process=program)
        yield GoPart(runner_pb.Pipeline.FromString(file.read_bytes()), "Crossing")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = JobServer(ServerSettings(folder=tmp_path_factory.mktemp("jobs")), SparkExecutor)
    yield server.endpoint
    server.stop()


def by_length(counted: str) -> tuple[int, str]:
    return len(counted), counted.upper()


@pytest.mark.contract("API-07")
@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "streaming"])
@pytest.mark.parametrize("python", [EMBEDDED_TYPE, "LOOPBACK"], ids=["embedded", "loopback"])
def test_go_transform_between_python_transforms(counting: GoPart, endpoint: str, python: str, streaming: bool) -> None:
    options = [
        "--runner=PortableRunner",
        f"--job_endpoint={endpoint}",
        f"--environment_type={python}",
        "--experiments=disable_logging_submission_environment",
    ]
    p: Any = beam.Pipeline(options=PipelineOptions(options, streaming=streaming))
    texts = p | beam.Create(["fox and dog", "dog"])
    lines = texts | "Line" >> beam.Map(lambda line: f"{line} fox").with_output_types(str)
    counted = lines | "Count in Go" >> beam.ExternalTransform("arcbeam.test:count", b"", counting)
    groups = counted | beam.Map(by_length) | beam.GroupByKey() | beam.MapTuple(lambda n, some: (n, sorted(some)))
    assert_that(groups, equal_to([(8, ['"AND": 1', '"DOG": 2', '"FOX": 3'])]))
    assert p.run().wait_until_finish() == "DONE"
