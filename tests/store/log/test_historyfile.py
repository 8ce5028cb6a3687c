"""The files of a job for people: its figures over time, and its plan."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from arcbeam.store.log import planfile
from arcbeam.store.log.historyfile import (
    Chunk,
    HistoryEvent,
    StoredHistory,
    decode,
    encode,
    history_in,
    record_history,
)
from arcbeam.store.manifest.names import DETAILS, HISTORY, PLAN, TASKS
from arcbeam.testing.blobs import MemoryBlobs

_GOLDEN = Path(__file__).parent / "golden" / "history-1"
_HISTORY = StoredHistory(
    ((1_000_000, (Chunk(2, ("behind.last",), ("read.sum",), ("Read", "Join"), ("timer Join",), b"figures"),)),),
    (HistoryEvent(5_000_000, "savepoint", "one at micro-batch 3"),),
)


@pytest.mark.contract("OPS-07")
def test_format_is_that_of_the_golden_file() -> None:
    assert decode(_GOLDEN.read_bytes()) == _HISTORY
    assert encode(_HISTORY) == _GOLDEN.read_bytes()


@pytest.mark.contract("OPS-07")
def test_history_is_read_back() -> None:
    blobs = MemoryBlobs()
    assert history_in(blobs) == StoredHistory()
    record_history(blobs, _HISTORY)
    assert history_in(blobs) == _HISTORY


@pytest.mark.contract("OPS-07")
def test_torn_changed_or_newer_file_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    blobs, data = MemoryBlobs(), encode(_HISTORY)
    newer = data[:8] + b"\x02" + data[9:]
    changed = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
    for wrong in (*(data[:length] for length in range(len(data))), newer, *changed):
        blobs.put(HISTORY, wrong)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "arcbeam.store"):
            assert history_in(blobs) == StoredHistory()
        assert len(caplog.records) == 1


_GOLDEN_PLAN = Path(__file__).parent / "golden" / "plan-1"
_PLAN: dict[str, Any] = {"name": "wörds \ud800", "stages": [{"id": "s0", "source": None}], "channels": []}


@pytest.mark.contract("PAGE-10")
def test_format_of_plan_is_that_of_the_golden_file() -> None:
    assert planfile.decode(_GOLDEN_PLAN.read_bytes()) == _PLAN
    assert planfile.encode(_PLAN) == _GOLDEN_PLAN.read_bytes()


@pytest.mark.contract("PAGE-12")
def test_tasks_are_read_back_and_no_plan() -> None:
    blobs = MemoryBlobs()
    assert planfile.tasks_in(blobs) is None
    planfile.record_tasks(blobs, _PLAN)
    assert planfile.tasks_in(blobs) == _PLAN
    blobs.put(TASKS, planfile.encode(_PLAN))
    assert planfile.tasks_in(blobs) is None


@pytest.mark.contract("PAGE-05")
def test_details_are_read_back_and_no_tasks() -> None:
    blobs = MemoryBlobs()
    assert planfile.details_in(blobs) is None
    planfile.record_details(blobs, _PLAN)
    assert planfile.details_in(blobs) == _PLAN
    blobs.put(DETAILS, planfile.encode(_PLAN, TASKS))
    assert planfile.details_in(blobs) is None


@pytest.mark.contract("PAGE-10")
def test_plan_is_read_back_and_replaced() -> None:
    blobs = MemoryBlobs()
    assert planfile.plan_in(blobs) is None
    planfile.record_plan(blobs, {"name": "before"})
    planfile.record_plan(blobs, _PLAN)
    assert planfile.plan_in(blobs) == _PLAN


@pytest.mark.contract("PAGE-10")
def test_torn_changed_or_newer_plan_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    blobs, data = MemoryBlobs(), planfile.encode(_PLAN)
    newer = data[:8] + b"\x02" + data[9:]
    changed = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
    other = json.dumps([1]).encode()
    for wrong in (*(data[:length] for length in range(len(data))), newer, *changed, other):
        blobs.put(PLAN, wrong)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "arcbeam.store"):
            assert planfile.plan_in(blobs) is None
        assert len(caplog.records) == 1
