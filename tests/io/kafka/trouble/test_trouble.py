"""Trouble with brokers is reported once, whichever client, partition or process has it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.io.kafka.fetching import cluster
from arcbeam.io.kafka.trouble import AddressError, ClientTrouble, error_text, trouble_of
from arcbeam.model.attempts import Attempt, process_state

pytestmark = pytest.mark.contract("KAFKA-01")
REFUSED = "kafka:9092/bootstrap: Connect to ipv4#10.0.0.1:9092 failed: Connection refused (after 0ms in state CONNECT)"


class Host:
    """Processes of a job on a host, and their clock."""

    def __init__(self, count: int) -> None:
        self.now = 1_000.0
        self.of = [ClientTrouble("kafka:9092", lambda: self.now) for _ in range(count)]

    def all_fail(self) -> None:
        for number, each in enumerate(self.of):
            each.hear(REFUSED)
            each.failed(f"reading t[{number}]", "Local: Timed out", self.now)

    def all_succeed(self) -> None:
        for each in self.of:
            each.succeeded()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    caplog.set_level(logging.WARNING, "arcbeam.kafka")
    return caplog


def texts(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records]


def test_minute_of_trouble_is_two_messages(log: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    host = Host(8)
    with process_state.running(Attempt("job", 1, (0,), "t")):
        for _ in range(60):
            host.all_fail()
            host.now += 1
        for _ in range(30):
            host.all_succeed()
            host.now += 1
    assert texts(log) == [
        "Kafka, kafka:9092: reading t[0] failed: kafka:9092: Connect to ipv4#10.0.0.1:9092 failed: Connection refused. "
        "It is retried. What else fails is not reported until this is over",
        "Kafka, kafka:9092: all requests succeed again, after 60 s",
    ]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_success_of_others_does_not_end_trouble(log: pytest.LogCaptureFixture) -> None:
    host = Host(2)
    for _ in range(60):
        host.of[0].failed("reading t[0]", "Broker: Not leader for partition", host.now)
        host.of[1].succeeded()
        host.now += 1
    assert len(log.records) == 1
    # The partition is read by another process from then.
    for _ in range(30):
        host.of[1].succeeded()
        host.now += 1
    assert texts(log)[1:] == ["Kafka, kafka:9092: all requests succeed again, after 59 s"]


def test_errors_of_connections_alone_are_not_reported(log: pytest.LogCaptureFixture) -> None:
    (one,) = Host(1).of
    one.hear(REFUSED)
    assert one.now
    one.succeeded()
    assert (one.now, log.records) == (False, [])


def test_trouble_without_a_noticed_end_is_reported_again(log: pytest.LogCaptureFixture) -> None:
    host = Host(1)
    host.all_fail()
    host.now += 3_600
    host.all_fail()
    assert len(log.records) == 2


def test_jobs_report_for_themselves(log: pytest.LogCaptureFixture) -> None:
    host = Host(1)
    for job in ("a", "b"):
        with process_state.running(Attempt(job, 1, (0,), "t")):
            host.all_fail()
    assert len(log.records) == 2


def test_without_a_place_for_files_each_client_reports(
    log: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    host = Host(2)
    for _ in range(3):
        host.all_fail()
    assert len(log.records) == 2


def test_client_listens_until_a_broker_is_named() -> None:
    (one,) = Host(1).of
    answers = [None, None, "2/2 brokers are down", REFUSED, None]

    def poll(seconds: float) -> None:
        if (answer := answers.pop(0)) is not None:
            one.hear(answer)

    one.listen(poll)
    assert (answers, one.reason("x")) == ([None], error_text(REFUSED))


def test_slow_brokers_have_time_now_and_then() -> None:
    (one,) = (host := Host(1)).of
    timeouts = []
    for _ in range(12):
        timeouts.append(cluster.request_seconds(one))
        host.all_fail()
    assert timeouts == [10, *[2] * 4, 10, *[2] * 5, 10]
    one.succeeded()
    assert cluster.request_seconds(one) == 10


def test_reasons_name_brokers() -> None:
    (one,) = Host(1).of
    for text in (REFUSED, "2/2 brokers are down", "b:1/2: Disconnected (after 7ms in state UP, 1 identical error(s))"):
        one.hear(text)
    assert one.reason("x") == f"{error_text(REFUSED)}; b:1/2: Disconnected"
    assert Host(1).of[0].reason("Local: Timed out") == "Local: Timed out"


def test_refused_password_names_broker_and_user() -> None:
    one = trouble_of(
        ClientConnection({"bootstrap.servers": "kafka:9092", "sasl.username": "me"}, {"sasl.password": "SECRET"})
    )
    refusal = "kafka:9092/bootstrap: SASL authentication error: Authentication failed (after 3ms in state AUTH_REQ)"
    one.hear(refusal)
    error = one.error("Local: Timed out")
    assert str(error) == "kafka:9092: SASL authentication error: Authentication failed (user 'me')"
    assert isinstance(error, AddressError)


def test_file_of_another_name_is_not_followed(log: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Another user's link in the temporary folder could otherwise have a job overwrite one of its user's files."""
    host, own = Host(2), tmp_path / "own"
    own.write_text("mine")
    with process_state.running(Attempt("job", 1, (0,), "t")):
        path = host.of[0]._path()
        path.parent.mkdir(mode=0o700)
        path.symlink_to(own)
        host.all_fail()
    assert own.read_text() == "mine"
    assert len(texts(log)) == 2, "each reports for itself"
