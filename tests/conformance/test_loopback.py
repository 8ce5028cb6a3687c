"""The SDK's suite for job servers, with user code in SDK workers: threads of the submitting program, by LOOPBACK."""

from __future__ import annotations

import unittest

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions

from tests.conformance import suites, test_portable

SAMPLE = (
    "test_custom_window_type",
    "test_pardo_state_timers",
    "test_register_finalizations",
    "test_sdf_with_sdf_initiated_checkpointing",
    "test_windowed_combine_per_key",
)


@pytest.mark.contract("API-03")
class PortableLoopback(test_portable.PortableDefault):
    """All of `PortableDefault`."""

    def create_options(self) -> PipelineOptions:
        options = super().create_options()
        options.view_as(PortableOptions).environment_type = "LOOPBACK"
        return options


for _name in unittest.defaultTestLoader.getTestCaseNames(PortableLoopback):
    _test = getattr(PortableLoopback, _name)
    setattr(PortableLoopback, _name, _test if _name in SAMPLE else pytest.mark.long(_test))


@pytest.mark.long
class PortableLoopbackStreaming(PortableLoopback):
    """The same with `--streaming`."""

    variant = suites.STREAMING
