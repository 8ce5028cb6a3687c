"""What jobs with SDK workers share: a job server, and pipelines for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a job server; yield its address."""
    server = JobServer(ServerSettings(folder=tmp_path_factory.mktemp("jobs")), SparkExecutor)
    yield server.endpoint
    server.stop()


@pytest.fixture
def pipeline(endpoint: str) -> Callable[..., beam.Pipeline]:
    """Return a function that makes a pipeline whose transforms run in this process."""
    return lambda *more: submitted_to(endpoint, "--environment_type=LOOPBACK", *more)


def submitted_to(endpoint: str, *options: str) -> beam.Pipeline:
    """Return a pipeline for a job server, with options."""
    usual = ["--runner=PortableRunner", "--experiments=disable_logging_submission_environment"]
    return beam.Pipeline(options=PipelineOptions([*usual, f"--job_endpoint={endpoint}", *options]))
