"""A small client of the Job API, for the command line.

Owns the calls, and the translation of status codes back into arcbeam's errors. Works with any Beam job server.
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
from arcbeam.jobs.controlservice import details_of, overview_of, request_savepoint, status_of
from arcbeam.store.log.requests import RequestKind

_SECONDS = 30.0
"""Limit for a call."""

_TERMINAL = frozenset({"DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED"})

_NOT_RUNNING = _TERMINAL | {"STOPPED"}


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job in a list.

    Attributes:
        id: unique.
        name: for people.
        state: in Beam's terms.
        started: when it was started; None if it was not.
        ended: when it ended, or was last suspended; None if it was not.
    """

    id: str
    name: str
    state: str
    started: datetime | None
    ended: datetime | None

    def elapsed(self, now: datetime) -> float | None:
        """Return the seconds from its start to its end, or until now; None if it has not started."""
        return None if self.started is None else max(0.0, ((self.ended or now) - self.started).total_seconds())


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs, newest first, and the number of further jobs."""

    jobs: list[JobSummary]
    more: int


class JobClient:
    """Calls a job server. A context manager.

    Args:
        endpoint: host:port.
        token: of the server, if it requires one.
        certificates: PEM file with the server's certificate, or its authority's; None: no TLS.
        seconds: limit for a call that only asks.

    Raises:
        SetupError: the file cannot be read.
    """

    def __init__(
        self,
        endpoint: str,
        token: str | None = None,
        certificates: Path | None = None,
        seconds: float = _SECONDS,
    ) -> None:
        self._endpoint, self._seconds = endpoint, seconds
        self._metadata = [("authorization", f"Bearer {token}")] if token else []
        # A server that was away for long answers soon after it has started again.
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_reconnect_backoff_ms", 2000)]
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
        """Return the jobs, newest first; servers list them oldest first.

        Args:
            limit: largest number of jobs; 0: all.
            running: only those that were started and have not ended.

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
        if state == "STOPPED":  # prepared, or suspended; it may have been in this state before
            now = self._stub.GetState(
                job_pb.GetJobStateRequest(job_id=info.job_id), timeout=_SECONDS, metadata=self._metadata
            )
            since = now.timestamp.ToDatetime(UTC)
        # The stream begins with the history. Events after the known state are not needed.
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
        """Cancel a job.

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
        """Drain a job. Wait until it has begun to drain, or some seconds have passed.

        Returns:
            Its state afterwards; DRAINING if it has not ended yet.

        Raises:
            JobNotFoundError: there is no such job.
            JobFailedError: the job did not begin to drain in time.
            ArcbeamError: see `_errors`.
        """
        with self._errors(), _in_time("drain", job_id, seconds):
            request = job_pb.DrainJobRequest(job_id=job_id)
            return _name(self._stub.Drain(request, timeout=seconds, metadata=self._metadata).state)

    def ask(self, what: RequestKind, job_id: str, savepoint: str, seconds: float) -> str:
        """Request a savepoint or a suspension, and wait until it is done. Only arcbeam's server has this call.

        Returns:
            The savepoint's path.

        Raises:
            JobNotFoundError: there is no such job.
            JobFailedError: it was not done in time.
            ArcbeamError: see `_errors`.
        """
        with self._errors(), _in_time(what, job_id, seconds):
            return request_savepoint(self._channel, what, job_id, savepoint, timeout=seconds, metadata=self._metadata)

    def status(self, job_id: str) -> dict[str, Any]:
        """Return a streaming job's status, as `arcbeam.streaming.status.status.as_record`. Only on arcbeam's server.

        Raises:
            JobNotFoundError: there is no such job.
            ArcbeamError: see `_errors`.
        """
        with self._errors():
            return status_of(self._channel, job_id, timeout=_SECONDS, metadata=self._metadata)

    def overview(self) -> list[dict[str, Any]]:
        """Return all jobs with what they do now; see `Overview.overview`. Only on arcbeam's server.

        Raises:
            ArcbeamError: see `_errors`.
        """
        with self._errors():
            return overview_of(self._channel, timeout=self._seconds, metadata=self._metadata)

    def details(self, job_id: str, more: bool = True) -> dict[str, Any]:
        """Return a job with what it does now; see `Overview.details`. Only on arcbeam's server.

        Raises:
            JobNotFoundError: there is no such job.
            ArcbeamError: see `_errors`.
        """
        with self._errors():
            return details_of(self._channel, job_id, more, timeout=self._seconds, metadata=self._metadata)

    def end(self, job_id: str, seconds: float) -> str:
        """Wait until a job ends or is suspended, or some seconds have passed.

        Returns:
            Its last state; "" if it has not ended in time.

        Raises:
            ArcbeamError: see `_errors`.
        """
        state = ""
        with self._errors():
            try:
                # The server ends the stream when the job is suspended.
                for _, state in self._states(job_id, seconds):
                    if state in _TERMINAL:
                        break
            except grpc.RpcError as e:
                if e.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                # The states that have arrived are past ones; a slow machine has perhaps not got to the present one.
                return ""
        return state

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise status codes as errors.

        No such job: JobNotFoundError. Refused: SubmissionError. No server, or no permission: SetupError.
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
                        f"the job server at {self._endpoint} did not answer in time ({details})",
                        "check that its process runs, and that its machine is not overloaded",
                    ) from e
                case grpc.StatusCode.UNAVAILABLE:
                    raise SetupError(
                        f"no job server answers at {self._endpoint} ({details})",
                        "give its --endpoint (and --tls-ca if it uses TLS), or start one: arcbeam serve",
                    ) from e
                case grpc.StatusCode.UNAUTHENTICATED:
                    raise SetupError(
                        f"authentication failed at the job server {self._endpoint}", "give its token with --token-file"
                    ) from e
                case grpc.StatusCode.PERMISSION_DENIED:
                    raise SetupError(f"the job server at {self._endpoint} belongs to another user", details) from e
                case grpc.StatusCode.UNIMPLEMENTED:
                    raise SubmissionError(
                        f"the job server at {self._endpoint} cannot do that: {details}",
                        "use a job server of this version of arcbeam",
                    ) from e
                case _:
                    raise ArcbeamError(f"the job server at {self._endpoint} failed: {code.name} {details}") from e


@contextmanager
def _in_time(what: str, job_id: str, seconds: float) -> Iterator[None]:
    """Report a request that takes longer than the time limit. The server continues with it."""
    try:
        yield
    except grpc.RpcError as e:
        if e.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        raise JobFailedError(
            f"'{what}' of {job_id} did not finish within {seconds:g} s",
            "the job server continues with it: see its list of jobs, or repeat the command with a longer --wait",
        ) from e


def _parts(details: str) -> tuple[str, str]:
    """Return message and remedy of one of arcbeam's errors that arrived as text."""
    message, _, remedy = details.partition("\n  what to do: ")
    return message, remedy


def _name(state: int) -> str:
    name: str = job_pb.JobState.Enum.Name(state)
    return name
