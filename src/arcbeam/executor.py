"""What the job service runs pipelines with. Part of the composition root, beside `runner`."""

from __future__ import annotations

import threading
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.pipeline_utils import merge_common_environments, merge_superset_dep_environments

from arcbeam.errors import InvalidPipelineError, JobCancelledError
from arcbeam.job import Job, session_options
from arcbeam.jobs.environments import embedded
from arcbeam.jobs.execution import FileKind, JobEvents, Level, Submission
from arcbeam.model.rows import BundleReport
from arcbeam.options import ArcbeamOptions
from arcbeam.spark.session.sessions import open_session
from arcbeam.spark.tasks.artifacts import Staged, prelude_for
from arcbeam.translate import translate, validate


class SparkExecutor:
    """An `arcbeam.jobs.execution.PipelineExecutor`: runs one submitted pipeline on Spark."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._job: Job | None = None

    def check(self, submission: Submission) -> None:
        """See `PipelineExecutor`."""
        PipelineOptions.from_dictionary(dict(submission.options)).view_as(ArcbeamOptions).check()
        validate(_proto(submission))

    def run(self, submission: Submission, events: JobEvents) -> None:
        """See `PipelineExecutor`."""
        options = PipelineOptions.from_dictionary(dict(submission.options))
        ours = options.view_as(ArcbeamOptions)
        plan = translate(_proto(submission), name=submission.name or "beam", fusion=not ours.no_fusion)
        prelude = prelude_for(open_session(session_options(ours)), options, _staged(submission))

        def reported(report: BundleReport) -> None:
            events.message(
                Level.DETAILED,
                f"{report.stage} shard {report.shard}: {report.elements_in} elements in {report.seconds:.2f} s",
            )

        with self._lock:
            if self._cancelled:
                raise JobCancelledError(f"{submission.job_id} was cancelled before it started")
            self._job = Job(plan, ours, prelude, reported)
        events.running()
        self._job.run()
        metrics = self._job.metrics()
        events.metrics(metrics, metrics)

    def cancel(self) -> None:
        """See `PipelineExecutor`."""
        with self._lock:
            self._cancelled = True
            job = self._job
        if job is not None:
            job.cancel()


def _proto(submission: Submission) -> Any:
    """The pipeline, with all its Python environments embedded."""
    data = embedded(submission.pipeline)
    try:
        proto = runner_pb.Pipeline.FromString(data)
    except Exception as e:
        raise InvalidPipelineError(f"not a pipeline proto: {e}") from e
    return merge_common_environments(merge_superset_dep_environments(proto))


def _staged(submission: Submission) -> tuple[Staged, ...]:
    artifacts = submission.artifacts
    if artifacts is None:
        return ()
    lists = (FileKind.REQUIREMENTS, FileKind.PYPI_REQUIREMENTS)
    wanted = [f for f in artifacts.files if f.kind is not FileKind.SUBMISSION_ENVIRONMENT]
    return tuple(Staged(f.name, f.path, f.kind in lists) for f in wanted)
