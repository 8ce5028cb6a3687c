"""The lines of a worker's output that are part of a message."""

from __future__ import annotations

import pytest

from arcbeam.fnapi.environments.output import OutputTail

pytestmark = pytest.mark.contract("API-06")


def lines(*output: str) -> list[str]:
    tail = OutputTail()
    for line in output:
        tail.add(line)
    return list(tail.lines())


def test_last_lines_are_kept() -> None:
    assert lines(*map(str, range(20)), "") == [str(n) for n in range(12, 20)]


@pytest.mark.parametrize("info", [["Provision info: all"], ["2026/11/27 10:00:00 Provision info:", "all", ""]])
def test_options_of_the_pipeline_are_left_out(info: list[str]) -> None:
    assert lines(*info, "exec: no Python") == ["exec: no Python"]


@pytest.mark.parametrize("line", ["INFO:root:Creating insecure control channel", "Error Setting Rlimit not permitted"])
def test_lines_of_healthy_workers_are_left_out(line: str) -> None:
    assert lines("before", line, "MemoryError") == ["before", "MemoryError"]


@pytest.mark.parametrize("first", ["panic: no init", "fatal error: all goroutines are asleep", "SIGSEGV: violation"])
def test_crash_report_is_kept_from_its_first_line(first: str) -> None:
    frames = [f"main.f{n}()" for n in range(30)]
    assert lines("before", first, *frames) == [first, *frames[:7], *frames[22:]]


def test_short_crash_report_is_not_repeated() -> None:
    assert lines("before", "panic: no init", "", "main.init.0()") == ["before", "panic: no init", "main.init.0()"]
