"""The SDK's suite for job servers, on the one that `arcbeam serve` starts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions
from apache_beam.runners.portability import portable_runner_test

from arcbeam.executor import SparkExecutor
from arcbeam.jobs.server import JobServer, ServerSettings
from tests.conformance import suites


@pytest.mark.contract("API-02")
@pytest.mark.usefixtures("spark")
class PortableDefault(suites.Conformance, portable_runner_test.PortableRunnerTest):
    """All of `PortableRunnerTest`: submitted with the SDK's `PortableRunner`, over gRPC."""

    variant = suites.DEFAULT

    @classmethod
    def _create_job_endpoint(cls) -> str:
        folder = tempfile.TemporaryDirectory(prefix="conformance-jobs-")
        cls.addClassCleanup(folder.cleanup)
        server = JobServer(ServerSettings(folder=Path(folder.name)), SparkExecutor)
        cls.addClassCleanup(server.stop)
        return server.endpoint

    def create_options(self) -> PipelineOptions:
        options = super().create_options()
        # Or the submitter asks pip what is installed, for every pipeline.
        options.view_as(DebugOptions).add_experiment("disable_logging_submission_environment")
        return self.configured(options)

    def create_pipeline(self, is_drain: bool = False) -> beam.Pipeline:
        # Its result looks at the clock once a second if there is a limit.
        runner: Any = self.proof.watch(self.get_runner(), self.finished, seconds=None)
        return beam.Pipeline(runner, self.create_options())


@pytest.mark.long
class PortableNoFusion(PortableDefault):
    variant = suites.NO_FUSION
