"""The data of a micro-batch reaches its tasks without a new plan, unless it is large."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.files import FileKind, Shard, ShardFile
from arcbeam.spark.session.versions import Versions
from arcbeam.spark.streaming import dataframes
from arcbeam.spark.streaming.dataframes import MicroBatchFrames
from arcbeam.spark.streaming.leveldata import LevelInput, property_of
from arcbeam.spark.streaming.leveltask import LevelTask
from arcbeam.spark.streaming.workerjob import StreamingJob
from arcbeam.spark.tasks.jobproperties import encoded
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.streaming.assignment import TaskAssignment
from arcbeam.streaming.task.finalizing import Confirmed
from tests.streaming.jobs import plan
from tests.streaming.test_physicalplan import at

FILE = ShardFile("x" * 300, FileKind.DELTA, 1, 0, 1, 0, b"", b"", 1, 1)
STATES = tuple(Shard(level, 0, (FILE,)) for level in range(3))
"""For each level, so that no two levels have the same."""


@pytest.mark.contract("STORE-02")
def test_plan_is_reused_unless_data_is_large(spark: SparkSession, tmp_path: Path) -> None:
    job = StreamingJob("job", at(), TaskSettings(), JobLocation(str(tmp_path)), "", Versions.here())
    frames, reported = MicroBatchFrames(spark, job), spark.sparkContext.getLocalProperty
    order = TaskAssignment(plan(2, 1), 1, "store", (), (Shard(1, 0, (FILE,)), Shard(2, 1, (FILE,))))
    confirmed = (Confirmed(1, (b"token",)),)
    one, other = frames.of(order, confirmed), frames.of(replace(order, epoch=2), confirmed)
    assert one.sameSemantics(other)
    for level in range(3):
        own = replace(order, epoch=2).of_level(
            level, {placed.name for placed in job.physical.layout.at(level)}, job.physical.sides_of[level]
        )
        assert reported(property_of(level)) == encoded(LevelInput(own, confirmed))
    # A name that does not compress.
    large = replace(order, shards=(Shard(1, 0, (replace(FILE, name=random.Random(1).randbytes(1 << 18).hex()),)),))
    assert not frames.of(large, confirmed).sameSemantics(one)
    assert [reported(property_of(level)) for level in range(3)] == [None] * 3


def test_each_micro_batch_is_a_separate_query(spark: SparkSession, tmp_path: Path) -> None:
    """A data frame that is collected a second time would read the shuffle files of the first micro-batch."""
    frames = MicroBatchFrames(
        spark, StreamingJob("job", at(), TaskSettings(), JobLocation(str(tmp_path)), "", Versions.here())
    )
    order = TaskAssignment(plan(2, 1), 1, "store", (), ())
    micro_batches = [frames.of(order, ()) for _ in range(3)]
    queries = {micro_batch._jdf.queryExecution().hashCode() for micro_batch in micro_batches}  # type: ignore[operator]
    assert len(queries) == 3


def test_upper_levels_micro_batch_has_their_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """Levels have different numbers of tasks here, and each level's property has its own value or is cleared."""
    physical = at()
    physical = replace(physical, layout=replace(physical.layout, tasks=(2, 3, 4)))
    job = StreamingJob("job", physical, TaskSettings(), JobLocation(str(tmp_path)), "", Versions.here())
    frames, reported = MicroBatchFrames(spark, job), spark.sparkContext.getLocalProperty
    confirmed = (Confirmed(1, (b"token",)),)
    exchanges = []
    for first in (0, 1, 2, 1, 0):
        order = TaskAssignment(plan(2, 1, first=first), 1, "store", (), (), STATES)
        text = frames.of(order, confirmed)._jdf.queryExecution().analyzed().toString()  # type: ignore[operator]
        assert text.count("MapInArrow") == 3 - first
        assert f"Range (0, {physical.layout.tasks[first]}," in text
        exchanges.append(text.count("Repartition"))
        for level in range(3):
            own = order.of_level(level, {placed.name for placed in physical.layout.at(level)}, physical.sides_of[level])
            assert reported(property_of(level)) == (encoded(LevelInput(own, confirmed)) if level >= first else None)
    assert exchanges == [2, 1, 0, 1, 2]


def test_large_micro_batch_has_order_per_level(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    physical = at()
    given: list[tuple[int, LevelInput | None]] = []

    def noted(location: JobLocation, level: int, own: LevelInput | None) -> LevelTask:
        given.append((level, own))
        return LevelTask(location, level, own)

    monkeypatch.setattr(dataframes, "LevelTask", noted)
    monkeypatch.setattr(dataframes, "PROPERTY_BYTES_MAX", 1)
    frames = MicroBatchFrames(
        spark, StreamingJob("job", physical, TaskSettings(), JobLocation(str(tmp_path)), "", Versions.here())
    )
    for first in (0, 1):
        given.clear()
        order = TaskAssignment(plan(2, 1, first=first), 1, "store", (), (), STATES)
        frames.of(order, ())
        levels = [(level, {each.name for each in physical.layout.at(level)}) for level in range(first, 3)]
        assert all(one != other for (_, one), (_, other) in pairwise(given))
        assert given == [
            (level, LevelInput(order.of_level(level, names, physical.sides_of[level]), ())) for level, names in levels
        ]


def test_limit_counts_all_levels_together(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = MicroBatchFrames(
        spark, StreamingJob("job", at(), TaskSettings(), JobLocation(str(tmp_path)), "", Versions.here())
    )
    order = TaskAssignment(plan(2, 1), 1, "store", (), ())
    frames.of(order, ())
    lengths = [len(spark.sparkContext.getLocalProperty(property_of(level)) or "") for level in range(3)]
    for limit, fits in ((sum(lengths), True), (sum(lengths) - 1, False)):
        monkeypatch.setattr(dataframes, "PROPERTY_BYTES_MAX", limit)
        frames.of(order, ())
        assert [spark.sparkContext.getLocalProperty(property_of(level)) is not None for level in range(3)] == [fits] * 3
