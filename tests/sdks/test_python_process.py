"""Python pipelines in worker processes that the SDK's boot program starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from tests.sdks.goprograms import PYTHON_BOOT, built, process

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark")]


def command_of_parent(x: int) -> str:
    """Return the command line of the process that started this one."""
    return Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")[0]


@pytest.mark.contract("API-05", "API-08")
def test_boot_program_runs_the_worker(tmp_path: Path) -> None:
    boot = built(PYTHON_BOOT, tmp_path)
    staged = tmp_path / "words.txt"
    staged.write_text("some words")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    server = JobServer(ServerSettings(folder=tmp_path / "jobs"), SparkExecutor)
    try:
        options = [
            "--runner=PortableRunner",
            f"--job_endpoint={server.endpoint}",
            *process(boot, RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT="1", PATH=path),
            "--experiments=disable_logging_submission_environment",
            f"--files_to_stage={staged}",
        ]
        p: Any = beam.Pipeline(options=PipelineOptions(options))
        commands = p | beam.Create([1, 2]) | beam.Map(command_of_parent)
        assert_that(commands, equal_to([str(boot)] * 2))
        read = p | "One" >> beam.Create(["words.txt"]) | "Read" >> beam.Map(staged_text)
        assert_that(read, equal_to(["some words"]), label="staged")
        assert p.run().wait_until_finish() == "DONE"
    finally:
        server.stop()


def staged_text(name: str) -> str:
    """Return the content of a file that was staged for this worker."""
    return Path(os.environ["SEMI_PERSISTENT_DIRECTORY"], "staged", name).read_text()
