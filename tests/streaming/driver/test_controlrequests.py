"""A driver's clock, events and requests."""

from __future__ import annotations

import queue
import time
from pathlib import Path

import pytest

from arcbeam.engine.coordinator import Event
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import requests
from arcbeam.store.log.requests import Answer, AnswerKind
from arcbeam.streaming.driver import controlrequests
from arcbeam.streaming.driver.controlrequests import EventQueue, RequestWatch, WallClock
from arcbeam.streaming.driver.requests import RequestQueue
from tests.store.samples import opened
from tests.waiting import until

SECOND = 1_000_000_000


@pytest.mark.contract("ENG-07")
def test_clock_never_goes_back_but_may_jump_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall, running = 1_000 * SECOND, 50 * SECOND
    monkeypatch.setattr(time, "time_ns", lambda: wall)
    monkeypatch.setattr(time, "monotonic_ns", lambda: running)
    clock = WallClock()
    assert clock.now() == 1_000_000_000
    wall, running = wall - 3_600 * SECOND, running + 2 * SECOND
    assert clock.now() == 1_002_000_000
    wall, running = wall + SECOND, running + SECOND
    assert clock.now() == 1_003_000_000
    wall, running = 9_000 * SECOND, running + SECOND
    assert clock.now() == 9_000_000_000


def test_driver_starts_at_time_of_driver_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 5 * SECOND)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)
    clock = WallClock()
    clock.start_at(Timestamp(7_000_000))
    assert clock.now() == 7_000_000


@pytest.mark.contract("ENG-07")
@pytest.mark.parametrize(
    ("until", "seconds"),
    [
        (None, None),
        (Timestamp(0), 0.0),
        (Timestamp(5_000_000), 0.0),
        (Timestamp(5_250_000), 0.25),
        (Timestamp(65_000_000), 60.0),
        (Timestamp(65_000_001), 60.0),
        (Timestamp(3_605_000_000), 60.0),
        (MAX_TIMESTAMP, 60.0),
    ],
)
def test_driver_reads_its_clock_at_least_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, until: Timestamp | None, seconds: float | None
) -> None:
    """The machine may sleep, and its clock may be set, while the driver waits."""
    waits: list[float | None] = []

    class Waits(queue.SimpleQueue[Event]):
        def get(self, block: bool = True, timeout: float | None = None) -> Event:
            waits.append(timeout)
            raise queue.Empty

    monkeypatch.setattr(time, "time_ns", lambda: 5 * SECOND)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)
    monkeypatch.setattr(queue, "SimpleQueue", Waits)
    assert EventQueue(WallClock()).next(until) is None
    assert waits == [seconds]


@pytest.mark.contract("OPS-02")
def test_long_running_driver_removes_old_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controlrequests, "_LOOKS_SECONDS", 0.001)
    monkeypatch.setattr(controlrequests, "_FORGETS_EVERY", 2)
    blobs, clock = FolderBlobs(tmp_path, sync=False), WallClock()
    queue = RequestQueue(EventQueue(clock), clock)
    queue.opened(blobs, opened(blobs).head)
    blobs.put("requests/1-bad", b"no request")
    with RequestWatch(queue, "job"):
        until(lambda: not requests.waiting(blobs))
        requests.answer(blobs, "0000000000000005-old", Answer(AnswerKind.DONE))
        until(lambda: not list(blobs.list("answers")))
