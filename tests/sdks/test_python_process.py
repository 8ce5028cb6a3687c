"""Python pipelines in worker processes that the SDK's boot program starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from tests.sdks.goprograms import PYTHON_BOOT, built, process
from tests.spark.countedpipelines import CountedPipeline

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark")]


def command_of_parent(x: int) -> str:
    """Return the command line of the process that started this one."""
    return Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")[0]


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Serve jobs; yield the options with which the boot program runs their workers."""
    folder = tmp_path_factory.mktemp("served")
    boot = built(PYTHON_BOOT, folder)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    server = JobServer(ServerSettings(folder=folder / "jobs"), SparkExecutor)
    try:
        yield [
            "--runner=PortableRunner",
            f"--job_endpoint={server.endpoint}",
            *process(boot, RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT="1", PATH=path),
            "--experiments=disable_logging_submission_environment",
        ]
    finally:
        server.stop()


@pytest.mark.contract("API-05", "API-08")
def test_boot_program_runs_the_worker(submitted: list[str], tmp_path: Path) -> None:
    staged = tmp_path / "words.txt"
    staged.write_text("some words")
    p: Any = beam.Pipeline(options=PipelineOptions([*submitted, f"--files_to_stage={staged}"]))
    commands = p | beam.Create([1, 2]) | beam.Map(command_of_parent)
    name = PYTHON_BOOT.replace("/", "-")
    assert_that(commands | "Name" >> beam.Map(os.path.basename), equal_to([name] * 2))
    read = p | "One" >> beam.Create(["words.txt"]) | "Read" >> beam.Map(staged_text)
    assert_that(read, equal_to(["some words"]), label="staged")
    assert p.run().wait_until_finish() == "DONE"


@pytest.mark.contract("API-06", "API-08")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", [(), ("--streaming",)], ids=["batch", "streaming"])
def test_counters_equal_what_user_code_noted(
    submitted: list[str], tmp_path: Path, mode: tuple[str, ...], seed: int
) -> None:
    counted = CountedPipeline(seed, tmp_path)
    p = beam.Pipeline(options=PipelineOptions([*submitted, "--shards=3", *mode]))
    counted.build(p)
    result = p.run()
    assert result.wait_until_finish() == "DONE"
    counted.check(result)


def staged_text(name: str) -> str:
    """Return the content of a file that was staged for this worker."""
    return Path(os.environ["SEMI_PERSISTENT_DIRECTORY"], "staged", name).read_text()
