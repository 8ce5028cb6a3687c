"""Failures are counted by their error, with their newest place, and the hosts."""

from __future__ import annotations

from typing import Any

import pytest

from arcbeam.page.timelines.errors import errors_of
from arcbeam.streaming.status.tries import failed_attempt, on_host

pytestmark = pytest.mark.contract("PAGE-01")


def events(*texts: str, kind: str = "trouble") -> dict[str, Any]:
    return {"events": [{"time": at, "kind": kind, "text": text} for at, text in enumerate(texts)]}


def test_equal_errors_of_attempts_are_one_row_with_all_hosts() -> None:
    lost = [failed_attempt(at + 1, 9 + at, 2, 0, on_host(host, "ValueError: a: b")) for at, host in enumerate("aba")]
    other = failed_attempt(1, 9, 2, 0, "the reason is unknown")
    first, second = errors_of(events(other, *lost, kind="retry"))
    assert (first.text, first.times.text, first.hosts) == ("ValueError: a: b", "3", "a, b")
    assert first.newest == "attempt 3 of task 0 failed (micro-batch 11, level 2)"
    assert (first.first, first.last) == (1, 3)
    assert (second.text, second.times.text, second.hosts) == ("the reason is unknown", "1", "")


def test_failed_tries_of_micro_batches_are_counted() -> None:
    why = "a worker died\nits last lines: oh"
    (row,) = errors_of(events(f"micro-batch 7 failed in try 1: {why}", f"micro-batch 7 failed in try 2: {why}"))
    assert (row.text, row.times.text, row.newest) == (why, "2", "micro-batch 7 failed in try 2")


def test_events_without_a_failure_are_no_errors() -> None:
    assert errors_of(events("at micro-batch 0", kind="start")) == []
    assert errors_of(events("at micro-batch 0")) == []
