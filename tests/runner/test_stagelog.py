"""What a job keeps of the log of its tasks: the newest lines of each stage, without secrets."""

from __future__ import annotations

import pytest

from arcbeam import secrets
from arcbeam.model.rows import LogLine
from arcbeam.runner import stagelog
from arcbeam.runner.stagelog import StageLog

pytestmark = pytest.mark.contract("PAGE-12")


def line(time: int, level: str = "INFO") -> LogLine:
    return LogLine(time, level, f"line {time}")


def test_lines_of_all_stages_are_in_order_of_time() -> None:
    log = StageLog({"s1": "Read"})
    log.add("s1", "host:1", [line(3), line(5)])
    log.add("s2", "host:2", [line(4)])
    assert [(each["time"], each["stage"], each["worker"]) for each in log.newest()] == [
        (3, "Read", "host:1"),
        (4, "s2", "host:2"),
        (5, "Read", "host:1"),
    ]
    assert log.newest()[0] == {"time": 3, "level": "INFO", "text": "line 3", "stage": "Read", "worker": "host:1"}


def test_many_lines_do_not_replace_warnings() -> None:
    log = StageLog({})
    log.add("read", "host:1", [line(0, "WARNING"), *(line(time) for time in range(1, 1000))])
    kept = log.newest()
    assert len(kept) == 1 + stagelog._OF_STAGE
    assert (kept[0]["level"], kept[-1]["time"]) == ("WARNING", 999)


def test_job_with_many_stages_shows_the_newest_lines() -> None:
    log = StageLog({})
    for stage in range(1000):
        log.add(f"stage {stage}", "host:1", [line(stage)])
    assert [each["time"] for each in log.newest()] == list(range(1000 - stagelog._OF_JOB, 1000))


def test_secrets_are_not_in_lines() -> None:
    secrets.install({"s3_secret_access_key": "hunter2-hunter2"})
    log = StageLog({})
    log.add("read", "host:1", [LogLine(1, "INFO", "the key is hunter2-hunter2")])
    assert log.newest()[0]["text"] == "the key is …"
