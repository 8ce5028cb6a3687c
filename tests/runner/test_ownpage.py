"""The job of this process, as the page of `--page_address` asks for it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from arcbeam.errors import JobNotFoundError
from arcbeam.runner.ownpage import OwnService


class Bounded:
    """A bounded job that runs."""

    id, name, state = "count-1", "count", "RUNNING"

    def __init__(self) -> None:
        self.end = threading.Event()

    def snapshot(self, whole: bool) -> dict[str, Any]:
        return {"progress": {"stages": []}} if whole else {}

    def cancel(self) -> None:
        """Wait for the job's end, which waits for the end of its page."""
        self.end.wait()


def test_job_of_this_process_says_when_it_started() -> None:
    service = OwnService(Bounded(), {})  # type: ignore[arg-type]  # not asked to do anything
    (entry,) = service.overview()
    assert entry["started"] > 0
    assert service.details("count-1", False) == {**entry, "progress": {"stages": []}}
    with pytest.raises(JobNotFoundError, match="count-2"):
        service.details("count-2")


def test_cancel_answers_before_the_end_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Bounded()
    service = OwnService(job, {})  # type: ignore[arg-type]  # only cancelled
    waits = list[float]()
    monkeypatch.setattr(time, "sleep", waits.append)
    service.await_shown()
    assert waits == [], "no request, no wait"
    assert service.cancel("count-1") == "CANCELLING"
    service.await_shown()
    assert 0 < waits[0] <= 2
    job.end.set()
