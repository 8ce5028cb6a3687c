"""The progress line: its content, and when it is not shown."""

from __future__ import annotations

import io
import logging
import threading

import pytest

from arcbeam.console.progressline import JobProgress, ProgressLine, StageProgress, StageState, announce, line


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


class Waits(threading.Event):
    """An event that is set after some waits, whose times it has."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self._waits = waits
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        if len(self.seconds) == self._waits:
            self.set()
        return self.is_set()


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


def test_announcement_goes_to_stderr_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    announce("Spark is ready")
    assert capsys.readouterr().err == "arcbeam: Spark is ready\n"
    flushed = io.BytesIO()
    stream = io.TextIOWrapper(flushed)
    announce("Spark is ready", stream)
    assert flushed.getvalue() == b"arcbeam: Spark is ready\n"


def test_line_is_erased_after_the_last_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "41")
    terminal, waits = Terminal(), Waits(3)
    progress = iter([JobProgress(("Read",), 10, 1), JobProgress((), 20, 2)])
    shown = ProgressLine(lambda: next(progress), terminal)
    shown._done = waits
    with shown:
        assert shown._thread is not None
        shown._thread.join()
    lines = terminal.getvalue().split("\r")
    assert [text[7:] for text in lines[1:3]] == ["  10 elements  1 tasks  Read", "  20 elements  2 tasks      "]
    assert {text[5:7] for text in lines[1:3]} == {" s"}
    assert lines[3:] == [" " * 31, ""]
    assert waits.seconds == [2.0, 1.0, 1.0]


def test_short_job_shows_no_line() -> None:
    terminal, waits = Terminal(), Waits(1)
    shown = ProgressLine(lambda: JobProgress((), 0, 0), terminal)
    shown._done = waits
    with shown:
        assert shown._thread is not None
        shown._thread.join()
    assert terminal.getvalue() == ""


def test_line_goes_to_stderr_if_that_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    shown = ProgressLine(lambda: JobProgress((), 0, 0))
    shown._done = Waits(2)
    with shown:
        assert shown._thread is not None
        shown._thread.join()
    assert "0 elements" in terminal.getvalue()


def test_stage_begins_as_waiting_without_figures() -> None:
    assert StageProgress("s") == StageProgress("s", StageState.WAITING, 0, 0, 0, 0, 0.0, 1, True)
