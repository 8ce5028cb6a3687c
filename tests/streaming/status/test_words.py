"""Sentences about a job that views share: times, lateness of work, silence of a driver."""

from __future__ import annotations

import time
from typing import Any

import pytest

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP
from arcbeam.streaming.status.words import is_over, overdue, shown, silent, state_of


def record(**fields: Any) -> dict[str, Any]:
    return {"mode": "running", **fields}


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (MIN_TIMESTAMP, "beginning"),
        (MAX_TIMESTAMP, "end"),
        (END_OF_GLOBAL_WINDOW, "end of the global window"),
        (1_500_000, "1970-01-01 00:00:01.500Z"),
        (-1, "1969-12-31 23:59:59.999Z"),
        (MAX_TIMESTAMP - 1, f"{MAX_TIMESTAMP - 1} µs"),
    ],
)
def test_time_is_shown_in_utc_or_by_its_name(moment: int, text: str) -> None:
    assert shown(moment) == text


def test_work_that_is_due_for_a_minute_is_overdue() -> None:
    now = time.time() * 1e6
    late = overdue(record(due=now - 1000e6))
    assert late is not None
    assert late >= 1000
    assert overdue(record(due=now + 1000e6)) is None
    assert overdue(record(due=None)) is None


@pytest.mark.parametrize(
    "of",
    [
        {"mode": "suspended"},
        {"ended": {"state": "DONE"}},
        {"driver": {"time": 0, "every": 1}},
        {"scripted": True},
    ],
)
def test_work_without_a_missing_driver_is_not_overdue(of: dict[str, Any]) -> None:
    assert overdue(record(due=0, **of) if "mode" not in of else {"due": 0, **of}) is None


def test_driver_without_note_for_its_period_is_silent() -> None:
    now = time.time() * 1e6
    driver = {"time": now - 1000e6, "every": 10.0}
    seconds = silent(record(driver=driver))
    assert seconds is not None
    assert seconds >= 1000
    assert silent(record(driver=driver | {"every": 10_000.0})) is None
    assert silent(record(driver=driver, ended={"state": "DONE"})) is None
    assert silent(record(driver=None)) is None


def test_state_is_doubted_if_no_driver_seems_to_run() -> None:
    now = time.time() * 1e6
    assert state_of(record()) == "running"
    assert state_of(record(due=now - 1000e6)) == "running, perhaps"
    assert state_of(record(driver={"time": now - 1000e6, "every": 10.0})) == "running, perhaps"
    assert state_of(record(due=0, ended={"state": "FAILED"})) == "FAILED"


def test_job_is_over_if_ended_or_by_its_mode() -> None:
    assert is_over(record(ended={"state": "FAILED"}))
    assert is_over({"mode": "done"})
    assert not is_over(record())
