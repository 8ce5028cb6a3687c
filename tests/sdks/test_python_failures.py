"""Python workers that end themselves fail their job soon, with an error that names the transform."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from tests.sdks.pools import Pool

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark"), pytest.mark.contract("API-06", "API-08")]

_SECONDS = 60.0


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    pool = Pool(tmp_path / "pool")
    pool.start()
    yield pool
    pool.kill()


def test_exit_in_dofn_of_a_pool_is_named(pool: Pool, tmp_path: Path) -> None:
    server = JobServer(ServerSettings(folder=tmp_path / "jobs"), SparkExecutor)
    try:
        options = ["--runner=PortableRunner", f"--job_endpoint={server.endpoint}", *pool.options]
        p: Any = beam.Pipeline(options=PipelineOptions(options))
        _ = p | beam.Create([1, 2]) | "Leave" >> beam.Map(lambda x: os._exit(x))
        began = time.monotonic()
        with pytest.raises(RuntimeError) as failed:
            p.run().wait_until_finish()
        assert time.monotonic() - began < _SECONDS
    finally:
        server.stop()
    assert "is gone: its " in str(failed.value)
    assert "'Leave'" in str(failed.value)
    assert "its output is in the log of the service at localhost:" in str(failed.value)
    assert "in 3 of 3 tries" in str(failed.value)
