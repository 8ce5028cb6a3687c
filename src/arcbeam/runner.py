"""Composition root: `ArcbeamRunner` wires translation, Spark, the store and the job's life together.

Owns what a pipeline of this process is put through, and the result that its user holds.
"""

from __future__ import annotations

import logging
import re
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState
from apache_beam.transforms import core

from arcbeam.errors import UserCodeError
from arcbeam.job import Job, session_options
from arcbeam.jobs.metrics import JobMetrics
from arcbeam.model.plan import Plan
from arcbeam.options import ArcbeamOptions
from arcbeam.spark.session.sessions import open_session, unheeded
from arcbeam.spark.tasks.artifacts import prelude_for, staged_by
from arcbeam.spark.tasks.mainmodule import MainClasses
from arcbeam.translate.proto import leaves, pipeline_proto, plan_of

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
        ours = options.view_as(ArcbeamOptions)
        proto = pipeline_proto(pipeline, options)
        name = options.view_as(GoogleCloudOptions).job_name or script_name() or "beam"
        plan = plan_of(proto, ours, name=name, drain=self._is_drain)
        with tempfile.TemporaryDirectory(prefix="arcbeam-staging-") as folder:
            files = staged_by(options, Path(folder))
            spark = open_session(session_options(ours))
            if ignored := unheeded(spark, session_options(ours)):
                _LOG.warning("running on the active Spark session, which does not have %s", ", ".join(ignored))
            prelude = prelude_for(spark, options, files, _declared_outputs(pipeline), MainClasses.here())
        return ArcbeamResult(plan, Job(plan, ours, prelude))


def script_name() -> str:
    """The name of the script that this process runs, fit for a file name; "" where there is none, as in a notebook."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if not file:
        return ""
    path = Path(file)
    stem = path.resolve().parent.name if path.name == "__main__.py" else path.stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem)


def _declared_outputs(pipeline: Any) -> dict[str, tuple[str, ...]]:
    """The steps whose `with_outputs` lists their tags, with the tags: any other tag is a mistake."""
    declared = {}
    for applied in leaves(pipeline):
        outer = getattr(applied.parent, "transform", None)
        if isinstance(outer, core._MultiParDo) and outer._tags and not outer._allow_unknown_tags:
            declared[str(applied.full_label)] = tuple(map(str, outer._tags))
    return declared


class ArcbeamResult(PipelineResult):  # type: ignore[misc]  # Beam is untyped
    """A submitted job, running on a thread of its own.

    Attributes:
        job_id: unique.
        plan: what was made of the pipeline.
    """

    def __init__(self, plan: Plan, job: Job) -> None:
        super().__init__(PipelineState.RUNNING)
        self.job_id, self.plan, self._job = job.id, plan, job
        self._error: BaseException | None = None
        # SUBTLE: not the thread's `join`: one that Ctrl-C interrupts takes the thread for ended (Python 3.11).
        self._ended = threading.Event()
        threading.Thread(target=self._work, name=f"job-{job.id}", daemon=True).start()

    def _work(self) -> None:
        try:
            self._job.run()
            self._state = PipelineState.DONE
        except BaseException as e:
            self._error = e
            self._state = PipelineState.CANCELLED if self._job.cancelled else PipelineState.FAILED
        finally:
            self._ended.set()

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
            self._ended.wait(None if duration is None else duration / 1000)
        except KeyboardInterrupt:
            self.cancel()
            raise
        if self._error is not None and not self._job.cancelled:
            if isinstance(self._error, UserCodeError):
                # It holds the user's own traceback; ours, which would grow each time it is raised, helps nobody.
                raise self._error.with_traceback(None)
            raise self._error
        state: str = self.state
        return state

    def cancel(self) -> str:
        """Cancels the job's Spark jobs and waits for its end."""
        if not self._ended.is_set():
            self._job.cancel()
            self._ended.wait()
        state: str = self.state
        return state

    def metrics(self) -> JobMetrics:
        """User metrics; empty until the job ends."""
        return JobMetrics(self._job.metrics(), True)

    def monitoring_metrics(self) -> JobMetrics:
        """User and system metrics; empty until the job ends."""
        return JobMetrics(self._job.metrics(), False)
