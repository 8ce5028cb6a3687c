"""The meaning of a Connect session's errors. `tests/spark/streaming/days/test_connect_server.py` tests resuming
jobs."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkNotImplementedError

from arcbeam.errors import ServerLostError
from arcbeam.spark.session import remote
from arcbeam.spark.streaming.cluster import may_go_better


class Status:
    """A status as in gRPC."""

    def __init__(self, name: str) -> None:
        self.name = name


class GrpcError(Exception):
    """An error of a call with a status."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self._status = Status(status)

    def code(self) -> Status:
        return self._status


class Client:
    """A client with the address of a session's server."""

    host = "spark.example"

    def __init__(self) -> None:
        self.policies = ["patient"]

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def get_retry_policies(self) -> list[Any]:
        return list(self.policies)

    def set_retry_policies(self, policies: list[Any]) -> None:
        self.policies = list(policies)


class Session:
    """A session with only a module name and a client."""

    def __init__(self) -> None:
        self.client = Client()


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Session, "__module__", "pyspark.sql.connect.session")
    return Session()


@pytest.mark.parametrize(
    "error",
    [
        GrpcError("UNAVAILABLE", '<_InactiveRpcError>\n\tdetails = "failed to connect to all addresses"'),
        ValueError("[NO_ACTIVE_SESSION] No active Spark session found. Please create a new Spark session."),
        ValueError(
            "[INVALID_HANDLE.SESSION_CHANGED] The handle is invalid. The existing Spark server driver restarted"
        ),
        ValueError("[INVALID_HANDLE.SESSION_NOT_FOUND] The handle 2ad is invalid. Session not found. SQLSTATE: HY000"),
        AssertionError("Received incorrect server side session identifier for request. Please create a new one"),
    ],
)
def test_lost_server_is_named_and_retried(error: Exception, session: Any) -> None:
    reported = remote.lost(session, error)
    assert isinstance(reported, ServerLostError)
    assert "spark.example" in reported.message
    assert may_go_better(reported)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("[DIVIDE_BY_ZERO] Division by zero."),
        ValueError("PythonException: ConnectionRefusedError: Connection refused"),
        GrpcError("INTERNAL", "user: StatusCode.UNAVAILABLE, failed to connect to all addresses"),
    ],
)
def test_other_errors_are_not_a_lost_server(error: Exception, session: Any) -> None:
    assert remote.lost(session, error) is None


def test_retry_policies_are_restored_after_last_job(session: Any) -> None:
    with remote.impatient(session):
        with remote.impatient(session):
            assert session.client.policies != ["patient"]
        assert session.client.policies != ["patient"]
    assert session.client.policies == ["patient"]


def test_session_is_kept_if_pyspark_opens_none(session: Any) -> None:
    def refuse() -> None:
        raise PySparkNotImplementedError(errorClass="NOT_IMPLEMENTED", messageParameters={"feature": "newSession()"})

    session.newSession = refuse
    assert remote.renewed(session, {"a": "b"}) is session


def test_classic_session_has_no_server_to_lose() -> None:
    session: Any = Session()
    assert remote.lost(session, GrpcError("UNAVAILABLE", "")) is None
    assert remote.unreachable(session) is None
    with remote.impatient(session):
        assert session.client.policies == ["patient"]
