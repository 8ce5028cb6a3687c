"""The workers of a process: their end."""

from __future__ import annotations

import threading

import pytest

from arcbeam.fnapi.environments.workers import Workers, _Worker
from arcbeam.fnapi.service.server import server_here

pytestmark = pytest.mark.contract("API-08")


class Slow:
    """A worker whose process takes its time to end."""

    def __init__(self) -> None:
        self.may_end, self.ended = threading.Event(), threading.Event()

    def stop(self) -> None:
        """Wait until the test lets it end."""
        self.may_end.wait()
        self.ended.set()


def test_task_does_not_wait_for_the_rest_of_a_lost_worker() -> None:
    slow = Slow()
    worker = _Worker(server_here().expect("a test"), slow, 1)
    worker.connection.end("its control stream ended")
    Workers._stop(worker)
    assert not slow.ended.is_set()
    slow.may_end.set()
    assert slow.ended.wait(10)


def test_process_waits_for_the_end_of_a_worker_that_it_stops() -> None:
    slow = Slow()
    slow.may_end.set()
    Workers._stop(_Worker(server_here().expect("a test"), slow, 1))
    assert slow.ended.is_set()
