"""The job of this process, as the page of `--page_address` asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from arcbeam.errors import JobNotFoundError
from arcbeam.runner.ownpage import OwnService


class Bounded:
    """A bounded job that runs."""

    id, name, state = "count-1", "count", "RUNNING"

    def snapshot(self, whole: bool) -> dict[str, Any]:
        return {"progress": {"stages": []}} if whole else {}


def test_job_of_this_process_says_when_it_started() -> None:
    service = OwnService(Bounded(), {})  # type: ignore[arg-type]  # not asked to do anything
    (entry,) = service.overview()
    assert entry["started"] > 0
    assert service.details("count-1", False) == {**entry, "progress": {"stages": []}}
    with pytest.raises(JobNotFoundError, match="count-2"):
        service.details("count-2")
