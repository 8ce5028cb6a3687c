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


@pytest.mark.long
class PortableLoopbackDraining(PortableLoopback, test_portable.PortableDraining, only=test_portable.DRAINING):
    """On a server that inserts a truncation before every splittable DoFn."""


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


@pytest.mark.contract("API-03", "API-08")
class PortablePool(test_portable.PortableDefault):
    """All of `PortableDefault`, each pipeline with a process of a worker pool beside this one."""

    variant = suites.POOL
    _address: ClassVar[str]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.enterClassContext(mock.patch.dict(os.environ, PATH=_WITH_PYTHON))
        cls._address, server = BeamFnExternalWorkerPoolServicer.start(
            use_process=True, state_cache_size=100, data_buffer_time_limit_ms=1000
        )
        cls.addClassCleanup(server.stop, 1)

    def create_options(self) -> PipelineOptions:
        options = super().create_options()
        options.view_as(PortableOptions).environment_type = "EXTERNAL"
        options.view_as(PortableOptions).environment_config = self._address
        return options


for _name in unittest.defaultTestLoader.getTestCaseNames(PortablePool):
    _test = getattr(PortablePool, _name)
    setattr(PortablePool, _name, _test if _name == "test_pardo_state_timers" else pytest.mark.long(_test))


@pytest.mark.long
class PortablePoolStreaming(PortablePool):
    """The same with `--streaming`."""

    variant = suites.POOL_STREAMING


@pytest.mark.long
@pytest.mark.contract("API-03", "API-08")
class PortableProcess(test_portable.PortableDefault):
    """All of `PortableDefault`, each pipeline with a process that the SDK's boot program starts."""

    variant = suites.PROCESS
    _boot: ClassVar[Path]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls._boot = built(PYTHON_BOOT, Path(cls.enterClassContext(tempfile.TemporaryDirectory())))

    def create_options(self) -> PipelineOptions:
        options = super().create_options()
        env = {"RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT": "1", "PATH": _WITH_PYTHON, "PYTHONPATH": os.getcwd()}
        options.view_as(PortableOptions).environment_type = "PROCESS"
        options.view_as(PortableOptions).environment_config = json.dumps({"command": str(self._boot), "env": env})
        return options


@pytest.mark.long
class PortableProcessStreaming(PortableProcess):
    """The same with `--streaming`."""

    variant = suites.PROCESS_STREAMING
