"""Which tasks of a process send heartbeats."""

from __future__ import annotations

import struct
from pathlib import Path

from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.streaming.status.taskheartbeats import HeardTasks, RunningTasks


def test_short_tasks_of_a_long_run_send_heartbeats(tmp_path: Path) -> None:
    now, location = 100.0, JobLocation(str(tmp_path))
    tasks = RunningTasks(lambda: now)
    for number in range(3):
        id = tasks.add(location, f"0-{number}", 7, 0)
        assert tasks.due() == []
        now += 2
        if number < 2:
            tasks.remove(id)
    assert tasks.due() == [(location, "0-2", 7, 0)]
    tasks.remove(id)
    assert tasks.due() == []
    id = tasks.add(location, "1-0", 7, 0)
    assert tasks.due() == [(location, "1-0", 7, 0)]
    tasks.remove(id)
    tasks.add(location, "1-0", 7, 1)
    assert tasks.due() == [], "another run has just begun"


def test_jobs_are_apart(tmp_path: Path) -> None:
    now = 100.0
    one, other = (JobLocation(str(tmp_path / name)) for name in ("one", "other"))
    tasks = RunningTasks(lambda: now)
    tasks.add(one, "0-0", 7, 0)
    now += 5
    tasks.add(other, "0-0", 7, 0)
    assert tasks.due() == [(one, "0-0", 7, 0)]


def test_silence_is_measured_from_the_last_heartbeat_of_the_run(tmp_path: Path) -> None:
    now, location = 100.0, JobLocation(str(tmp_path))
    tasks = HeardTasks(location, lambda: now)

    def beat(micro_batch: int, attempt: int, number: int) -> None:
        location.put_bytes("beats/0-0", struct.pack("<qqq", micro_batch, attempt, number))

    assert tasks.silent((7, 0)) == 0
    beat(7, 0, 1)
    now += 4
    assert tasks.silent((7, 0)) == 4, "the files of a short run are not read"
    now += 2
    assert tasks.silent((7, 0)) == 0
    now += 6
    assert tasks.silent((7, 0)) == 6, "the same heartbeat"
    beat(6, 0, 2)
    assert tasks.silent((7, 0)) == 6, "that of another run"
    beat(7, 0, 2)
    assert tasks.silent((7, 0)) == 0
    now += 3
    assert tasks.silent((7, 1)) == tasks.silent(None) == 0
