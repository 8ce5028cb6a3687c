"""Python pipelines with Java transforms, which Java's expansion service expands. They run in a worker of its own."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.external import ImplicitSchemaPayloadBuilder

from arcbeam import ArcbeamRunner
from arcbeam.errors import UnsupportedPipelineError
from arcbeam.jobs.environments import EMBEDDED_TYPE
from arcbeam.jobs.server import JobServer
from tests.sdks.java.test_java import command, server

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark"), pytest.mark.contract("IO-01", "API-07")]
__all__ = ["command", "server"]
_SECONDS = 240.0


@pytest.fixture(scope="module")
def expansion(command: list[str]) -> Iterator[str]:
    """Run Java's expansion service with a worker; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    arguments = [*command[:-1], "Expanding", str(port), "--alsoStartLoopbackWorker"]
    with subprocess.Popen(arguments) as service:
        try:
            with grpc.insecure_channel(f"localhost:{port}") as channel:
                grpc.channel_ready_future(channel).result(_SECONDS)
            yield f"localhost:{port}"
        finally:
            service.kill()


def _counted(pipeline: Any, expansion: str, lines: Path) -> None:
    lines.write_text("fox\ndog\nfox\n", encoding="utf-8")
    pattern = ImplicitSchemaPayloadBuilder({"pattern": str(lines)})
    read = pipeline | "Read in Java" >> beam.ExternalTransform("arcbeam:test:java:read:v1", pattern, expansion)
    shouted = read | beam.Map(str.upper).with_output_types(str)
    nothing = ImplicitSchemaPayloadBuilder({})
    counted = shouted | "Count in Java" >> beam.ExternalTransform("arcbeam:test:java:count:v1", nothing, expansion)
    assert_that(counted | beam.Map(str.lower), equal_to(["fox: 2", "dog: 1"]))


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "streaming"])
def test_java_source_and_transform_run_through_job_server(
    server: JobServer, expansion: str, tmp_path: Path, streaming: bool
) -> None:
    options = ["--runner=PortableRunner", f"--job_endpoint={server.endpoint}", f"--environment_type={EMBEDDED_TYPE}"]
    options.append("--experiments=disable_logging_submission_environment")
    p = beam.Pipeline(options=PipelineOptions(options, streaming=streaming))
    _counted(p, expansion, tmp_path / "lines")
    assert p.run().wait_until_finish() == "DONE"


def test_java_transform_is_refused_by_runner(expansion: str, tmp_path: Path) -> None:
    p = beam.Pipeline(runner=ArcbeamRunner())
    _counted(p, expansion, tmp_path / "lines")
    with pytest.raises(UnsupportedPipelineError, match="arcbeam serve") as refused:
        p.run()
    assert any(item.transform.startswith("Read in Java") for item in refused.value.items)
