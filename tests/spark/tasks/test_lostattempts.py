"""Attempts of tasks that failed before others succeeded: their reasons reach the driver, in a few lines."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from arcbeam.fnapi.lost import SdkWorkerLostError
from arcbeam.harness.operations.whereabouts import SIZE, Whereabouts, place_of
from arcbeam.spark.tasks.lostattempts import TaskRun, earlier, record_failure, warnings
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.streaming.status.tries import on_host

HERE = socket.gethostname()
TASK = TaskRun(micro_batch=7, run=1, level=2, task=0)


@pytest.fixture
def location(tmp_path: Path) -> JobLocation:
    (tmp_path / "job").mkdir()
    return JobLocation(str(tmp_path / "job"))


def lose(location: JobLocation, of: TaskRun, *numbers: int) -> None:
    for number in numbers:
        record_failure(location, of, number, SdkWorkerLostError(f"lost {number}\nits last lines"))


def test_first_attempt_reads_nothing(location: JobLocation) -> None:
    assert earlier(location, TASK, 0) == ()


def test_reasons_are_kept_in_order(location: JobLocation) -> None:
    lose(location, TASK, 0, 1)
    assert earlier(location, TASK, 2) == (on_host(HERE, "lost 0"), on_host(HERE, "lost 1"))


def test_long_reason_is_shortened(location: JobLocation) -> None:
    record_failure(location, TASK, 0, RuntimeError("x" * 1_500))
    assert earlier(location, TASK, 1) == (on_host(HERE, "x" * 1_000),)


def test_reason_of_a_death_is_unknown(location: JobLocation) -> None:
    lose(location, TASK, 1)
    assert earlier(location, TASK, 3) == ("", on_host(HERE, "lost 1"), "")


@pytest.mark.parametrize("field", ["micro_batch", "run", "level", "task"])
def test_reasons_of_other_tasks_do_not_count(location: JobLocation, field: str) -> None:
    lose(location, TASK, 0)
    assert earlier(location, replace(TASK, **{field: 3}), 1) == ("",)


def test_files_are_as_many_as_tasks(location: JobLocation) -> None:
    for micro_batch in range(5):
        lose(location, replace(TASK, micro_batch=micro_batch), 0)
    assert len(location.list()) == 1


def test_nothing_is_left_to_an_ended_job(tmp_path: Path) -> None:
    lose(JobLocation(str(tmp_path / "gone")), TASK, 0)
    assert not (tmp_path / "gone").exists()


def test_warning_has_reason_or_death(location: JobLocation) -> None:
    note = bytearray(SIZE)
    died = Whereabouts()
    died.use(note)
    died.begin({"attempt": 23, "place": TASK.place(1), "host": "elsewhere"})
    died.enter(place_of("Parse"))
    location.put_bytes("boxes/a-2-1", bytes(note))
    location.put_bytes("boxes/a-2-1.exit", b"-9")
    assert warnings(location, [(TASK, ("lost 0", "", ""))]) == [
        "attempt 1 of task 0 failed (micro-batch 7, level 2); Spark ran it again: lost 0",
        "attempt 2 of task 0 failed (micro-batch 7, level 2); Spark ran it again: on host elsewhere: a Python worker "
        "died: signal 9 (SIGKILL), in transform 'Parse'",
        "attempt 3 of task 0 failed (micro-batch 7, level 2); Spark ran it again: the reason is unknown; perhaps its "
        "executor was lost",
    ]


def test_many_failed_attempts_are_counted(location: JobLocation) -> None:
    some = [(replace(TASK, task=task), ("lost",)) for task in range(9)]
    lines = warnings(location, some)
    assert len(lines) == 5
    assert lines[-1] == "5 more attempts of tasks of micro-batch 7 failed, and Spark ran the tasks again"
