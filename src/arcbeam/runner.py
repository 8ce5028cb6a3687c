"""Composition root: `ArcbeamRunner` wires translation, Spark, the store and the job's life together.

Owns what a submitted pipeline is put through, and the result that a user holds.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
import time
import uuid
import warnings
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    TypeOptions,
)
from apache_beam.options.value_provider import RuntimeValueProvider
from apache_beam.runners.pipeline_utils import (
    group_by_key_input_visitor,
    merge_common_environments,
    merge_superset_dep_environments,
)
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState
from apache_beam.transforms import environments

from arcbeam.errors import InvalidPipelineError, JobCancelledError
from arcbeam.harness.metrics import merge_metrics
from arcbeam.harness.wiring import Settings
from arcbeam.jobs.metrics import JobMetrics
from arcbeam.model.plan import Plan
from arcbeam.model.rows import TaskReport
from arcbeam.options import ArcbeamOptions
from arcbeam.spark.batch import BatchRun, Outcome, summary
from arcbeam.spark.session import SessionOptions, default_parallelism, open_session, prepared
from arcbeam.store.location import JobLocation
from arcbeam.translate import translate

_LOG = logging.getLogger("arcbeam")


class ArcbeamRunner(PipelineRunner):  # type: ignore[misc]  # Beam is untyped
    """Runs a Beam pipeline on Spark: on the active SparkSession, else on one built from the options.

    Args:
        is_drain: put a truncation in front of every splittable DoFn, as a drain would.
    """

    def __init__(self, is_drain: bool = False) -> None:
        super().__init__()
        self._is_drain = is_drain

    def run_pipeline(self, pipeline: Any, options: PipelineOptions) -> ArcbeamResult:
        """Submits the pipeline.

        Raises:
            SubmissionError: it cannot run; nothing was started.
            SetupError: there is no Spark to run it on.
        """
        RuntimeValueProvider.set_runtime_options({})
        debug = options.view_as(DebugOptions)
        experiments = list(debug.experiments or [])
        if "beam_fn_api" not in experiments:
            debug.experiments = [*experiments, "beam_fn_api"]
        allow = options.view_as(TypeOptions).allow_non_deterministic_key_coders
        try:
            pipeline.visit(group_by_key_input_visitor(not allow))
        except ValueError as e:
            raise InvalidPipelineError(str(e)) from e
        proto = pipeline.to_runner_api(default_environment=environments.EmbeddedPythonEnvironment.default())
        proto = merge_common_environments(merge_superset_dep_environments(proto))
        name = options.view_as(GoogleCloudOptions).job_name or "beam"
        return self.run_proto(proto, options, name)

    def run_proto(self, proto: Any, options: PipelineOptions, name: str) -> ArcbeamResult:
        """Submits a pipeline proto whose transforms all run in the embedded Python environment."""
        ours = options.view_as(ArcbeamOptions)
        plan = translate(proto, name=name, fusion=not ours.no_fusion, drain=self._is_drain)
        result = ArcbeamResult(plan, ours)
        result._start()
        return result


class ArcbeamResult(PipelineResult):  # type: ignore[misc]  # Beam is untyped
    """A submitted job.

    Attributes:
        job_id: unique.
        plan: what was made of the pipeline.
    """

    def __init__(self, plan: Plan, options: ArcbeamOptions) -> None:
        super().__init__(PipelineState.STARTING)
        self.job_id = f"{plan.name}-{uuid.uuid4().hex[:12]}"
        self.plan = plan
        self._options = options
        self._error: BaseException | None = None
        self._outcome: Outcome | None = None
        self._run: BatchRun | None = None
        self._cancelled = False
        self._metrics: JobMetrics | None = None
        self._spark = open_session(
            SessionOptions(options.spark_master, tuple(options.spark_conf or ()), options.spark_remote)
        )
        self._thread = threading.Thread(target=self._work, name=f"job-{self.job_id}", daemon=True)

    def _start(self) -> None:
        self._state = PipelineState.RUNNING
        self._thread.start()

    def _work(self) -> None:
        options, started = self._options, time.monotonic()
        root = Path(options.arcbeam_temp) if options.arcbeam_temp else Path(tempfile.gettempdir()) / "arcbeam"
        location = JobLocation(str(root / self.job_id))
        try:
            with prepared(self._spark):
                settings = Settings(
                    shards=options.shards or default_parallelism(self._spark),
                    bundle_elements=options.bundle_elements,
                    bundle_seconds=options.bundle_seconds,
                    group_memory_bytes=options.group_memory_mb << 20,
                    sdf_round_seconds=options.sdf_round_seconds,
                )
                self._run = BatchRun(self.plan, self._spark, settings, self.job_id, location, _repeat_warnings)
                self._outcome = self._run.run()
            self._state = PipelineState.DONE
            _LOG.info("%s done in %.1f s: %s", self.job_id, time.monotonic() - started, summary(self._outcome))
        except BaseException as e:
            self._error = JobCancelledError(f"{self.job_id} was cancelled") if self._cancelled else e
            self._state = PipelineState.CANCELLED if self._cancelled else PipelineState.FAILED
        finally:
            if not options.keep_job_temp:
                location.delete_all()

    def wait_until_finish(self, duration: float | None = None) -> str:
        """Waits.

        Args:
            duration: milliseconds to wait at most; None: until the job ends.

        Returns:
            The state.

        Raises:
            UserCodeError, JobFailedError, …: why the job failed.
        """
        try:
            self._thread.join(None if duration is None else duration / 1000)
        except KeyboardInterrupt:
            self.cancel()
            raise
        if self._error is not None and not self._cancelled:
            raise self._error
        state: str = self.state
        return state

    def cancel(self) -> str:
        """Cancels the job's Spark jobs and waits for its end."""
        if self._thread.is_alive():
            self._cancelled = True
            while self._thread.is_alive():
                if self._run is not None:
                    self._run.interrupt()
                self._thread.join(0.5)
        state: str = self.state
        return state

    def metrics(self) -> JobMetrics:
        """User metrics; empty until the job ends."""
        return self._all_metrics(True)

    def monitoring_metrics(self) -> JobMetrics:
        """User and system metrics; empty until the job ends."""
        return self._all_metrics(False)

    def _all_metrics(self, user_only: bool) -> JobMetrics:
        reports = self._outcome.reports if self._outcome else []
        return JobMetrics(merge_metrics(info for report in reports for info in report.metrics), user_only)


def _repeat_warnings(report: TaskReport) -> None:
    """Issues on the driver what was issued on a worker."""
    for name, text in report.warnings:
        module, _, qualname = name.rpartition(".")
        category = getattr(sys.modules.get(module), qualname, None)
        known = isinstance(category, type) and issubclass(category, Warning)
        warnings.warn(text, category if known else UserWarning, stacklevel=2)  # type: ignore[arg-type]
