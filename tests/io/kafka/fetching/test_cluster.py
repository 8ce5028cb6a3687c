"""Which of librdkafka's errors end by themselves, so that a job waits, and which ones are the job's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from confluent_kafka import KafkaError, KafkaException

from arcbeam.io.kafka.clients import Clients
from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.io.kafka.fetching.cluster import LibrdkafkaCluster

pytestmark = pytest.mark.contract("KAFKA-01")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LibrdkafkaCluster:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return LibrdkafkaCluster(Clients(ClientConnection({"bootstrap.servers": "127.0.0.1:1"}), True, "", False))


@pytest.mark.parametrize("may_miss", [False, True])
@pytest.mark.parametrize(
    ("code", "more", "waits"),
    [
        (KafkaError._TIMED_OUT, {}, "always"),
        (KafkaError._ALL_BROKERS_DOWN, {}, "always"),
        (KafkaError.NOT_LEADER_FOR_PARTITION, {}, "always"),
        (KafkaError.REQUEST_TIMED_OUT, {}, "always"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, {"retriable": True}, "always"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, {}, "unless the topic may be missing"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, {}, "never"),
        (KafkaError.OFFSET_OUT_OF_RANGE, {}, "never"),
    ],
)
def test_error_that_ends_by_itself_is_a_connection_error(
    cluster: LibrdkafkaCluster, code: int, more: Any, waits: str, may_miss: bool
) -> None:
    def ask() -> NoReturn:
        raise KafkaException(KafkaError(code, "of the broker", **more))

    is_waiting = waits == "always" or (waits != "never" and not may_miss)
    with pytest.raises(ConnectionError if is_waiting else KafkaException):
        cluster._requested(ask, missing=may_miss)
