"""The broker that all tests of Kafka share, and a cluster of two for those that need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.kafka.broker import Broker, missing

EXPIRY = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
"""Transactions that take too long are aborted soon after their timeout."""
COMPACTION = {"log.cleaner.backoff.ms": "100"}
"""Compacted topics are compacted soon."""
ACCESS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
}
"""Rules may forbid something to the user "me". Who connects without a password may do all."""
_TWO = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "auto.leader.rebalance.enable": "false",
}
COORDINATORS = {"__consumer_offsets": "compact", "__transaction_state": "compact"}
"""Topics of the coordinators of groups and of transactions, and their cleanup.policy."""
PASSWORD = "pl4nt3d-k4fk4-p4ssw0rd"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker, started when the first test asks for it."""
    if lacks := missing():
        pytest.skip(lacks)
    with Broker(tmp_path_factory.mktemp("broker"), PASSWORD, **EXPIRY, **COMPACTION, **ACCESS) as started:
        yield started


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    """Two brokers of a cluster. The second one prefers to coordinate all transactions and groups."""
    if lacks := missing():
        pytest.skip(lacks)
    with Broker(tmp_path / "first", **_TWO) as first, Broker(tmp_path / "second", joins=first, **_TWO) as second:
        for topic, policy in COORDINATORS.items():
            first.topic(topic, 1, (2, 1), cleanup_policy=policy)
        yield first, second


def leaders(broker: Broker) -> set[tuple[int, int]]:
    """Return who leads the partitions of a cluster, each with the number of its replicas that are in sync."""
    topics = broker.admin().list_topics(timeout=20).topics.values()
    return {(each.leader, len(each.isrs)) for of in topics for each in of.partitions.values()}
