"""The SDK's suite for job servers, with user code in SDK workers: threads of the submitting program, by LOOPBACK."""

from __future__ import annotations

import unittest
from typing import ClassVar

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions

from tests.conformance import suites, test_portable

SAMPLE = (
    "test_custom_merging_window",
    "test_pardo_state_timers",
    "test_register_finalizations",
    "test_sdf_with_sdf_initiated_checkpointing",
    "test_windowed_combine_per_key",
)
REFUSED = {
    "test_teststream_pardo_timers": "a TestStream beside SDK workers",
}
"""Tests of what is refused, and its name."""
_ALL = unittest.defaultTestLoader.getTestCaseNames(test_portable.PortableDefault)


class _Loopback(test_portable.PortableDefault):
    """Mixed in first."""

    __test__: ClassVar[bool] = False

    def create_options(self) -> PipelineOptions:
        options = super().create_options()
        options.view_as(PortableOptions).environment_type = "LOOPBACK"
        return options


@pytest.mark.contract("API-03")
class PortableLoopback(_Loopback, only=[name for name in _ALL if name not in REFUSED]):
    """All other tests of `PortableRunnerTest`."""

    __test__ = True


for _name in unittest.defaultTestLoader.getTestCaseNames(PortableLoopback):
    _test = getattr(PortableLoopback, _name)
    setattr(PortableLoopback, _name, _test if _name in SAMPLE else pytest.mark.long(_test))


@pytest.mark.long
class PortableLoopbackStreaming(PortableLoopback):
    """The same with `--streaming`."""

    variant = suites.STREAMING


def _refused(self: unittest.TestCase) -> None:
    for name, why in REFUSED.items():
        with pytest.raises(Exception, match=why):
            getattr(test_portable.PortableDefault, name)(self)


_refused.proves = True  # type: ignore[attr-defined]


@pytest.mark.long
class PortableLoopbackRefused(_Loopback, only=["test_what_is_not_supported_is_refused_by_name"]):
    """The rest."""

    __test__ = True
    test_what_is_not_supported_is_refused_by_name = _refused
