"""What the failure of a micro-batch, or of its publishing, means to the job."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import pytest

from arcbeam.engine.coordinator import Published, PublishFailed, TornDown
from arcbeam.engine.protocol.markers import InconsistentCutError
from arcbeam.errors import ArcbeamError, JobFailedError, SdkWorkerStartError, UserCodeError, WorkerLostError
from arcbeam.model.timestamps import Timestamp
from arcbeam.spark.streaming import cluster as clusters
from arcbeam.spark.streaming.cluster import may_go_better
from arcbeam.spark.tasks.ending.teardown import TeardownReported
from arcbeam.store.blobs.errors import (
    AwayError,
    DamagedFileError,
    DeterminateError,
    IndeterminateError,
    MissingFileError,
    NewerFormatError,
)


@pytest.mark.contract("STORE-01", "BAT-04")
@pytest.mark.parametrize(
    "error",
    [
        DeterminateError("full"),
        IndeterminateError("no answer"),
        AwayError("not mounted"),
        WorkerLostError("killed"),
        SdkWorkerStartError("its process has ended"),
        InconsistentCutError("two attempts"),
        JobFailedError("whatever Spark says"),
    ],
)
def test_transient_failure_is_retried(error: ArcbeamError) -> None:
    assert may_go_better(error)


@pytest.mark.parametrize(
    "error",
    [
        MissingFileError("lost"),
        DamagedFileError("cut off"),
        NewerFormatError("of a later version"),
        UserCodeError("Map", "ValueError", ""),
        ValueError("a mistake of ours"),
    ],
)
def test_permanent_failure_is_not_retried(error: Exception) -> None:
    assert not may_go_better(error)


@pytest.mark.contract("END-01")
def test_publishing_after_a_failed_one_is_a_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the driver of the failed call knows of it: "again" is what the coordinator says of other drivers."""
    calls: list[tuple[bool, bool]] = []

    def publish(_: Any, *, again: bool) -> list[str]:
        calls.append((again, failing.pop(0)))
        if calls[-1][1]:
            raise JobFailedError("the disk is on fire")
        return []

    publishing = MagicMock(publish=publish)
    monkeypatch.setattr(clusters, "SparkPublishing", lambda *_, **__: publishing)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    clock = MagicMock()
    clock.now.return_value = Timestamp(0)
    cluster = clusters.SparkCluster(MagicMock(), MagicMock(), inbox, clock, 1, MagicMock(), MagicMock())
    expected = []
    for micro_batch, again, failures in ((1, False, 0), (2, False, 2), (3, False, 1), (4, True, 1), (5, False, 0)):
        failing = [*[True] * failures, False]
        for attempt, fails in enumerate(tuple(failing)):
            cluster.publish(micro_batch, [], again=again)
            assert type(inbox.get(timeout=10)) is (PublishFailed if fails else Published)
            expected.append((again or attempt > 0, fails))
    cluster.close()
    assert calls == expected


@pytest.mark.parametrize("hasty", [False, True])
def test_driver_that_was_overtaken_does_not_wait_long(monkeypatch: pytest.MonkeyPatch, hasty: bool) -> None:
    limits = {"_CLOSING_SECONDS": 300.0, "_HASTY_CLOSING_SECONDS": 0.05}
    for name, seconds in limits.items():
        assert getattr(clusters, name) == (1.0 if name.startswith("_HASTY") else 30.0)
        monkeypatch.setattr(clusters, name, seconds)
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def publish(_: Any, *, again: bool) -> list[str]:
        begun.set()
        assert may_end.wait(60)
        ended.set()
        return []

    monkeypatch.setattr(clusters, "SparkPublishing", lambda *_, **__: MagicMock(publish=publish))
    clock = MagicMock()
    clock.now.return_value = Timestamp(0)
    around = MagicMock(), MagicMock(), queue.SimpleQueue(), clock, 1, MagicMock(), MagicMock()
    cluster = clusters.SparkCluster(*around)
    cluster.publish(1, [], again=False)
    assert begun.wait(10)
    closing = threading.Thread(target=cluster.close, kwargs={"hasty": hasty})
    closing.start()
    if hasty:
        closing.join(60)
        assert not closing.is_alive(), "it must not wait for what runs"
        assert not ended.is_set()
    may_end.set()
    closing.join(60)
    assert ended.wait(60)
    assert not closing.is_alive()


@pytest.mark.contract("END-01")
def test_failed_sweep_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last micro-batch the driver waits for the sweep; the results are published by then."""

    def sweep(*_: Any, **__: Any) -> list[str]:
        raise JobFailedError("the disk is on fire")

    monkeypatch.setattr(clusters, "SparkPublishing", lambda *_, **__: MagicMock(sweep=sweep))
    warnings: list[Sequence[str]] = []
    around = MagicMock(), MagicMock(), queue.SimpleQueue(), MagicMock(), 1, MagicMock(), warnings.append
    cluster = clusters.SparkCluster(*around)
    cluster.sweep(7)
    cluster.close()
    assert warnings == [["could not remove the staged files of uncommitted attempts: the disk is on fire"]]


@pytest.mark.parametrize("over", [None, False, True])
def test_teardown_removes_copies_only_if_run_is_over(monkeypatch: pytest.MonkeyPatch, over: bool | None) -> None:
    calls: list[tuple[bool, float]] = []

    def torn_down(*arguments: Any, name: str) -> TeardownReported:
        _, _, _, _, last, _, seconds, _ = arguments
        calls.append((last.forgotten, seconds))
        return TeardownReported(set(), [])

    monkeypatch.setattr(clusters, "tear_down_workers", torn_down)
    monkeypatch.setattr(clusters, "SparkPublishing", lambda *_, **__: MagicMock(holders=set()))
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    clock = MagicMock()
    clock.now.return_value = Timestamp(0)
    around = MagicMock(), MagicMock(), inbox, clock, 1, MagicMock(), MagicMock()
    cluster = clusters.SparkCluster(*around, *([] if over is None else [lambda: over]))
    cluster.tear_down(["sum"], Timestamp(1_000_000_000))
    assert type(inbox.get(timeout=60)) is TornDown
    cluster.close()
    ((forgotten, seconds),) = calls
    assert forgotten is bool(over)
    assert 450 < seconds <= 900, "a part of the time is left for the results"
