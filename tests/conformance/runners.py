"""The runners for the suites: arcbeam itself, and one that does nothing.

Owns how they are made. Must not know suites.
"""

from __future__ import annotations

import atexit
import functools
import tempfile
from pathlib import Path
from typing import Any

from apache_beam.metrics.metric import MetricResults
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState


def arcbeam(is_drain: bool = False) -> PipelineRunner:
    """Return the runner under test."""
    from arcbeam import ArcbeamRunner

    return ArcbeamRunner(is_drain=is_drain)


def submitting(is_drain: bool = False) -> PipelineRunner:
    """Return the SDK's runner that submits to a job server; see `job_endpoint`, which decides whether jobs drain."""
    from apache_beam.runners.portability.portable_runner import PortableRunner

    return PortableRunner()


@functools.cache
def job_endpoint(is_drain: bool = False) -> str:
    """Return the address of this process's job server for jobs that drain, or for others."""
    from arcbeam.jobs.server import JobServer, ServerSettings
    from arcbeam.runner.executor import SparkExecutor

    folder = tempfile.TemporaryDirectory(prefix="conformance-jobs-")
    atexit.register(folder.cleanup)
    server = JobServer(ServerSettings(folder=Path(folder.name)), functools.partial(SparkExecutor, is_drain=is_drain))
    atexit.register(server.stop)
    return server.endpoint


def empty(is_drain: bool = False) -> PipelineRunner:
    """Return a runner on which no test may pass."""
    return EmptyRunner()


class EmptyRunner(PipelineRunner):  # type: ignore[misc]  # Beam is untyped
    """Runs nothing, and reports success."""

    def run_pipeline(self, pipeline: Any, options: Any) -> EmptyResult:
        return EmptyResult(PipelineState.DONE)


class _NoMetrics(MetricResults):  # type: ignore[misc]  # Beam is untyped
    def query(self, filter: Any = None) -> dict[str, list[Any]]:
        return {name: [] for name in ("counters", "distributions", "gauges", "string_sets", "bounded_tries")}

    def monitoring_infos(self) -> list[Any]:
        return []


class EmptyResult(PipelineResult):  # type: ignore[misc]  # Beam is untyped
    """A job that is done, and did nothing."""

    def wait_until_finish(self, duration: float | None = None) -> str:
        state: str = self.state
        return state

    def metrics(self) -> MetricResults:
        return _NoMetrics()

    def monitoring_metrics(self) -> MetricResults:
        return _NoMetrics()
