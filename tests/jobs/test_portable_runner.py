"""The Python SDK's own submitter with the server: PortableRunner, its staging, its result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
import pytest
from apache_beam.metrics import monitoring_infos
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.errors import Unsupported, UnsupportedPipelineError, UserCodeError
from arcbeam.jobs.environments import runnable
from arcbeam.jobs.execution import JobEvents, JobState, Level, StagedFileKind, Submission
from tests.jobs.fakes import WAIT, Fake, serving

pytestmark = pytest.mark.contract("API-02")


@pytest.fixture
def submit(tmp_path: Path, fake: Fake) -> Iterator[Callable[..., Any]]:
    with serving(tmp_path / "jobs", fake) as (server, _):

        def submit(*flags: str) -> Any:
            options = PipelineOptions(
                [
                    "--runner=PortableRunner",
                    f"--job_endpoint=localhost:{server.port}",
                    "--experiments=disable_logging_submission_environment",
                    *flags,
                ]
            )
            p = beam.Pipeline(options=options)
            _ = p | beam.Create([1, 2]) | "Double" >> beam.Map(lambda x: 2 * x)
            return p.run()

        yield submit


def test_submitted_job_has_metrics(submit: Callable[..., Any], fake: Fake) -> None:
    info = monitoring_infos.int64_user_counter("ns", "words", 5, ptransform="Double")

    def behave(submission: Submission, events: JobEvents) -> None:
        events.running()
        events.message(Level.BASIC, "working")
        events.metrics([info.SerializeToString()], [info.SerializeToString()])

    fake.behave = behave
    result = submit("--job_name=nightly", "--shards=7", "--spark_conf=a=b", "--spark_conf=c=d")
    assert result.wait_until_finish() == "DONE"
    assert result.state == "DONE"
    (counter,) = result.metrics().query(MetricsFilter().with_name("words"))["counters"]
    assert (counter.attempted, counter.committed) == (5, 5)
    (submission,) = fake.ran
    assert submission.name == "nightly"
    options = PipelineOptions.from_dictionary(dict(submission.options)).get_all_options()
    assert options["shards"] == 7
    assert options["spark_conf"] == ["a=b", "c=d"]
    rewritten = runner_pb.Pipeline.FromString(runnable(submission.pipeline))
    assert any("Double" in t.unique_name for t in rewritten.components.transforms.values())


@pytest.mark.contract("API-05")
def test_job_may_take_longer_than_the_limit_of_calls(submit: Callable[..., Any], fake: Fake) -> None:
    def behave(submission: Submission, events: JobEvents) -> None:
        events.running()
        time.sleep(1.5)

    fake.behave = behave
    assert submit("--job_server_timeout=1").wait_until_finish() == "DONE"


def test_dependencies_are_staged(submit: Callable[..., Any], fake: Fake, tmp_path: Path) -> None:
    kinds: dict[StagedFileKind, bytes] = {}

    def behave(submission: Submission, events: JobEvents) -> None:
        assert submission.artifacts is not None
        kinds.update({file.kind: file.path.read_bytes() for file in submission.artifacts.files})

    fake.behave = behave
    (tmp_path / "words.txt").write_bytes(b"some words")
    (tmp_path / "requirements.txt").write_bytes(b"attrs\n")
    submit(
        "--save_main_session",
        "--pickle_library=dill" if _has("dill") else "--pickle_library=cloudpickle",
        f"--files_to_stage={tmp_path / 'words.txt'}",
        f"--requirements_file={tmp_path / 'requirements.txt'}",
        "--requirements_cache=skip",
    ).wait_until_finish()
    assert kinds[StagedFileKind.FILE] == b"some words"
    assert b"attrs" in kinds[StagedFileKind.REQUIREMENTS]


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


@pytest.mark.contract("API-06")
def test_user_error_is_raised_at_submitter(submit: Callable[..., Any], fake: Fake) -> None:
    def fail(submission: Submission, events: JobEvents) -> None:
        events.running()
        raise UserCodeError("Double", "ValueError('x')", "Traceback: line 7 in double")

    fake.behave = fail
    with pytest.raises(RuntimeError, match=r"(?s)ValueError\('x'\) \[while running 'Double'\].*line 7 in double"):
        submit().wait_until_finish()


def test_cancel(submit: Callable[..., Any], fake: Fake) -> None:
    fake.behave = fake.until_cancelled
    result = submit()
    result.cancel()
    assert fake.cancelled.is_set()
    with pytest.raises(RuntimeError, match="CANCELLED"):
        result.wait_until_finish()
    assert result.state == "CANCELLED"


@pytest.mark.contract("END-02", "END-03", "API-06")
@pytest.mark.parametrize("end", [JobState.DRAINED, JobState.STOPPED])
def test_drained_or_suspended_job_ends_result(
    submit: Callable[..., Any], fake: Fake, caplog: pytest.LogCaptureFixture, end: JobState
) -> None:
    requested = threading.Event()
    fake.answer = requested.set

    def run(submission: Submission, events: JobEvents) -> JobState:
        events.running()
        assert requested.wait(WAIT)
        if end is JobState.DRAINED:
            events.turned(JobState.DRAINING)
        return end

    fake.behave = run
    result = submit()
    if end is JobState.DRAINED:
        # With the SDK's own stub: its result has no method for it.
        result._job_service.Drain(job_pb.DrainJobRequest(job_id=result._job_id), timeout=WAIT)
    else:
        requested.set()
    # For the SDK each final state except DONE is a failure. The error has the state.
    with caplog.at_level("INFO"), pytest.raises(RuntimeError, match=f"failed in state {end}"):
        result.wait_until_finish()
    assert result.state == end
    if end is JobState.DRAINED:  # the SDK reads messages to the end only in final states
        logged = [record.getMessage().rpartition(" ")[2] for record in caplog.records if "state changed" in record.msg]
        assert logged[-2:] == ["DRAINING", "DRAINED"]


@pytest.mark.contract("API-04")
def test_refusal_is_raised_at_submission(submit: Callable[..., Any], fake: Fake) -> None:
    def refuse(submission: Submission) -> None:
        raise UnsupportedPipelineError((Unsupported("Double", "a cloud"), Unsupported("Create", "a moon")))

    fake.refuse = refuse
    with pytest.raises(grpc.RpcError, match=r"(?s)Double: a cloud.*Create: a moon"):
        submit()
