"""The Job API over real gRPC."""

from __future__ import annotations

import threading
from datetime import datetime
from pathlib import Path

import grpc
import pytest
from apache_beam.metrics import monitoring_infos
from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.errors import InvalidPipelineError, JobFailedError, Unsupported, UnsupportedPipelineError, UserCodeError
from arcbeam.jobs.client import JobClient
from arcbeam.jobs.controlservice import request_savepoint
from arcbeam.jobs.execution import JobEvents, JobState, Level, MetricsNow, Submission
from arcbeam.jobs.service import JobServicer
from arcbeam.store.log.requests import RequestKind
from tests.golden import check_message
from tests.jobs.fakes import WAIT, Client, Fake, a_pipeline, serving

pytestmark = pytest.mark.contract("API-02")

STATE = job_pb.JobState


def refused(error: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str]:
    return error.value.code(), error.value.details()


def test_all_methods_of_protocol_exist() -> None:
    methods = job_pb.DESCRIPTOR.services_by_name["JobService"].methods
    assert {method.name for method in methods} <= set(vars(JobServicer))


def test_job_runs_from_prepare_to_done(client: Client, fake: Fake) -> None:
    pipeline = a_pipeline()
    prepared = client.prepare(pipeline, shards="4", ratio=0.5, workers=3.0, files=["a", "b"], no_fusion=True)
    assert prepared.staging_session_token == prepared.preparation_id
    assert prepared.artifact_staging_endpoint.url.startswith("localhost:")
    assert client.jobs.GetState(job_pb.GetJobStateRequest(job_id=prepared.preparation_id)).state == STATE.STOPPED
    id = client.jobs.Run(job_pb.RunJobRequest(preparation_id=prepared.preparation_id)).job_id
    assert client.states(id) == ["STOPPED", "STARTING", "RUNNING", "DONE"]
    (submission,) = fake.ran
    assert submission.name == "words"
    assert runner_pb.Pipeline.FromString(submission.pipeline) == pipeline
    assert submission.options == {"shards": "4", "ratio": 0.5, "workers": 3, "files": ["a", "b"], "no_fusion": True}
    assert type(submission.options["workers"]) is int
    event = client.jobs.GetState(job_pb.GetJobStateRequest(job_id=id))
    assert event.state == STATE.DONE
    assert event.timestamp.seconds > 0
    assert client.jobs.GetPipeline(job_pb.GetJobPipelineRequest(job_id=id)).pipeline == pipeline


def test_job_name_comes_from_options(client: Client) -> None:
    """The Python SDK names every job "job"; its option has a better name."""
    client.prepare(name="job", job_name="nightly")
    client.prepare(name="job")
    client.prepare(name="", job_name="weekly")
    client.prepare(name="own", job_name="other")
    infos = client.jobs.GetJobs(job_pb.GetJobsRequest()).job_info
    assert [info.job_name for info in infos] == ["nightly", "job", "weekly", "own"]
    assert infos[0].pipeline_options["beam:option:job_name:v1"] == "nightly"
    assert {info.state for info in infos} == {STATE.STOPPED}


def test_variable_that_a_transform_declares_is_masked(client: Client, fake: Fake) -> None:
    pipeline = a_pipeline()
    transform = pipeline.components.transforms["read"]
    transform.annotations["arcbeam:secret_variables"] = b"KAFKA_KEY,OTHER"
    given = ["spark.executorEnv.KAFKA_KEY=pl4nted", "spark.executorEnv.HARMLESS=1"]
    id = client.run(pipeline, spark_conf=given)
    (info,) = client.jobs.GetJobs(job_pb.GetJobsRequest()).job_info
    assert "pl4nted" not in str(info)
    assert "HARMLESS=1" in str(info)
    assert client.states(id)[-1] == "DONE"
    assert sorted(fake.ran[0].options["spark_conf"]) == sorted(given)


def test_messages_and_states_are_in_order(client: Client, fake: Fake) -> None:
    def behave(submission: Submission, events: JobEvents) -> None:
        events.message(Level.DETAILED, "before")
        events.running()
        events.message(Level.WARNING, "after")

    fake.behave = behave
    id = client.run()
    seen = [
        m.message_response.message_text if m.HasField("message_response") else STATE.Enum.Name(m.state_response.state)
        for m in client.messages(id)
    ]
    assert seen == ["STOPPED", "STARTING", "before", "RUNNING", "after", "DONE"]
    warning = client.messages(id)[4].message_response
    assert warning.importance == job_pb.JobMessage.JOB_MESSAGE_WARNING
    assert datetime.fromisoformat(warning.time).tzinfo is not None


def test_streams_continue_while_job_runs(client: Client, fake: Fake) -> None:
    fake.behave = fake.until_cancelled
    id = client.run()
    states = client.jobs.GetStateStream(job_pb.GetJobStateRequest(job_id=id), timeout=WAIT)
    assert [next(states).state for _ in range(3)] == [STATE.STOPPED, STATE.STARTING, STATE.RUNNING]
    cancelled = client.jobs.Cancel(job_pb.CancelJobRequest(job_id=id))
    assert cancelled.state in (STATE.CANCELLING, STATE.CANCELLED)
    assert [event.state for event in states] == [STATE.CANCELLING, STATE.CANCELLED]


def test_streams_of_a_prepared_job_end(client: Client, fake: Fake) -> None:
    id = client.prepare().preparation_id
    assert list(client.jobs.GetStateStream(job_pb.GetJobStateRequest(job_id=id), timeout=WAIT)) == []
    assert list(client.jobs.GetMessageStream(job_pb.JobMessagesRequest(job_id=id), timeout=WAIT)) == []


def test_many_messages_are_streamed(client: Client, fake: Fake) -> None:
    def behave(submission: Submission, events: JobEvents) -> None:
        for number in range(1500):
            events.message(Level.BASIC, str(number))

    fake.behave = behave
    texts = [m.message_response.message_text for m in client.messages(client.run())]
    assert [text for text in texts if text] == [str(number) for number in range(1500)]


@pytest.mark.contract("API-06")
def test_user_error_reaches_submitter(client: Client, fake: Fake) -> None:
    def fail(submission: Submission, events: JobEvents) -> None:
        raise UserCodeError("Parse", "ValueError('x')", "Traceback: line 7\n" * 2000)

    fake.behave = fail
    id = client.run()
    assert client.states(id)[-1] == "FAILED"
    (text,) = client.errors(id)
    assert "ValueError('x') [while running 'Parse']" in text
    assert text.count("line 7") == 2000, "a message is not cut"


def test_metrics(client: Client, fake: Fake) -> None:
    attempted = monitoring_infos.int64_user_counter("ns", "words", 5, ptransform="Count")
    committed = monitoring_infos.int64_user_counter("ns", "words", 4, ptransform="Count")

    def behave(submission: Submission, events: JobEvents) -> None:
        events.metrics([attempted.SerializeToString()], [committed.SerializeToString()])

    fake.behave = behave
    id = client.run()
    client.states(id)
    metrics = client.jobs.GetJobMetrics(job_pb.GetJobMetricsRequest(job_id=id)).metrics
    assert list(metrics.attempted) == [attempted]
    assert list(metrics.committed) == [committed]


def test_metrics_are_present_before_there_are_any(client: Client) -> None:
    """The SDKs of Go and Java read the parts of the field without a check."""
    id = client.run()
    client.states(id)
    response = client.jobs.GetJobMetrics(job_pb.GetJobMetricsRequest(job_id=id))
    assert response.HasField("metrics")
    assert list(response.metrics.attempted) == list(response.metrics.committed) == []


@pytest.mark.parametrize("fails", [False, True])
def test_job_without_reports_has_counts_of_elements(client: Client, fake: Fake, fails: bool) -> None:
    def behave(submission: Submission, events: JobEvents) -> None:
        if fails:
            raise UserCodeError("Parse", "ValueError('x')", "")

    fake.behave = behave
    pipeline = runner_pb.Pipeline()
    for id in ("one", "two"):
        pipeline.components.pcollections[id].unique_name = id
    zero = [
        monitoring_infos.int64_counter(monitoring_infos.ELEMENT_COUNT_URN, 0, labels={"PCOLLECTION": id})
        for id in ("one", "two")
    ]
    id = client.run(pipeline=pipeline)
    client.states(id)
    metrics = client.jobs.GetJobMetrics(job_pb.GetJobMetricsRequest(job_id=id)).metrics
    assert list(metrics.attempted) == list(metrics.committed) == zero


def test_job_before_its_first_commit_has_attempted_metrics(client: Client, fake: Fake) -> None:
    attempted = monitoring_infos.int64_user_counter("ns", "words", 5, ptransform="Count")
    fake.behave = lambda submission, events: events.metrics([attempted.SerializeToString()], [])
    pipeline = runner_pb.Pipeline()
    pipeline.components.pcollections["one"].unique_name = "one"
    id = client.run(pipeline=pipeline)
    client.states(id)
    metrics = client.jobs.GetJobMetrics(job_pb.GetJobMetricsRequest(job_id=id)).metrics
    assert list(metrics.attempted) == [attempted]
    assert [each.labels["PCOLLECTION"] for each in metrics.committed] == ["one"]


def test_options_are_described(client: Client) -> None:
    found = client.jobs.DescribePipelineOptions(job_pb.DescribePipelineOptionsRequest()).options
    options = {option.name: option for option in found}
    types = job_pb.PipelineOptionType
    assert options["shards"].type == types.INTEGER
    assert options["no_fusion"].type == types.BOOLEAN
    assert options["spark_conf"].type == types.ARRAY
    assert options["bundle_seconds"].type == types.NUMBER
    assert options["bundle_seconds"].default_value == "30.0"
    assert options["spark_master"].type == types.STRING
    assert all(option.description for option in found)
    assert {option.default_value for option in found if option.type == types.BOOLEAN} == {""}, "a flag can only be set"
    assert options["shards"].default_value == "", "the number of shards depends on the cluster"


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Run", job_pb.RunJobRequest(preparation_id="j-9")),
        ("GetState", job_pb.GetJobStateRequest(job_id="j-9")),
        ("GetPipeline", job_pb.GetJobPipelineRequest(job_id="j-9")),
        ("Cancel", job_pb.CancelJobRequest(job_id="j-9")),
        ("Drain", job_pb.DrainJobRequest(job_id="j-9")),
        ("GetStateStream", job_pb.GetJobStateRequest(job_id="j-9")),
        ("GetMessageStream", job_pb.JobMessagesRequest(job_id="j-9")),
        ("GetJobMetrics", job_pb.GetJobMetricsRequest(job_id="j-9")),
    ],
)
def test_unknown_job_id_is_not_found(client: Client, method: str, request_: object) -> None:
    def ask() -> None:
        answer = getattr(client.jobs, method)(request_, timeout=WAIT)
        if method.endswith("Stream"):
            list(answer)

    with pytest.raises(grpc.RpcError) as error:
        ask()
    code, details = refused(error)
    assert code is grpc.StatusCode.NOT_FOUND
    assert "'j-9'" in details


@pytest.mark.contract("END-02")
def test_drain(client: Client, fake: Fake) -> None:
    taken = threading.Event()
    fake.answer = taken.set

    def drain(submission: Submission, events: JobEvents) -> JobState:
        events.running()
        assert taken.wait(WAIT)
        events.turned(JobState.DRAINING)
        return JobState.DRAINED

    fake.behave = drain
    id = client.run()
    states = job_pb.JobState
    answer = client.jobs.Drain(job_pb.DrainJobRequest(job_id=id), timeout=WAIT).state
    assert answer in (states.RUNNING, states.DRAINING, states.DRAINED)
    assert client.states(id)[-3:] == ["RUNNING", "DRAINING", "DRAINED"]
    assert fake.requested == [("drain", "")]


def test_failed_job_cannot_be_drained(client: Client, fake: Fake) -> None:
    done = client.run()
    client.states(done)
    # A repeated request succeeds: nothing is left in the job.
    assert client.jobs.Drain(job_pb.DrainJobRequest(job_id=done)).state == job_pb.JobState.DONE

    def fail(submission: Submission, events: JobEvents) -> None:
        raise JobFailedError("no")

    fake.behave = fail
    id = client.run()
    client.states(id)
    with pytest.raises(grpc.RpcError) as error:
        client.jobs.Drain(job_pb.DrainJobRequest(job_id=id))
    code, details = refused(error)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    check_message("server-refuses-failed-job", details, job=id)


@pytest.mark.parametrize("what", [RequestKind.SAVEPOINT, RequestKind.SUSPEND])
def test_control_service_takes_savepoint_and_suspension(client: Client, fake: Fake, what: RequestKind) -> None:
    fake.behave = fake.until_cancelled
    id = client.run()
    assert request_savepoint(client.channel, what, id, "safe", timeout=WAIT) == "/jobs/savepoints/safe"
    assert fake.requested == [(what, "safe")]
    with pytest.raises(grpc.RpcError) as error:
        request_savepoint(client.channel, what, "j-9", "", timeout=WAIT)
    assert refused(error)[0] is grpc.StatusCode.NOT_FOUND


def test_running_job_has_metrics(client: Client, fake: Fake) -> None:
    fake.behave = fake.until_cancelled
    info = monitoring_infos.int64_user_counter("ns", "words", 5, ptransform="Count")
    fake.now = MetricsNow([info.SerializeToString()], [])
    metrics = client.jobs.GetJobMetrics(job_pb.GetJobMetricsRequest(job_id=client.run())).metrics
    assert (list(metrics.attempted), list(metrics.committed)) == ([info], [])


def test_malformed_request_is_refused(client: Client) -> None:
    prepare = client.channel.unary_unary("/org.apache.beam.model.job_management.v1.JobService/Prepare")
    with pytest.raises(grpc.RpcError) as error:
        prepare(b"\x0a\xff\xff\xff no proto at all", timeout=WAIT)
    code, details = refused(error)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details


def test_request_without_pipeline_is_refused(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as error:
        client.jobs.Prepare(job_pb.PrepareJobRequest(job_name="empty"))
    assert refused(error)[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_invalid_pipeline_is_refused(client: Client, fake: Fake) -> None:
    def refuse(submission: Submission) -> None:
        if not runner_pb.Pipeline.FromString(submission.pipeline).root_transform_ids:
            raise InvalidPipelineError("the pipeline has no transforms", "apply one")

    fake.refuse = refuse
    with pytest.raises(grpc.RpcError) as error:
        client.jobs.Prepare(job_pb.PrepareJobRequest(job_name="empty", pipeline=runner_pb.Pipeline()))
    assert refused(error) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "the pipeline has no transforms\n  what to do: apply one",
    )


@pytest.mark.contract("API-04")
@pytest.mark.parametrize("count", [2, 5000])
def test_unsupported_pipeline_is_refused(client: Client, fake: Fake, count: int) -> None:
    def refuse(submission: Submission) -> None:
        raise UnsupportedPipelineError(tuple(Unsupported(f"Step {i} é", "a cloud") for i in range(count)))

    fake.refuse = refuse
    with pytest.raises(grpc.RpcError) as error:
        client.prepare()
    code, details = refused(error)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert str(count) in details
    assert "Step 0 é: a cloud" in details
    assert "Step 1 é: a cloud" in details
    assert ("more characters in the server's log" in details) == (count == 5000)
    assert client.jobs.GetJobs(job_pb.GetJobsRequest()).job_info == []


@pytest.mark.parametrize("surprise", [RuntimeError("surprise"), SystemExit(1)])
def test_unexpected_error_is_an_answer(client: Client, fake: Fake, surprise: BaseException) -> None:
    def refuse(submission: Submission) -> None:
        raise surprise

    fake.refuse = refuse
    with pytest.raises(grpc.RpcError) as error:
        client.prepare()
    assert refused(error) == (grpc.StatusCode.INTERNAL, repr(surprise))


def test_jobs_run_concurrently(client: Client, fake: Fake) -> None:
    fake.behave = fake.until_cancelled
    waiting = client.run()
    fake.behave = lambda submission, events: None
    assert client.states(client.run())[-1] == "DONE"
    assert client.jobs.GetState(job_pb.GetJobStateRequest(job_id=waiting)).state in (STATE.STARTING, STATE.RUNNING)


def test_answers_survive_restart(tmp_path: Path, fake: Fake) -> None:
    info = monitoring_infos.int64_user_counter("ns", "words", 5, ptransform="Count")

    def behave(submission: Submission, events: JobEvents) -> None:
        events.running()
        events.message(Level.BASIC, "hello")
        events.metrics([info.SerializeToString()], [info.SerializeToString()])

    def answers(client: Client, id: str) -> list[object]:
        return [
            client.jobs.GetJobs(job_pb.GetJobsRequest()),
            client.jobs.GetState(job_pb.GetJobStateRequest(job_id=id)),
            client.jobs.GetPipeline(job_pb.GetJobPipelineRequest(job_id=id)),
            client.jobs.GetJobMetrics(job_pb.GetJobMetricsRequest(job_id=id)),
            client.messages(id),
        ]

    fake.behave = behave
    with serving(tmp_path, fake) as (_, client):
        id = client.run(shards="3")
        client.states(id)
        before = answers(client, id)
    with serving(tmp_path, fake) as (_, client):
        assert answers(client, id) == before


def test_list_has_the_state_and_times_of_each_job(client: Client, fake: Fake) -> None:
    def suspend(submission: Submission, events: JobEvents) -> JobState:
        events.running()
        return JobState.STOPPED

    prepared = client.prepare()
    done = client.run()
    client.states(done)
    fake.behave = suspend
    suspended = client.run()
    client.states(suspended)
    fake.behave = fake.until_cancelled
    running = client.run()
    with JobClient(prepared.artifact_staging_endpoint.url) as jobs:
        found = {each.id: each for each in jobs.jobs().jobs}
        assert [each.id for each in jobs.jobs(running=True).jobs] == [running]
    assert {id: each.state for id, each in found.items() if id != running} == {
        prepared.preparation_id: "STOPPED",
        done: "DONE",
        suspended: "STOPPED",
    }
    for id in (done, suspended):
        started, ended = found[id].started, found[id].ended
        assert started is not None
        assert ended is not None
        assert started <= ended
    assert found[running].ended is None
    assert (found[prepared.preparation_id].started, found[prepared.preparation_id].ended) == (None, None)
