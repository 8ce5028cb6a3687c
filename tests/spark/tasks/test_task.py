"""What user code in a task sees of its attempt: of a bounded job, and of a micro-batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from pyspark import TaskContext

from arcbeam.engine.coordinator import JobMachine, RunMicroBatch
from arcbeam.harness.operations import whereabouts
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.io import attempt
from arcbeam.model.timestamps import Timestamp
from arcbeam.spark.session.versions import Versions
from arcbeam.spark.streaming import leveltask
from arcbeam.spark.streaming.leveldata import LevelInput
from arcbeam.spark.streaming.leveltask import LevelTask
from arcbeam.spark.streaming.pace import machine_settings
from arcbeam.spark.streaming.workerjob import StreamingJob, give
from arcbeam.spark.tasks import task as tasks
from arcbeam.spark.tasks.crashlog import recorder
from arcbeam.spark.tasks.openstages import open_stages
from arcbeam.spark.tasks.task import StageTask
from arcbeam.store.blobs.backends import open_blobs
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.streaming.assignment import TaskAssignment, ordered
from arcbeam.streaming.driverstate import started
from arcbeam.streaming.physicalplan import placed
from arcbeam.streaming.restore.restore import RestoreOptions, restore
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.notes import note, noted

_IMPULSE = pa.RecordBatch.from_pydict({"id": [0]})


def note_attempt(_: Any, folder: str) -> None:
    """Note the attempt in which this runs, and whether the transform that runs is noted exactly."""
    of = attempt()
    note((of.micro_batch, of.order, whereabouts.here.careful), folder)


def begin_attempt(monkeypatch: pytest.MonkeyPatch, module: ModuleType, number: int, partition: int = 0) -> None:
    """Let a module's tasks run in this attempt of a task of Spark."""
    context: Any = object.__new__(TaskContext)  # `TaskContext()` would be that of all later tests
    context._partitionId, context._stageId, context._taskAttemptId, context._attemptNumber = partition, 5, 23, number
    monkeypatch.setattr(module, "TaskContext", SimpleNamespace(get=lambda: context))
    monkeypatch.setattr(recorder, "_pid", os.getpid())  # no thread, and no other os._exit
    monkeypatch.setattr(whereabouts.here, "careful", False)  # restored: other tests run in this process, too


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


@pytest.fixture
def task(tmp_path: Path, notes: Path) -> Iterator[StageTask]:
    """A task whose user code notes its attempt."""
    p = beam.Pipeline()
    _ = p | beam.Impulse() | beam.Map(note_attempt, str(notes))
    (stage,) = translate(ParsedPipeline(pipeline_proto(p)), name="job").stages
    yield StageTask("job", stage, TaskSettings(quick_tasks=False), JobLocation(str(tmp_path / "job")), Versions.here())
    open_stages.close_job("job")


@pytest.mark.parametrize(("round", "order"), [(0, (0,)), (1, (1, 0)), (7, (7, 0))])
def test_order_has_round_if_stage_has_rounds(task: StageTask, notes: Path, round: int, order: tuple[int, ...]) -> None:
    of_round = replace(task, round=round) if round else task
    list(of_round(iter([_IMPULSE])))
    assert noted(notes) == [(0, order, False)]


@pytest.mark.contract("BAT-06")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_retry_of_bounded_task_notes_exact_transform(
    task: StageTask, notes: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    begin_attempt(monkeypatch, tasks, number, partition=3)
    list(task(iter([_IMPULSE])))
    assert noted(notes) == [(0, (3,), number > 0)]


def first_micro_batch(folder: Path, settings: TaskSettings) -> tuple[JobLocation, TaskAssignment]:
    """Return the first micro-batch of a job whose user code notes its attempt; its tasks find the job in a location."""
    notes = folder / "notes"
    notes.mkdir()
    p = beam.Pipeline()
    _ = p | beam.Impulse() | beam.Map(note_attempt, str(notes))
    plan = translate(ParsedPipeline(pipeline_proto(p)), name="job", bounded=False)
    location, store = JobLocation(str(folder / "job")), str(folder / "store")
    taken = restore(plan, open_blobs(store), RestoreOptions(), shards=1, now=Timestamp(0), driver="driver")
    physical = placed(plan, taken.numbers, taken.shards, 1)
    give(StreamingJob("job", physical, settings, location, store, Versions.here()))
    head, machine = taken.log.head, JobMachine(physical.layout, machine_settings(settings))
    commands = machine.handle(started(head, physical.layout, Timestamp(0)))
    (run,) = (command for command in commands if isinstance(command, RunMicroBatch))
    return location, ordered(run.plan, head, head.epoch)


@pytest.mark.contract("BAT-06")
@pytest.mark.parametrize(
    ("run", "number", "careful"), [(0, 0, False), (0, 1, True), (1, 0, True), (2, 0, True), (1, 1, True)]
)
def test_retry_of_level_notes_exact_transform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: int, number: int, careful: bool
) -> None:
    """A worker may have died before: in an earlier attempt of the task, or in an earlier run of the micro-batch."""
    location, order = first_micro_batch(tmp_path, TaskSettings(quick_tasks=False))
    begin_attempt(monkeypatch, leveltask, number)
    order = replace(order, plan=replace(order.plan, attempt=run))
    list(LevelTask(location, 0, LevelInput(order))(iter(())))
    open_stages.close_job("job")
    assert noted(tmp_path / "notes") == [(1, (0, 0), careful)]
