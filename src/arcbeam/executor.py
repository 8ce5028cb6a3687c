"""What the job service runs pipelines with. Part of the composition root, beside `runner`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, TypeOptions
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.errors import ArcbeamError, InvalidPipelineError, JobCancelledError
from arcbeam.job import Follower, Job, session_options
from arcbeam.jobs.environments import embedded
from arcbeam.jobs.execution import FileKind, JobEvents, Level, Submission
from arcbeam.model.rows import BundleReport
from arcbeam.options import ArcbeamOptions
from arcbeam.spark.session.sessions import open_session, unheeded
from arcbeam.spark.tasks.artifacts import Staged, prelude_for
from arcbeam.translate import validate
from arcbeam.translate.proto import merged, pipeline_proto, plan_of

_LOG = logging.getLogger("arcbeam")


def start(options: Mapping[str, Any]) -> None:
    """Opens the session that the jobs of this process run on, and has its workers import what all jobs need.

    Args:
        options: pipeline options, by plain names.

    Raises:
        SetupError: there is no Spark to run on.
    """
    ours = PipelineOptions.from_dictionary(dict(options)).view_as(ArcbeamOptions)
    open_session(session_options(ours))
    p = beam.Pipeline()
    _ = p | beam.Create([None])
    try:
        Job(plan_of(pipeline_proto(p), ours, name="start"), ours).run()
    except ArcbeamError as error:
        # Not the end: a job says more of what it is about, and to the one whom it concerns.
        _LOG.warning("an empty pipeline does not run on this session: %s", error)


class SparkExecutor:
    """An `arcbeam.jobs.execution.PipelineExecutor`: runs one submitted pipeline on Spark."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._job: Job | None = None

    def check(self, submission: Submission) -> None:
        """See `PipelineExecutor`."""
        options = PipelineOptions.from_dictionary(dict(submission.options))
        options.view_as(ArcbeamOptions).check()
        validate(_proto(submission), allow_non_deterministic_keys=_any_keys(options))

    def run(self, submission: Submission, events: JobEvents) -> None:
        """See `PipelineExecutor`."""
        options = PipelineOptions.from_dictionary(dict(submission.options))
        ours = options.view_as(ArcbeamOptions)
        plan = plan_of(_proto(submission), ours, name=submission.name or "beam")
        spark = open_session(session_options(ours))
        if ignored := unheeded(spark, session_options(ours)):
            events.message(
                Level.WARNING,
                f"all jobs of this server run on one Spark session, which does not have {', '.join(ignored)}; "
                "give such options to the server: arcbeam serve -- OPTIONS",
            )
        prelude = prelude_for(spark, options, _staged(submission))

        with self._lock:
            if self._cancelled:
                raise JobCancelledError(f"{submission.job_id} was cancelled before it started")
            self._job = Job(plan, ours, prelude, _Follower(events))
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


class _Follower(Follower):
    """Tells a server's jobs what happens."""

    def __init__(self, events: JobEvents) -> None:
        self._events = events

    def reported(self, report: BundleReport) -> None:
        """See `Follower`."""
        self._events.message(
            Level.DETAILED,
            f"{report.stage} shard {report.shard}: {report.elements_in} elements in {report.seconds:.2f} s",
        )


def _any_keys(options: PipelineOptions) -> bool:
    return bool(options.view_as(TypeOptions).allow_non_deterministic_key_coders)


def _proto(submission: Submission) -> Any:
    """The pipeline, with all its Python environments embedded."""
    data = embedded(submission.pipeline)
    try:
        proto = runner_pb.Pipeline.FromString(data)
    except Exception as e:
        raise InvalidPipelineError(f"not a pipeline proto: {e}") from e
    return merged(proto)


def _staged(submission: Submission) -> tuple[Staged, ...]:
    artifacts = submission.artifacts
    if artifacts is None:
        return ()
    lists = (FileKind.REQUIREMENTS, FileKind.PYPI_REQUIREMENTS)
    wanted = [f for f in artifacts.files if f.kind is not FileKind.SUBMISSION_ENVIRONMENT]
    return tuple(Staged(f.name, f.path, f.kind in lists) for f in wanted)
