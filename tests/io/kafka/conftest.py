"""The broker that all tests of Kafka share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.kafka.broker import Broker, missing

EXPIRY = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
"""Transactions that take too long are aborted soon after their timeout."""
COMPACTION = {"log.cleaner.backoff.ms": "100"}
"""Compacted topics are compacted soon."""
PASSWORD = "pl4nt3d-k4fk4-p4ssw0rd"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker, started when the first test asks for it."""
    if lacks := missing():
        pytest.skip(lacks)
    with Broker(tmp_path_factory.mktemp("broker"), PASSWORD, **EXPIRY, **COMPACTION) as started:
        yield started
