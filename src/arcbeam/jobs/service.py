"""The Job API: translates between Beam's protos and `Jobs`.

Owns this translation, method by method, and nothing else. `lifecycle` owns the life of jobs; `guard` turns errors into
status codes. Built on the published protocol, not on the SDK's internal job service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from apache_beam.portability.api import beam_job_api_pb2_grpc as job_grpc
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.portability.api import endpoints_pb2, metrics_pb2
from google.protobuf import struct_pb2, timestamp_pb2

from arcbeam.errors import InvalidPipelineError
from arcbeam.jobs.artifacts import check_names, declared
from arcbeam.jobs.execution import JobState
from arcbeam.jobs.lifecycle import Jobs
from arcbeam.jobs.metrics import no_elements
from arcbeam.jobs.naming import script_of
from arcbeam.jobs.option_forms import described, plain, plain_of_bytes, stored
from arcbeam.jobs.registry import JobEvent, StateChanged
from arcbeam.model.urns import SECRETS_ANNOTATION
from arcbeam.secrets import declare
from arcbeam.store.log.requests import RequestKind

_SDK_DEFAULT_NAME = "job"
"""The name that the Python SDK gives every job. The option `job_name`, or the script, gives a better one."""


class JobServicer(job_grpc.JobServiceServicer):  # type: ignore[misc]  # Beam is untyped
    """Beam's JobService.

    Every method with a job's id raises JobNotFoundError if there is no such job.

    Args:
        jobs: all jobs.
        staging_endpoint: returns host:port of the artifact staging service for submitters. It is a function because
            the port is known only when the server is bound.
    """

    def __init__(self, jobs: Jobs, staging_endpoint: Callable[[], str]) -> None:
        self._jobs = jobs
        self._staging_endpoint = staging_endpoint

    def Prepare(self, request: Any, context: Any = None) -> Any:
        """Accept or refuse a pipeline. The answer contains the address for its files.

        Raises:
            SubmissionError: the pipeline cannot run.
        """
        if not request.HasField("pipeline"):
            raise InvalidPipelineError("the request contains no pipeline")
        declare(_secret_variables(request.pipeline))
        options = plain(request.pipeline_options)
        name = request.job_name
        if name in ("", _SDK_DEFAULT_NAME):
            name = str(options.get("job_name") or script_of(request.pipeline) or _SDK_DEFAULT_NAME)
        files = declared(request.pipeline)
        check_names(files)
        id = self._jobs.prepare(
            name,
            request.pipeline.SerializeToString(),
            options,
            stored(request.pipeline_options),
            needs_files=bool(files),
        )
        return job_pb.PrepareJobResponse(
            preparation_id=id,
            artifact_staging_endpoint=endpoints_pb2.ApiServiceDescriptor(url=self._staging_endpoint()),
            staging_session_token=id,
        )

    def Run(self, request: Any, context: Any = None) -> Any:
        """Start a prepared job; it has the id of its preparation.

        Raises:
            SubmissionError: it has already been started, or its files were not staged.
        """
        record = self._jobs.registry.job(request.preparation_id)
        self._jobs.run(record.id, plain_of_bytes(record.options))
        return job_pb.RunJobResponse(job_id=record.id)

    def GetJobs(self, request: Any, context: Any = None) -> Any:
        """Return all jobs, oldest first."""
        infos = [
            job_pb.JobInfo(
                job_id=record.id,
                job_name=record.name,
                pipeline_options=struct_pb2.Struct.FromString(record.options),
                state=_state(record.state),
            )
            for record in self._jobs.registry.jobs()
        ]
        return job_pb.GetJobsResponse(job_info=infos)

    def GetState(self, request: Any, context: Any = None) -> Any:
        """Return a job's state, and since when it has it."""
        record = self._jobs.registry.job(request.job_id)
        return _state_event(record.state, record.changed)

    def GetPipeline(self, request: Any, context: Any = None) -> Any:
        """Return a job's pipeline, as it was submitted."""
        pipeline = runner_pb.Pipeline.FromString(self._jobs.registry.pipeline(request.job_id))
        return job_pb.GetJobPipelineResponse(pipeline=pipeline)

    def Cancel(self, request: Any, context: Any = None) -> Any:
        """Cancel a job. Its state is CANCELLING until it has ended."""
        return job_pb.CancelJobResponse(state=_state(self._jobs.cancel(request.job_id)))

    def Drain(self, request: Any, context: Any = None) -> Any:
        """Drain a streaming job. Its state is DRAINING until it has ended.

        Raises:
            RequestRefusedError: the job is not running, or is a batch job.
        """
        self._jobs.ask(request.job_id, RequestKind.DRAIN)
        return job_pb.DrainJobResponse(state=_state(self._jobs.registry.job(request.job_id).state))

    def GetStateStream(self, request: Any, context: Any = None) -> Iterator[Any]:
        """Stream all states of a job, past and future, until its last one; none of a job that was never started."""
        for event in self._follow(request.job_id, True, context):
            assert isinstance(event, StateChanged)
            yield _state_event(event.state, event.at)

    def GetMessageStream(self, request: Any, context: Any = None) -> Iterator[Any]:
        """Stream all messages and states of a job in order, past and future; otherwise like `GetStateStream`."""
        for event in self._follow(request.job_id, False, context):
            if isinstance(event, StateChanged):
                yield job_pb.JobMessagesResponse(state_response=_state_event(event.state, event.at))
            else:
                yield job_pb.JobMessagesResponse(
                    message_response=job_pb.JobMessage(
                        message_id=str(event.seq),
                        time=datetime.fromtimestamp(event.at / 1e6, UTC).isoformat(timespec="milliseconds"),
                        importance=int(event.level),
                        message_text=event.text,
                    )
                )

    def _follow(self, id: str, states_only: bool, context: Any) -> Iterator[JobEvent]:
        if self._jobs.registry.job(id).state is JobState.STOPPED and len(self._jobs.registry.events(id, 0, True)) == 1:
            # SUBTLE: Python's submitter asks for the streams before it starts the job, and then keeps them with a limit
            # of five minutes. If they end, it asks again after the start, without a limit.
            return iter(())
        if context is None:
            return self._jobs.follow(id, states_only)
        # When a submitter disconnects, it wakes this thread, which must not wait for the job's end.
        context.add_callback(self._jobs.registry.wake)
        return self._jobs.follow(id, states_only, context.is_active)

    def GetJobMetrics(self, request: Any, context: Any = None) -> Any:
        """Return a job's current metrics, the user's and the system's: attempted ones, and committed ones.

        Before the first report, and for a job that fails before it, they are the counts of elements: 0.
        """
        metrics = self._jobs.metrics(request.job_id)
        attempted, committed = (
            [metrics_pb2.MonitoringInfo.FromString(info) for info in infos]
            for infos in (metrics.attempted, metrics.committed)
        )
        if not (attempted and committed):
            pipeline = runner_pb.Pipeline.FromString(self._jobs.registry.pipeline(request.job_id))
            nothing = no_elements(pipeline)
            attempted, committed = attempted or nothing, committed or nothing
        return job_pb.GetJobMetricsResponse(metrics=job_pb.MetricResults(attempted=attempted, committed=committed))

    def DescribePipelineOptions(self, request: Any, context: Any = None) -> Any:
        """Return the options of this runner."""
        return job_pb.DescribePipelineOptionsResponse(options=described())


def _secret_variables(pipeline: Any) -> set[str]:
    """Return the environment variables that a pipeline's transforms use as secrets."""
    found = (of.annotations.get(SECRETS_ANNOTATION, b"") for of in pipeline.components.transforms.values())
    return {name for names in found for name in names.decode().split(",") if name}


def _state(state: JobState) -> Any:
    return job_pb.JobState.Enum.Value(state.value)


def _state_event(state: JobState, at: int) -> Any:
    when = timestamp_pb2.Timestamp(seconds=at // 1_000_000, nanos=at % 1_000_000 * 1000)
    return job_pb.JobStateEvent(state=_state(state), timestamp=when)
