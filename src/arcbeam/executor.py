"""What the job service runs pipelines with. Part of the composition root, beside `runner`."""

from __future__ import annotations

import threading

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.pipeline_utils import merge_common_environments, merge_superset_dep_environments

from arcbeam.errors import InvalidPipelineError, JobCancelledError
from arcbeam.job import Job
from arcbeam.jobs.environments import embedded
from arcbeam.jobs.execution import JobEvents, Level, Submission
from arcbeam.model.plan import Plan
from arcbeam.model.rows import TaskReport
from arcbeam.options import ArcbeamOptions
from arcbeam.translate import translate


class SparkExecutor:
    """An `arcbeam.jobs.execution.PipelineExecutor`: runs one submitted pipeline on Spark."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._job: Job | None = None

    def check(self, submission: Submission) -> None:
        """See `PipelineExecutor`."""
        self._plan(submission)

    def run(self, submission: Submission, events: JobEvents) -> None:
        """See `PipelineExecutor`."""
        plan = self._plan(submission)

        def reported(report: TaskReport) -> None:
            events.message(
                Level.DETAILED,
                f"{report.stage} shard {report.shard}: {report.elements_in} elements in {report.seconds:.2f} s",
            )

        with self._lock:
            if self._cancelled:
                raise JobCancelledError(f"{submission.job_id} was cancelled before it started")
            self._job = Job(plan, _options(submission), on_report=reported)
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

    @staticmethod
    def _plan(submission: Submission) -> Plan:
        data = embedded(submission.pipeline)
        try:
            proto = runner_pb.Pipeline.FromString(data)
        except Exception as e:
            raise InvalidPipelineError(f"not a pipeline proto: {e}") from e
        proto = merge_common_environments(merge_superset_dep_environments(proto))
        return translate(proto, name=submission.name or "beam", fusion=not _options(submission).no_fusion)


def _options(submission: Submission) -> ArcbeamOptions:
    options: ArcbeamOptions = PipelineOptions.from_dictionary(dict(submission.options)).view_as(ArcbeamOptions)
    return options
