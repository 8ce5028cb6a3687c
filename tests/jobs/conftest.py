"""A job server on loopback with a fake executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from arcbeam.jobs.lifecycle import Jobs
from arcbeam.jobs.registry import Registry
from tests.jobs.fakes import WAIT, Client, Fake, serving


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def client(tmp_path: Path, fake: Fake) -> Iterator[Client]:
    with serving(tmp_path / "jobs", fake) as (_, client):
        yield client


@pytest.fixture
def open_jobs(tmp_path: Path, fake: Fake) -> Iterator[Callable[[], Jobs]]:
    """Return a function that opens the server's jobs; called again, it opens them as after the server's death."""
    opened: list[Jobs] = []

    def open() -> Jobs:
        for before in opened:
            before.registry.close()
        registry = Registry(tmp_path / "jobs.sqlite")
        opened.append(Jobs(registry, fake, tmp_path / "staged", {"shards": 3, "no_fusion": True}, lambda: 1.5))
        return opened[-1]

    yield open
    fake.cancelled.set()
    opened[-1].close(WAIT)
    opened[-1].registry.close()


@pytest.fixture
def jobs(open_jobs: Callable[[], Jobs]) -> Jobs:
    return open_jobs()
