"""The SDK's suite for job servers, with user code in SDK workers.

They are threads of the submitting program, by LOOPBACK; or processes of a worker pool, or of the SDK's boot program.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer

from tests.conformance import runners, suites, test_portable
from tests.sdks.goprograms import PYTHON_BOOT, built

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

    variant = suites.LOOPBACK


for _name in unittest.defaultTestLoader.getTestCaseNames(PortableLoopback):
    _test = getattr(PortableLoopback, _name)
    setattr(PortableLoopback, _name, _test if _name in SAMPLE else pytest.mark.long(_test))


@pytest.mark.long
class PortableLoopbackStreaming(PortableLoopback):
    """The same with `--streaming`."""

    variant = suites.LOOPBACK_STREAMING


@pytest.mark.long
class PortableLoopbackDraining(PortableLoopback, test_portable.PortableDraining, only=test_portable.DRAINING):
    """On a server that inserts a truncation before every splittable DoFn."""


@pytest.mark.long
class PortableLoopbackDrainingStreaming(PortableLoopbackDraining):
    """The same with `--streaming`."""

    variant = suites.LOOPBACK_STREAMING


@pytest.mark.long
@pytest.mark.usefixtures("spark")
class SplitLoopback(suites.FnApiSplit):
    """Splitting as often as possible."""

    variant, make_runner = suites.LOOPBACK, staticmethod(runners.submitting)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
class SplitLoopbackStreaming(SplitLoopback):
    variant = suites.LOOPBACK_STREAMING


_WITH_PYTHON = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
"""The pool and the boot program start `python`."""


class InPool(suites.Conformance):
    """Mixed in before tests: user code runs in processes of a worker pool beside this one."""

    _address: ClassVar[str]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.enterClassContext(mock.patch.dict(os.environ, PATH=_WITH_PYTHON))
        cls._address, server = BeamFnExternalWorkerPoolServicer.start(
            use_process=True, state_cache_size=100, data_buffer_time_limit_ms=1000
        )
        cls.addClassCleanup(server.stop, 1)

    def configured(self, options: PipelineOptions) -> PipelineOptions:
        options = super().configured(options)
        options.view_as(PortableOptions).environment_config = self._address
        return options


@pytest.mark.contract("API-03", "API-08")
class PortablePool(InPool, test_portable.PortableDefault):
    """All of `PortableDefault`."""

    variant = suites.POOL


for _name in unittest.defaultTestLoader.getTestCaseNames(PortablePool):
    _test = getattr(PortablePool, _name)
    setattr(PortablePool, _name, _test if _name == "test_pardo_state_timers" else pytest.mark.long(_test))


@pytest.mark.long
class PortablePoolStreaming(PortablePool):
    """The same with `--streaming`."""

    variant = suites.POOL_STREAMING


@pytest.mark.long
class PortablePoolDraining(PortablePool, test_portable.PortableDraining, only=test_portable.DRAINING):
    """See `PortableLoopbackDraining`."""


@pytest.mark.long
class PortablePoolDrainingStreaming(PortablePoolDraining):
    variant = suites.POOL_STREAMING


@pytest.mark.long
@pytest.mark.usefixtures("spark")
class SplitPool(InPool, suites.FnApiSplit):
    """See `SplitLoopback`."""

    variant, make_runner = suites.POOL, staticmethod(runners.submitting)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
class SplitPoolStreaming(SplitPool):
    variant = suites.POOL_STREAMING


class ByProcess(suites.Conformance):
    """Mixed in before tests: user code runs in processes that the SDK's boot program starts."""

    _boot: ClassVar[Path]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls._boot = built(PYTHON_BOOT, Path(cls.enterClassContext(tempfile.TemporaryDirectory())))

    def configured(self, options: PipelineOptions) -> PipelineOptions:
        options = super().configured(options)
        env = {"RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT": "1", "PATH": _WITH_PYTHON, "PYTHONPATH": os.getcwd()}
        config = {"command": str(self._boot), "env": env}
        options.view_as(PortableOptions).environment_config = json.dumps(config)
        return options


@pytest.mark.long
@pytest.mark.contract("API-03", "API-08")
class PortableProcess(ByProcess, test_portable.PortableDefault):
    """All of `PortableDefault`."""

    variant = suites.PROCESS


@pytest.mark.long
class PortableProcessStreaming(PortableProcess):
    """The same with `--streaming`."""

    variant = suites.PROCESS_STREAMING


@pytest.mark.long
class PortableProcessDraining(PortableProcess, test_portable.PortableDraining, only=test_portable.DRAINING):
    """See `PortableLoopbackDraining`."""


@pytest.mark.long
class PortableProcessDrainingStreaming(PortableProcessDraining):
    variant = suites.PROCESS_STREAMING


@pytest.mark.long
@pytest.mark.usefixtures("spark")
class SplitProcess(ByProcess, suites.FnApiSplit):
    """See `SplitLoopback`."""

    variant, make_runner = suites.PROCESS, staticmethod(runners.submitting)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
class SplitProcessStreaming(SplitProcess):
    variant = suites.PROCESS_STREAMING
