"""A job that is cancelled while its last calls run; without Spark."""

from __future__ import annotations

import queue
import threading
from typing import Any
from unittest.mock import MagicMock

import pytest

from arcbeam.engine.coordinator import Published, ShutDown, TornDown
from arcbeam.model.timestamps import Timestamp
from arcbeam.spark.streaming import cluster as clusters
from arcbeam.spark.tasks.ending.shutdown import Graceful, ShuttingDown
from arcbeam.spark.tasks.ending.teardown import TeardownReported
from tests.golden import check_message

_WAIT = 20.0


@pytest.mark.contract("END-04", "END-05")
def test_teardown_does_not_wait_for_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same thread does both; and shutdown may use all its time."""
    runs = threading.Event()

    def hangs(calls: ShuttingDown, stages: Any) -> list[str]:
        runs.set()
        assert calls._given_up.wait(_WAIT)
        return []

    monkeypatch.setattr(ShuttingDown, "call_alone", hangs)
    monkeypatch.setattr(clusters, "tear_down_workers", lambda *_, **__: TeardownReported(set(), []))
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    clock = MagicMock()
    clock.now.return_value = Timestamp(0)
    cluster = clusters.SparkCluster(MagicMock(), MagicMock(), inbox, clock, 1, MagicMock(), MagicMock())
    cluster.shut_down(["sum"], Timestamp(60_000_000))
    assert runs.wait(_WAIT)
    cluster.tear_down(["sum"], Timestamp(5_000_000))
    assert [type(inbox.get(timeout=_WAIT)) for _ in range(2)] == [ShutDown, TornDown]
    cluster.close()


@pytest.mark.contract("END-05", "END-06")
def test_publishers_that_swept_are_torn_down(monkeypatch: pytest.MonkeyPatch) -> None:
    holders: list[set[str]] = []

    def torn_down(*arguments: Any, name: str) -> TeardownReported:
        holders.append(set(arguments[2]))
        return TeardownReported(set(), [])

    monkeypatch.setattr(clusters, "tear_down_workers", torn_down)
    publishing = MagicMock(holders=set())
    sweeps, swept = threading.Event(), threading.Event()

    def sweep(*_: Any, **__: Any) -> tuple[str, ...]:
        sweeps.set()
        assert swept.wait(_WAIT)
        publishing.holders.add("host:7")
        return ()

    publishing.publish.return_value, publishing.sweep = (), sweep
    monkeypatch.setattr(clusters, "SparkPublishing", lambda *_, **__: publishing)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    clock = MagicMock()
    clock.now.return_value = Timestamp(0)
    cluster = clusters.SparkCluster(MagicMock(), MagicMock(), inbox, clock, 1, MagicMock(), MagicMock())
    cluster.publish(1, [], again=False)
    assert sweeps.wait(_WAIT)
    cluster.tear_down(["sum"], Timestamp(60_000_000))
    threading.Timer(0.1, swept.set).start()
    assert [type(inbox.get(timeout=_WAIT)) for _ in range(2)] == [Published, TornDown]
    assert holders == [{"host:7"}]
    cluster.close()


@pytest.mark.contract("END-05")
def test_skipped_shutdown_names_its_reason() -> None:
    given_up = threading.Event()
    given_up.set()
    of = Graceful("s1", ("Close",), MagicMock())
    (text,) = ShuttingDown(MagicMock(), "job", 1, 60.0, given_up).call([of])
    check_message("shutdown-given-up", text)
    (text,) = ShuttingDown(MagicMock(), "job", 1, 0.0).call([of])
    check_message("shutdown-out-of-time", text)
