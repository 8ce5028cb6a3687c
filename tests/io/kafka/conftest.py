"""The broker that all tests of Kafka share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.broker import Broker, missing


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker, started when the first test asks for it."""
    if lacks := missing():
        pytest.skip(lacks)
    with Broker(tmp_path_factory.mktemp("broker")) as started:
        yield started
