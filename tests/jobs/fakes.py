"""A fake executor whose behaviour each test chooses, and helpers for the tests of this folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from apache_beam.portability.api import beam_artifact_api_pb2_grpc as artifact_grpc
from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from apache_beam.portability.api import beam_job_api_pb2_grpc as job_grpc
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.errors import JobCancelledError
from arcbeam.jobs.execution import JobEvents, JobState, MetricsNow, Submission
from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.store.log.requests import RequestKind

WAIT = 20.0
"""Seconds after which a waiting test gives up. No test needs them."""

Behaviour = Callable[[Submission, JobEvents], JobState | None]


def succeed(submission: Submission, events: JobEvents) -> None:
    events.running()


@dataclass
class Fake:
    """Creates executors with a chosen behaviour, and records their submissions."""

    behave: Behaviour = succeed
    refuse: Callable[[Submission], None] = lambda submission: None
    cancelled: threading.Event = field(default_factory=threading.Event)
    ran: list[Submission] = field(default_factory=list)
    checked: list[Submission] = field(default_factory=list)
    cancel_error: Exception | None = None
    cancelling: Callable[[], None] | None = None
    ending: Callable[[threading.Event], None] | None = None
    resumable: bool = False
    suspended: bool = False
    requested: list[tuple[str, str]] = field(default_factory=list)
    answer: Callable[[], None] = lambda: None
    now: MetricsNow | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    snapshot: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Executor:
        return Executor(self)

    def until_cancelled(self, submission: Submission, events: JobEvents) -> None:
        """Run until `cancel`: a behaviour."""
        events.running()
        assert self.cancelled.wait(WAIT)
        raise JobCancelledError("interrupted")


class Executor:
    def __init__(self, fake: Fake) -> None:
        self._fake = fake

    def check(self, submission: Submission) -> None:
        self._fake.checked.append(submission)
        self._fake.refuse(submission)

    def resumable_state(self, submission: Submission) -> JobState | None:
        state = JobState.STOPPED if self._fake.suspended else JobState.RUNNING
        return state if self._fake.resumable else None

    def run(self, submission: Submission, events: JobEvents) -> JobState | None:
        self._fake.ran.append(submission)
        return self._fake.behave(submission, events)

    def ask(self, what: RequestKind, savepoint: str = "") -> str:
        self._fake.requested.append((what, savepoint))
        self._fake.answer()
        return f"/jobs/savepoints/{savepoint or 'named'}"

    def status(self) -> Mapping[str, Any]:
        self._fake.answer()
        return self._fake.status

    def snapshot(self, whole: bool = True) -> Mapping[str, Any]:
        return self._fake.snapshot

    def metrics(self) -> MetricsNow | None:
        return self._fake.now

    def end(self, again: threading.Event) -> None:
        if self._fake.ending is None:
            self.cancel()
        else:
            self._fake.ending(again)

    def cancel(self) -> None:
        if self._fake.cancel_error:
            raise self._fake.cancel_error
        (self._fake.cancelling or self._fake.cancelled.set)()


@dataclass
class Client:
    """Stubs of one channel."""

    jobs: Any
    artifacts: Any
    channel: Any

    def prepare(self, pipeline: Any = None, name: str = "words", **options: Any) -> Any:
        request = job_pb.PrepareJobRequest(job_name=name, pipeline=pipeline or a_pipeline())
        request.pipeline_options.update({f"beam:option:{key}:v1": value for key, value in options.items()})
        return self.jobs.Prepare(request, timeout=WAIT)

    def run(self, pipeline: Any = None, **options: Any) -> str:
        prepared = self.prepare(pipeline, **options)
        id: str = self.jobs.Run(job_pb.RunJobRequest(preparation_id=prepared.preparation_id), timeout=WAIT).job_id
        return id

    def states(self, id: str) -> list[str]:
        """Return all states until the job's end."""
        stream = self.jobs.GetStateStream(job_pb.GetJobStateRequest(job_id=id), timeout=WAIT)
        return [job_pb.JobState.Enum.Name(event.state) for event in stream]

    def messages(self, id: str) -> list[Any]:
        """Return the message stream until the job's end."""
        return list(self.jobs.GetMessageStream(job_pb.JobMessagesRequest(job_id=id), timeout=WAIT))

    def errors(self, id: str) -> list[str]:
        level = job_pb.JobMessage.JOB_MESSAGE_ERROR
        texts = [m.message_response for m in self.messages(id) if m.HasField("message_response")]
        return [text.message_text for text in texts if text.importance == level]


@contextmanager
def connected(channel: Any) -> Iterator[Client]:
    with channel:
        yield Client(job_grpc.JobServiceStub(channel), artifact_grpc.ArtifactStagingServiceStub(channel), channel)


@contextmanager
def serving(folder: Path, fake: Fake, **settings: Any) -> Iterator[tuple[JobServer, Client]]:
    server = JobServer(ServerSettings(folder, **settings), fake)
    try:
        with connected(grpc.insecure_channel(f"localhost:{server.port}")) as client:
            yield server, client
    finally:
        fake.cancelled.set()
        server.stop(grace=WAIT)


def a_pipeline(*dependencies: Any) -> Any:
    """Return a pipeline of one transform, in an environment with these dependencies."""
    pipeline = runner_pb.Pipeline(root_transform_ids=["t"])
    pipeline.components.transforms["t"].unique_name = "Create"
    pipeline.components.transforms["t"].environment_id = "e"
    pipeline.components.environments["e"].urn = "beam:env:embedded_python:v1"
    pipeline.components.environments["e"].dependencies.extend(dependencies)
    return pipeline


def artifact(path: Path, name: str, sha256: str = "") -> Any:
    """Return a file to be staged under a name."""
    return runner_pb.ArtifactInformation(
        type_urn="beam:artifact:type:file:v1",
        type_payload=runner_pb.ArtifactFilePayload(path=str(path), sha256=sha256).SerializeToString(),
        role_urn="beam:artifact:role:staging_to:v1",
        role_payload=runner_pb.ArtifactStagingToRolePayload(staged_name=name).SerializeToString(),
    )
