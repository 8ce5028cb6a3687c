"""The progress line: its content, and when it is not shown."""

from __future__ import annotations

import io
import logging

import pytest

from arcbeam.console.progressline import JobProgress, ProgressLine, announce, line


def test_line_has_time_elements_tasks_and_stages() -> None:
    text = line(JobProgress(("Read + Map", "Group"), 1234567, 8), 12.4, 200)
    assert text == "   12 s  1,234,567 elements  8 tasks  Read + Map; Group"


def test_line_is_not_wider_than_terminal() -> None:
    assert len(line(JobProgress(("x" * 500,), 1, 1), 1.0, 79)) == 79


@pytest.mark.contract("OPS-02")
def test_nothing_is_written_without_a_terminal() -> None:
    stream = io.StringIO()
    with ProgressLine(lambda: JobProgress((), 0, 0), stream):
        pass
    assert stream.getvalue() == ""


@pytest.mark.contract("OPS-03")
@pytest.mark.parametrize(
    ("level", "written", "logged"),
    [
        (logging.NOTSET, "arcbeam: Spark is ready\n", []),
        (logging.INFO, "", ["Spark is ready"]),
        (logging.ERROR, "", []),
    ],
)
def test_announcement_appears_once_unless_log_is_off(
    level: int, written: str, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    stream, logger = io.StringIO(), logging.getLogger("arcbeam")
    before = logger.level
    logger.setLevel(level)
    try:
        announce("Spark is ready", stream)
    finally:
        logger.setLevel(before)
    assert stream.getvalue() == written
    assert [record.getMessage() for record in caplog.records] == logged
