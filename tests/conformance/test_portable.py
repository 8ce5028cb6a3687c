"""The SDK's suite for job servers, on the one that `arcbeam serve` starts."""

from __future__ import annotations

import functools
import tempfile
import unittest
from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions
from apache_beam.runners.portability import portable_runner_test
from apache_beam.runners.portability.fn_api_runner import fn_runner_test

from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from tests.conformance import suites

SAMPLE = (
    "test_assert_that",
    "test_callbacks_with_exception",
    "test_create_value_provider_pipeline_option",
    "test_custom_window_type",
    "test_error_message_includes_stage",
    "test_error_traceback_includes_user_code",
    "test_flattened_side_input",
    "test_large_elements",
    "test_metrics",
    "test_multimap_side_input",
    "test_no_subtransform_composite",
    "test_pack_combiners",
    "test_pardo_state_timers",
    "test_register_finalizations",
    "test_sdf_with_sdf_initiated_checkpointing",
    "test_teststream_pardo_timers",
    "test_unbounded_source_read",
    "test_windowed_combine_per_key",
)
"""Tests of what a job server does differently from the runner in a program; the rest runs the same code."""


DRAINING = (
    "test_draining_sdf_with_sdf_initiated_checkpointing",
    "test_sdf_default_truncate_when_bounded",
    "test_sdf_default_truncate_when_unbounded",
    "test_sdf_with_truncate",
)
"""Tests that `PortableRunnerTest` omits, because no option of Beam submits a job as draining."""

_ALL = unittest.defaultTestLoader.getTestCaseNames(portable_runner_test.PortableRunnerTest)


@pytest.mark.contract("API-02")
@pytest.mark.usefixtures("spark")
class PortableDefault(
    suites.Conformance, portable_runner_test.PortableRunnerTest, only=[name for name in _ALL if name not in DRAINING]
):
    """All of `PortableRunnerTest` except that: submitted with the SDK's `PortableRunner`, over gRPC."""

    variant = suites.DEFAULT
    is_drain: ClassVar[bool] = False

    @classmethod
    def _create_job_endpoint(cls) -> str:
        folder = tempfile.TemporaryDirectory(prefix="conformance-jobs-")
        cls.addClassCleanup(folder.cleanup)
        executor = functools.partial(SparkExecutor, is_drain=cls.is_drain)
        server = JobServer(ServerSettings(folder=Path(folder.name)), executor)
        cls.addClassCleanup(server.stop)
        return server.endpoint

    def create_options(self) -> PipelineOptions:
        options = super().create_options()
        # Otherwise the submitter asks pip what is installed, for every pipeline.
        options.view_as(DebugOptions).add_experiment("disable_logging_submission_environment")
        return self.configured(options)

    def create_pipeline(self, is_drain: bool = False) -> beam.Pipeline:
        assert is_drain == self.is_drain
        # Its result checks the clock once a second if there is a limit.
        runner: Any = self.proof.watch(self.get_runner(), self.finished, seconds=None)
        return beam.Pipeline(runner, self.create_options())


for _name in unittest.defaultTestLoader.getTestCaseNames(PortableDefault):
    if _name not in SAMPLE:
        setattr(PortableDefault, _name, pytest.mark.long(getattr(PortableDefault, _name)))


@pytest.mark.long
class PortableNoFusion(PortableDefault):
    variant = suites.NO_FUSION


@pytest.mark.long
class PortableDraining(PortableDefault, only=DRAINING):
    """The other tests, as in `FnApiRunnerTest`, on a server that inserts a truncation before every splittable DoFn."""

    is_drain = True
    test_draining_sdf_with_sdf_initiated_checkpointing = (
        fn_runner_test.FnApiRunnerTest.test_draining_sdf_with_sdf_initiated_checkpointing
    )
    test_sdf_default_truncate_when_bounded = fn_runner_test.FnApiRunnerTest.test_sdf_default_truncate_when_bounded
    test_sdf_default_truncate_when_unbounded = fn_runner_test.FnApiRunnerTest.test_sdf_default_truncate_when_unbounded
    test_sdf_with_truncate = fn_runner_test.FnApiRunnerTest.test_sdf_with_truncate
