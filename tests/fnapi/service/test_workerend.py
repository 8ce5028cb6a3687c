"""What is known of the end of a worker, from what the program that started it has logged."""

from __future__ import annotations

import pytest

from arcbeam.fnapi.service.workerend import WorkerEnd


@pytest.mark.contract("API-06")
@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("User program exited: exit status 3", "exit status 3"),
        ("User program exited: signal: killed", "signal: killed"),
        ("Python (worker 1-1) exited 4 times: exit status 7\nout of retries, failing container", "exit status 7"),
    ],
)
def test_boot_program_tells_how_the_worker_ended(text: str, how: str) -> None:
    end = WorkerEnd()
    end.logged(text, by_boot=True)
    assert (end.how(), end.last_lines()) == (how, ())


@pytest.mark.contract("API-06")
@pytest.mark.parametrize("by_boot", [True, False])
def test_failures_of_other_programs_are_kept(by_boot: bool) -> None:
    text = "failed to install required packages: exit status 1"
    end = WorkerEnd()
    end.logged(text, by_boot=by_boot)
    assert (end.how(), end.last_lines()) == ("", (f"it logged: {text}",))
