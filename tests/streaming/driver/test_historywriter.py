"""The driver's history: when it is sampled and written, a killed driver, a resumed one, a store that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from arcbeam.engine.coordinator import CommitDecided, MicroBatchFailed
from arcbeam.engine.protocol.reports import Counts
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import IndeterminateError, MissingFileError
from arcbeam.store.log.historyfile import StoredHistory, history_in
from arcbeam.store.log.planfile import details_in, plan_in, tasks_in
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest.names import HISTORY, PLAN
from arcbeam.streaming.driver.historywriter import HistoryWriter
from arcbeam.streaming.driver.proposals import draft
from arcbeam.streaming.status.history import history_record
from arcbeam.streaming.status.tries import failed_attempt
from arcbeam.testing.blobs import MemoryBlobs
from tests.streaming.jobs import LAYOUT, READERS, opened, proposal, reported, staged

pytestmark = pytest.mark.contract("OPS-07")

_NUMBERS = {"read": 1, "rates": 2, "join": 3}


def at_once(function: Callable[[], None]) -> Callable[[], None]:
    function()
    return lambda: None


class Driver:
    """A driver that commits micro-batches, with a clock of its own."""

    def __init__(self, blobs: DurableBlobs, seconds: float = 1000.0) -> None:
        self.blobs, self.seconds = blobs, seconds
        self.log = opened(blobs)
        self.writer = HistoryWriter(blobs, self.log, self, lambda: self.seconds, aside=at_once, layout=LAYOUT)

    def now(self) -> Timestamp:
        return Timestamp(round(self.seconds * 1e6))

    def commit(self, read: int) -> None:
        """Commit a micro-batch in which `join` has read some elements."""
        number = self.log.head.micro_batch + 1
        report = reported(staged("join", 0, number, counts=Counts(read)), staged("join", 1, number))
        figures = self.writer.measured({"seconds": 0.5, "user": 0.25})
        self.log.propose(draft(self.log, LAYOUT, READERS, _NUMBERS, proposal(number, number, report), figures))
        self.writer.handled(CommitDecided(self.now(), number))
        self.writer.beat()

    def run(self, micro_batches: int, every: float = 0.25) -> None:
        for _ in range(micro_batches):
            self.commit(3)
            self.seconds += every


def kept(blobs: DurableBlobs) -> dict[str, Any]:
    return history_record(history_in(blobs))


def total(record: dict[str, Any], ring: int, figure: str = "read") -> float:
    return sum(point["stages"]["join"][figure] for point in record["rings"][ring]["points"])


@pytest.mark.contract("PAGE-12")
def test_figures_of_tasks_are_those_of_a_recent_micro_batch_with_elements() -> None:
    driver = Driver(MemoryBlobs())
    writer = driver.writer

    def ran(micro_batch: int, elements: int) -> int | None:
        writer.ran(micro_batch, [BundleReport("join", 0, elements_in=elements)])
        writer.beat()
        record = tasks_in(driver.blobs)
        return None if record is None else int(record["micro_batch"])

    assert ran(1, 0) is None
    assert ran(2, 5) == 2
    assert ran(3, 5) == 2, "at most every ten seconds"
    driver.seconds += 11
    assert ran(4, 0) == 3
    assert ran(5, 5) == 3
    writer.close("DONE")
    record = tasks_in(driver.blobs)
    assert record is not None
    assert record["micro_batch"] == 5


@pytest.mark.contract("PAGE-05")
def test_metrics_and_messages_are_written_with_tasks_and_at_the_end() -> None:
    driver, reported = Driver(MemoryBlobs()), ["one"]
    of: dict[str, Any] = {"aside": at_once, "layout": LAYOUT, "details": lambda: {"messages": list(reported)}}
    writer = HistoryWriter(driver.blobs, driver.log, driver, lambda: driver.seconds, **of)
    assert details_in(driver.blobs) is None
    writer.ran(1, [BundleReport("join", 0, elements_in=1)])
    writer.beat()
    assert details_in(driver.blobs) == {"messages": ["one"]}
    reported.append("two")
    writer.close("DONE")
    assert details_in(driver.blobs) == {"messages": ["one", "two"]}


@pytest.mark.contract("PAGE-05")
def test_messages_are_written_soon_after_a_failure() -> None:
    driver = Driver(MemoryBlobs())
    of: dict[str, Any] = {"aside": at_once, "layout": LAYOUT, "details": lambda: {"messages": ["a worker died"]}}
    writer = HistoryWriter(driver.blobs, driver.log, driver, lambda: driver.seconds, **of)
    driver.seconds += 3600
    writer.beat()
    writer.handled(MicroBatchFailed(driver.now(), 1, 0, "a worker died", True))
    driver.seconds += 6
    writer.beat()
    assert details_in(driver.blobs) == {"messages": ["a worker died"]}


def test_no_micro_batch_is_lost_between_samples() -> None:
    driver = Driver(MemoryBlobs())
    driver.run(50)
    driver.writer.close("DONE")
    record = kept(driver.blobs)
    assert [total(record, ring) for ring in range(3)] == [150, 150, 150]
    assert len(record["rings"][0]["points"]) == 13
    for ring in record["rings"]:
        assert sum(point["job"]["micro_batches"] for point in ring["points"]) == 50
        assert sum(point["job"]["seconds"] for point in ring["points"]) == 25
        least, greatest, last = ring["points"][-1]["job"]["micro_batch"]
        assert 1 <= least <= greatest == last == 50
    assert [event["kind"] for event in record["events"]] == ["start", "end"]


def written(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that gets the times at which the file is written."""
    writes, put = list[float](), driver.blobs.put

    def noted(name: str, data: bytes) -> None:
        if name == HISTORY:
            writes.append(driver.seconds)
        put(name, data)

    monkeypatch.setattr(driver.blobs, "put", noted)
    return writes


def test_file_is_written_soon_and_then_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(MemoryBlobs(), 0.0)
    writes = written(driver, monkeypatch)
    driver.run(300, every=1)
    assert writes == [4, 12, 28, 60, 120, 180, 240]


def test_driver_killed_in_its_first_seconds_leaves_its_start() -> None:
    driver = Driver(MemoryBlobs())
    driver.run(15)
    with pytest.raises(MissingFileError):
        driver.blobs.get(HISTORY)
    driver.run(3)
    record = kept(driver.blobs)
    assert [event["kind"] for event in record["events"]] == ["start"]
    assert record["rings"][0]["points"][0]["time"] == 1_000_000_000
    assert total(record, 0) >= 3 * 12


def test_failure_is_written_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(MemoryBlobs(), 0.0)
    driver.run(520)
    writes = written(driver, monkeypatch)
    driver.writer.handled(MicroBatchFailed(driver.now(), 5, 1, "a worker died", True))
    driver.run(19)
    assert writes == []
    driver.run(8)
    assert writes == [135]
    assert [event["kind"] for event in kept(driver.blobs)["events"]] == ["start", "trouble"]


def test_failures_have_their_try_and_failed_attempts_are_retries() -> None:
    driver = Driver(MemoryBlobs())
    driver.writer.handled(MicroBatchFailed(driver.now(), 5, 1, "a worker died", True))
    driver.writer.warned(failed_attempt(1, 6, 0, 3, "lost"))
    driver.writer.warned("could not remove all unneeded files")
    driver.run(30)
    assert [(event["kind"], event["text"]) for event in kept(driver.blobs)["events"][1:]] == [
        ("trouble", "micro-batch 5 failed in try 2: a worker died"),
        ("retry", "attempt 1 of task 3 failed (micro-batch 6, level 0); Spark ran it again: lost"),
    ]


def test_killed_driver_loses_a_minute_at_most_and_the_next_one_continues() -> None:
    blobs = MemoryBlobs()
    killed = Driver(blobs)
    killed.run(300)
    before = total(kept(blobs), 2)
    assert before >= 3 * 240
    resumed = Driver(blobs, killed.seconds + 100)
    resumed.run(10)
    resumed.writer.handled(MicroBatchFailed(resumed.now(), 11, 0, "boom", True))
    resumed.writer.close("")
    record = kept(blobs)
    assert total(record, 2) == before + 30
    assert [event["kind"] for event in record["events"]] == ["start", "restart", "trouble", "end"]


@pytest.mark.parametrize("data", [b"", b"archisto", b"x" * 1000])
def test_lost_or_torn_file_is_harmless(data: bytes) -> None:
    blobs = MemoryBlobs()
    Driver(blobs).run(1)
    blobs.put(HISTORY, data)
    driver = Driver(blobs)
    driver.run(1)
    driver.writer.close("DONE")
    assert total(kept(blobs), 0) == 3


def test_store_that_fails_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(MemoryBlobs())

    def fail(name: str, data: bytes) -> None:
        raise IndeterminateError("the store does not answer")

    driver.run(4)
    with monkeypatch.context() as patched:
        patched.setattr(driver.blobs, "put", fail)
        driver.seconds += 100
        driver.writer.beat()
        driver.run(4)
    driver.writer.close("DONE")
    assert total(kept(driver.blobs), 0) == 24


def test_store_that_keeps_failing_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(MemoryBlobs())

    def warned(failing: bool) -> list[str]:
        caplog.clear()
        with monkeypatch.context() as patched:
            if failing:
                patched.setattr(driver.blobs, "put", fail)
            driver.run(1)
            driver.seconds += 100
            driver.writer.beat()
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    def fail(name: str, data: bytes) -> None:
        raise IndeterminateError("the store does not answer")

    assert [len(warned(failing)) for failing in (True, True, True, False, True, True)] == [1, 0, 0, 0, 1, 0]


def test_driver_does_not_wait_for_the_file() -> None:
    allowed, threads = threading.Event(), list[str]()

    class Slow(MemoryBlobs):
        def put(self, name: str, data: bytes) -> None:
            if name == HISTORY:
                threads.append(threading.current_thread().name)
                allowed.wait(20)
            super().put(name, data)

    driver = Driver(Slow())
    driver.writer = HistoryWriter(driver.blobs, driver.log, driver, lambda: driver.seconds)
    driver.run(1)
    driver.seconds += 100
    driver.writer.beat()
    assert history_in(driver.blobs) == StoredHistory()
    driver.run(1)
    driver.seconds += 100
    driver.writer.beat()
    allowed.set()
    driver.writer.close("DONE")
    assert total(kept(driver.blobs), 0) == 6
    assert set(threads) == {"history"}


def test_slow_writing_is_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, writes = Driver(MemoryBlobs()), list[float]()
    put = driver.blobs.put

    def slow(name: str, data: bytes) -> None:
        if name == HISTORY:
            writes.append(driver.seconds)
            driver.seconds += 1
        put(name, data)

    monkeypatch.setattr(driver.blobs, "put", slow)
    driver.run(300, every=1)
    assert len(writes) == 2
    assert writes[1] - writes[0] >= 199


def test_sweep_keeps_the_file() -> None:
    driver = Driver(MemoryBlobs())
    driver.run(30)
    driver.writer.close("DONE")
    Sweeper(driver.log, keep=1).sweep()
    assert total(kept(driver.blobs), 2) == 90


def test_temporary_folder_has_no_history() -> None:
    blobs = MemoryBlobs()
    log = opened(blobs)
    writer = HistoryWriter(None, log, Driver(MemoryBlobs()))
    writer.handled(CommitDecided(Timestamp(1), 1))
    writer.close("DONE")
    with pytest.raises(MissingFileError):
        blobs.get(HISTORY)


@pytest.mark.contract("PAGE-10")
def test_plan_is_written_at_the_start_and_its_loss_harms_nothing() -> None:
    class NoPlan(MemoryBlobs):
        def put(self, name: str, data: bytes) -> None:
            if name == PLAN:
                raise IndeterminateError("the store does not answer")
            super().put(name, data)

    for blobs, found in ((MemoryBlobs(), {"name": "words"}), (NoPlan(), None)):
        driver = Driver(blobs)
        HistoryWriter(blobs, driver.log, driver, plan={"name": "words"})
        assert plan_in(blobs) == found
        driver.commit(1)
