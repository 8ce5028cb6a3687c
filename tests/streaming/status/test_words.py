"""Sentences about a job that views share: times, lateness of work, silence of a driver."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP
from arcbeam.store.log.endnote import EndNote
from arcbeam.streaming.status.status import Status
from arcbeam.streaming.status.words import bytes_shown, overdue, shown, silent, state_of
from tests.page import samples


def status(**fields: Any) -> Status:
    return samples.status(1, **{"driver": None, **fields})


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


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_234_567, "1.23 MB"), (5 * 10**9, "5 GB"), (10**12, "1 TB")],
)
def test_size_is_shown_in_its_unit(size: int, shown: str) -> None:
    assert bytes_shown(size) == shown


def test_work_that_is_due_for_a_minute_is_overdue() -> None:
    now = time.time() * 1e6
    late = overdue(status(due=now - 1000e6))
    assert late is not None
    assert late >= 1000
    assert overdue(status(due=now + 1000e6)) is None
    assert overdue(status(due=None)) is None


@pytest.mark.parametrize(
    "of",
    [
        {"mode": CommitMode.SUSPENDED},
        {"ended": EndNote(0, "DONE")},
        {"driver": samples.driver(0)},
        {"scripted": True},
    ],
)
def test_work_without_a_missing_driver_is_not_overdue(of: dict[str, Any]) -> None:
    assert overdue(status(due=0, **of)) is None


def test_driver_without_note_for_its_period_is_silent() -> None:
    now = time.time() * 1e6
    driver = samples.driver(round(now - 1000e6))
    seconds = silent(status(driver=driver))
    assert seconds is not None
    assert seconds >= 1000
    assert silent(status(driver=replace(driver, every=10_000.0))) is None
    assert silent(status(driver=driver, ended=EndNote(0, "DONE"))) is None
    assert silent(status()) is None


def test_state_is_unconfirmed_if_no_driver_seems_to_run() -> None:
    now = time.time() * 1e6
    assert state_of(status()) == "running"
    assert state_of(status(due=now - 1000e6)) == "running, perhaps"
    assert state_of(status(driver=samples.driver(round(now - 1000e6)))) == "running, perhaps"
    assert state_of(status(due=0, ended=EndNote(0, "FAILED"))) == "FAILED"


def test_job_is_over_if_ended_or_by_its_mode() -> None:
    assert status(ended=EndNote(0, "FAILED")).is_over
    assert status(mode=CommitMode.DONE).is_over
    assert not status().is_over
