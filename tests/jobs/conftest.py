"""A job server on loopback with a fake executor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.fakes import Client, Fake, serving


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def client(tmp_path: Path, fake: Fake) -> Iterator[Client]:
    with serving(tmp_path / "jobs", fake) as (_, client):
        yield client
