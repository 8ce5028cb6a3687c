"""A small client of the Job API, for the command line.

Owns the calls, and turning status codes back into errors of ours. Works against any Beam job server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from apache_beam.portability.api import beam_job_api_pb2_grpc as job_grpc

from arcbeam.errors import ArcbeamError, JobFailedError, JobNotFoundError, SetupError, SubmissionError
from arcbeam.jobs.controlservice import asked_of, status_of
from arcbeam.store.log.requests import Asked

_SECONDS = 30.0
"""That a call may take."""

_TERMINAL = frozenset({"DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED"})

_NOT_RUNNING = _TERMINAL | {"STOPPED"}


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job in a list.

    Attributes:
        id: unique.
        name: what the user calls it.
        state: Beam's name of it.
        started: when it was started; None if it has not been.
        ended: when it ended, or was suspended last; None if it has not been.
    """

    id: str
    name: str
    state: str
    started: datetime | None
    ended: datetime | None

    def elapsed(self, now: datetime) -> float | None:
        """Seconds from its start to its end, or until now; None if it has not started."""
        return None if self.started is None else max(0.0, ((self.ended or now) - self.started).total_seconds())


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs, the newest first, and how many more there are."""

    jobs: list[JobSummary]
    more: int


class JobClient:
    """Talks to a job server. A context manager.

    Args:
        endpoint: host:port.
        token: what the server wants to see, if anything.
        certificates: PEM file with the server's certificate, or its authority's; None: no TLS.

    Raises:
        SetupError: the file cannot be read.
    """

    def __init__(self, endpoint: str, token: str | None = None, certificates: Path | None = None) -> None:
        self._endpoint = endpoint
        self._metadata = [("authorization", f"Bearer {token}")] if token else []
        options = [("grpc.max_receive_message_length", -1)]
        if certificates is None:
            self._channel = grpc.insecure_channel(endpoint, options)
        else:
            try:
                credentials = grpc.ssl_channel_credentials(certificates.read_bytes())
            except OSError as e:
                raise SetupError(f"cannot read {certificates}: {e}") from e
            self._channel = grpc.secure_channel(endpoint, credentials, options)
        self._stub = job_grpc.JobServiceStub(self._channel)

    def __enter__(self) -> JobClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def jobs(self, limit: int = 0, running: bool = False) -> JobList:
        """Jobs, the newest first; servers give them in the order in which they came.

        Args:
            limit: how many at most; 0: all.
            running: only those that have not ended, and were started.

        Raises:
            ArcbeamError: see `_errors`.
        """
        with self._errors():
            found = self._stub.GetJobs(job_pb.GetJobsRequest(), timeout=_SECONDS, metadata=self._metadata).job_info
            wanted = [info for info in reversed(found) if not running or _name(info.state) not in _NOT_RUNNING]
            shown = wanted[:limit] if limit else wanted
            return JobList([self._summary(info) for info in shown], len(wanted) - len(shown))

    def _summary(self, info: Any) -> JobSummary:
        state = _name(info.state)
        started = ended = since = None
        if state == "STOPPED":  # prepared, or suspended: it may have been so before
            now = self._stub.GetState(
                job_pb.GetJobStateRequest(job_id=info.job_id), timeout=_SECONDS, metadata=self._metadata
            )
            since = now.timestamp.ToDatetime(UTC)
        # The history comes first on the stream; what comes after the state that we know is of no interest.
        for at, past in self._states(info.job_id, _SECONDS):
            if started is None and past not in ("STOPPED", "CANCELLED"):
                started = at
            if past in _TERMINAL or (past == "STOPPED" and started is not None):
                ended = at
            if (past == state and (since is None or at >= since)) or (since is not None and at > since):
                break
        return JobSummary(info.job_id, info.job_name, state, started, ended)

    def _states(self, job_id: str, seconds: float) -> Iterator[tuple[datetime, str]]:
        stream = self._stub.GetStateStream(
            job_pb.GetJobStateRequest(job_id=job_id), timeout=seconds, metadata=self._metadata
        )
        try:
            for event in stream:
                yield event.timestamp.ToDatetime(UTC), _name(event.state)
        finally:
            stream.cancel()

    def cancel(self, job_id: str) -> str:
        """Cancels a job.

        Returns:
            Its state afterwards; CANCELLING if it has not ended yet.

        Raises:
            JobNotFoundError: there is no such job.
            ArcbeamError: see `_errors`.
        """
        with self._errors():
            request = job_pb.CancelJobRequest(job_id=job_id)
            return _name(self._stub.Cancel(request, timeout=_SECONDS, metadata=self._metadata).state)

    def drain(self, job_id: str, seconds: float) -> str:
        """Has a job finish what it has; waits until it has begun to, some seconds at most.

        Returns:
            Its state afterwards; DRAINING if it has not ended yet.

        Raises:
            JobNotFoundError: there is no such job.
            JobFailedError: it was not done in time.
            ArcbeamError: see `_errors`.
        """
        with self._errors(), _in_time("drain", job_id, seconds):
            request = job_pb.DrainJobRequest(job_id=job_id)
            return _name(self._stub.Drain(request, timeout=seconds, metadata=self._metadata).state)

    def ask(self, what: Asked, job_id: str, savepoint: str, seconds: float) -> str:
        """Asks for a savepoint or a suspension, and waits until it is done; of arcbeam's server only.

        Returns:
            The savepoint's path.

        Raises:
            JobNotFoundError: there is no such job.
            JobFailedError: it was not done in time.
            ArcbeamError: see `_errors`.
        """
        with self._errors(), _in_time(what, job_id, seconds):
            return asked_of(self._channel, what, job_id, savepoint, timeout=seconds, metadata=self._metadata)

    def status(self, job_id: str) -> dict[str, Any]:
        """Where a streaming job stands; of arcbeam's server only. See `arcbeam.streaming.status.status.as_record`.

        Raises:
            JobNotFoundError: there is no such job.
            ArcbeamError: see `_errors`.
        """
        with self._errors():
            return status_of(self._channel, job_id, timeout=_SECONDS, metadata=self._metadata)

    def end(self, job_id: str, seconds: float) -> str:
        """Waits for a job's end, or its suspension, some seconds at most.

        Returns:
            Its last state by then.

        Raises:
            ArcbeamError: see `_errors`.
        """
        state = ""
        with self._errors():
            try:
                # The server ends the stream where a job is suspended.
                for _, state in self._states(job_id, seconds):
                    if state in _TERMINAL:
                        break
            except grpc.RpcError as e:
                if e.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
        return state

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Status codes as errors: no job (JobNotFoundError), refused (SubmissionError), no server or no entry
        (SetupError).
        """
        try:
            yield
        except grpc.RpcError as e:
            code, details = e.code(), e.details() or ""
            match code:
                case grpc.StatusCode.NOT_FOUND:
                    raise JobNotFoundError(*_parts(details)) from e
                case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.FAILED_PRECONDITION:
                    raise SubmissionError(*_parts(details)) from e
                case grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise SetupError(
                        f"the job server at {self._endpoint} has not answered in time ({details})",
                        "see that it is well, and not too busy",
                    ) from e
                case grpc.StatusCode.UNAVAILABLE:
                    raise SetupError(
                        f"no job server answers at {self._endpoint} ({details})",
                        "start one with `arcbeam serve`, or give its --endpoint (and --tls-ca if it speaks TLS)",
                    ) from e
                case grpc.StatusCode.UNAUTHENTICATED:
                    raise SetupError(
                        f"the job server at {self._endpoint} does not know us", "give its token with --token-file"
                    ) from e
                case _:
                    raise ArcbeamError(f"the job server at {self._endpoint} failed: {code.name} {details}") from e


@contextmanager
def _in_time(what: str, job_id: str, seconds: float) -> Iterator[None]:
    """A server that is at it for longer than somebody waits is there, and goes on."""
    try:
        yield
    except grpc.RpcError as e:
        if e.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        raise JobFailedError(
            f"'{what}' of {job_id} was not done within {seconds:g} s",
            "the job server goes on with it: look with `arcbeam jobs`, or ask again with a longer --wait",
        ) from e


def _parts(details: str) -> tuple[str, str]:
    """Message and remedy of an error of ours that came as text."""
    message, _, remedy = details.partition("\n  what to do: ")
    return message, remedy


def _name(state: int) -> str:
    name: str = job_pb.JobState.Enum.Name(state)
    return name
