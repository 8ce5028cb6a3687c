"""Writing to brokers that do not answer: the error names them, the reason, and what to check."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from arcbeam.io.kafka import producing
from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.io.kafka.outgoing import Outgoing
from arcbeam.io.kafka.producing import Deliveries, InDoubtError, LibrdkafkaShard, topic_of
from arcbeam.io.kafka.trouble import ClientTrouble
from arcbeam.io.kafka.writing import WriteNow

NOWHERE = "no-such-host.invalid:9092"
REFUSED = "127.0.0.1:9"
pytestmark = pytest.mark.contract("KAFKA-07")


@pytest.fixture(autouse=True)
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_unknown_host_fails_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producing, "_TRY_SECONDS", 0.2)
    monkeypatch.setattr(producing, "_WRONG_SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(
        ConnectionError, match=rf"topic t: no broker of {re.escape(NOWHERE)} .*Failed to resolve.*Check boot"
    ):
        topic_of(ClientConnection({"bootstrap.servers": NOWHERE}), "t")
    assert time.monotonic() - began < producing.SECONDS / 2


def test_host_without_broker_is_retried_and_then_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(producing, "_TRY_SECONDS", 0.2)
    monkeypatch.setattr(producing, "_WRONG_SECONDS", 0.0)
    monkeypatch.setattr(producing, "SECONDS", 1.0)
    with pytest.raises(ConnectionError, match=rf"no broker of {REFUSED} has answered .*Connection refused"):
        topic_of(ClientConnection({"bootstrap.servers": f"{REFUSED}"}), "t")
    (record,) = caplog.records
    assert "the request for the partitions of the topic t failed" in record.getMessage()


def test_publisher_names_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producing, "SECONDS", 0.5)
    shard = LibrdkafkaShard(ClientConnection({"bootstrap.servers": REFUSED}), "s", "t")
    with pytest.raises(
        InDoubtError, match=rf"shard s: no broker of {REFUSED} has answered .*Connection refused.*Check"
    ):
        shard.begin()
    shard.close()


def test_writing_at_once_names_brokers() -> None:
    config = {"bootstrap.servers": REFUSED, "message.timeout.ms": 300}
    fn = WriteNow(Outgoing("t", None, None, 1_000), ClientConnection(config))
    fn.setup()
    fn.process((b"k", b"v"))
    with pytest.raises(RuntimeError, match=rf"1 record, the first to t.*{REFUSED}: .*Connection refused"):
        fn.finish_bundle()
    fn.teardown()


def test_records_without_an_answer_are_reported_with_their_topics() -> None:
    trouble = ClientTrouble("kafka:9092")
    trouble.hear("kafka:9092: SASL authentication error")
    with pytest.raises(RuntimeError) as raised:
        Deliveries(trouble).check(2, {"u", "t"})
    assert str(raised.value) == (
        "WriteToKafka could not write 2 records to t, u: no broker has confirmed them in 60 s. "
        "kafka:9092: kafka:9092: SASL authentication error"
    )


class Moving:
    """A consumer whose group gets another coordinator: two answers are errors."""

    def __init__(self) -> None:
        self._errors = [KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR]

    def committed(self, places: Any, timeout: float) -> Any:
        if self._errors:
            raise KafkaException(KafkaError(self._errors.pop()))
        return [TopicPartition("t", 0, 7)]

    def poll(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.contract("KAFKA-06")
def test_register_is_read_when_its_coordinator_has_moved() -> None:
    shard = LibrdkafkaShard(ClientConnection({"bootstrap.servers": REFUSED}), "s", "t")
    shard._group.close()
    shard._group = Moving()
    assert shard._found().offset == 7
    shard.close()
