"""A failed task closes all stages of its job in its worker, which Spark ends: so does one that is not tried again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from arcbeam.errors import UserCodeError
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.plan import Stage
from arcbeam.model.rows import Row
from arcbeam.spark.session.versions import Versions
from arcbeam.spark.streaming import leveltask
from arcbeam.spark.streaming.leveldata import LevelInput, error_stage
from arcbeam.spark.streaming.leveltask import LevelTask
from arcbeam.spark.streaming.workerjob import StreamingJob, give
from arcbeam.spark.tasks import failure
from arcbeam.spark.tasks.openstages import open_stages
from arcbeam.spark.tasks.task import StageTask, arrow
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.streaming.assignment import TaskAssignment
from tests.spark.tasks.test_openstages import Stage as OpenStage
from tests.streaming.jobs import plan
from tests.streaming.test_physicalplan import at

pytestmark = pytest.mark.contract("END-04")

BUG = UserCodeError("ValueError: a bug", "Map", "")


@pytest.fixture
def location(tmp_path: Path) -> JobLocation:
    return JobLocation(str(tmp_path / "job"))


@pytest.fixture
def closed(location: JobLocation) -> Iterator[list[str]]:
    """Open two stages of a job; yield the names of those that were closed."""
    closed: list[str] = []
    for name in "ab":
        open_stages.get("job", name, lambda name=name: OpenStage(name, closed), location, None, quick=True)
    yield closed
    open_stages.close_job("job")


def _rows() -> Iterator[pa.RecordBatch]:
    return iter(arrow([Row(0, 0, 0, b"")]))


def _stage_task(location: JobLocation) -> StageTask:
    stage = Stage("s1", "Broken", (), b"no payload", 0, ())
    return StageTask("job", stage, TaskSettings(quick_tasks=False), location, Versions.here())


def test_failed_bounded_task_closes_all_stages(location: JobLocation, closed: list[str]) -> None:
    with pytest.raises(Exception, match=r"\w"):
        list(_stage_task(location)(_rows()))
    assert closed == ["a", "b"]


def test_retry_of_bounded_task_closes_all_stages(location: JobLocation, closed: list[str]) -> None:
    failure.record(location, "s1", BUG)
    with pytest.raises(failure.TaskFailedError, match="a bug"):
        list(_stage_task(location)(_rows()))
    assert closed == ["a", "b"]


def test_retry_of_level_closes_all_stages(
    location: JobLocation, closed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Second:
        """Spark's context of a second attempt."""

        @classmethod
        def get(cls) -> Any:
            return cls()

        def attemptNumber(self) -> int:
            return 1

    monkeypatch.setattr(leveltask, "TaskContext", Second)
    store = str(tmp_path / "store")
    give(StreamingJob("job", at(), TaskSettings(), location, store, Versions.here()))
    order = TaskAssignment(plan(1, 1), 1, store, (), ())
    failure.record(location, error_stage(order.plan), BUG)
    with pytest.raises(failure.TaskFailedError, match="a bug"):
        list(LevelTask(location, 0, LevelInput(order))(iter(())))
    assert closed == ["a", "b"]
