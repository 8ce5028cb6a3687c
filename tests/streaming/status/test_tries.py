"""Texts about failed tries."""

from __future__ import annotations

from arcbeam.streaming.status.tries import deadly_try, failed_attempt, failed_try


def test_failed_try_has_its_number_and_first_line() -> None:
    assert failed_try(2, 14, "the store is away\n  what to do: wait") == "try 2 of 14 failed: the store is away"


def test_deadly_try_has_what_is_known() -> None:
    assert deadly_try(2, 3, "Parse", "exit code 9") == "a worker died in try 2 of 3, in transform 'Parse', exit code 9"
    assert deadly_try(1, 3, "", "") == "a worker died in try 1 of 3"


def test_failed_attempt_has_its_task_and_first_line() -> None:
    reported = failed_attempt(1, 9, 2, 0, "the worker is gone\n  its last lines")
    assert reported == "attempt 1 of task 0 failed (micro-batch 9, level 2); Spark ran it again: the worker is gone"
