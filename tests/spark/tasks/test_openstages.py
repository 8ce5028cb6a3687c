"""The stages that a worker keeps open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from arcbeam.spark.tasks.openstages import OpenStages
from arcbeam.store.jobtemp.location import JobLocation


class Stage:
    """Records when it is closed."""

    def __init__(self, name: str, closed: list[str]) -> None:
        self.name, self._closed = name, closed
        self.id = name

    def needs_teardown(self) -> bool:
        return False

    def close(self) -> list[str]:
        self._closed.append(self.name)
        if self.name == "breaks":
            raise OSError("broken")
        return [f"{self.name} complains"] if self.name == "s2" else []


def opener(tmp_path: Path, closed: list[str]) -> Callable[..., Any]:
    stages, location = OpenStages(), JobLocation(str(tmp_path))

    def get(job: str, key: str, most: int = 9) -> Any:
        return stages.get(job, key, lambda: Stage(job + key, closed), location, None, quick=False, most=most)

    return get


def test_alternating_jobs_keep_their_stages(tmp_path: Path) -> None:
    closed: list[str] = []
    get = opener(tmp_path, closed)
    first = {job: get(job, "1") for job in "abcdefgh"}
    for _ in range(3):
        for job in "abcdefgh":
            assert get(job, "1") is first[job]
    assert closed == []
    get("a", "1")
    get("i", "1")
    assert closed == ["b1"], "the least recently used job must be closed"


def test_limited_number_of_stages_stays_open(tmp_path: Path) -> None:
    closed: list[str] = []
    get = opener(tmp_path, closed)
    other, kept = get("b", "1"), get("a", "1", 2)
    get("a", "2", 2)
    assert get("a", "1", 2) is kept
    get("a", "3", 2)
    assert closed == ["a2"]
    assert get("b", "1") is other


def test_stages_are_torn_down_in_requested_order(tmp_path: Path) -> None:
    closed: list[str] = []
    stages, location = OpenStages(), JobLocation(str(tmp_path))
    for id in ("s1", "s10", "s2", "breaks"):
        stages.get("a", id, lambda id=id: Stage(id, closed), location, None, quick=False)
    assert [each.name for each in stages.of("a")] == ["s1", "s10", "s2", "breaks"]
    assert stages.of("b") == []
    assert stages.close_job("a", ("s10", "s2", "s1")) == ["s2 complains", "OSError: broken"]
    assert closed == ["s10", "s2", "s1", "breaks"]


def test_worker_is_set_up_after_another_job(tmp_path: Path) -> None:
    stages, location, done = OpenStages(), JobLocation(str(tmp_path)), []

    def get(job: str, key: str) -> None:
        stages.get(job, key, lambda: Stage(job + key, []), location, lambda: done.append(job), quick=False)

    for job, key in [("a", "1"), ("a", "1"), ("a", "2"), ("b", "1"), ("a", "1"), ("a", "2"), ("b", "1")]:
        get(job, key)
    assert done == ["a", "a", "b", "a", "b"]
