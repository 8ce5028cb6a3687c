"""The data frames of a job's micro-batches: tasks of the first level, and an exchange before each other level.

Owns their plan, and how the data of a micro-batch reaches its tasks. Must not know what a task does with it.

All micro-batches that begin with the same level have the same plan, except for the data of their tasks. In a classic
session a thread can pass text to the tasks of its jobs as local properties; a Connect server has no such properties.
With properties, the plan is built and analyzed once, and each micro-batch is a query on it. Each query needs its
own shuffles, so the same data frame is not collected twice.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from arcbeam.spark.session.remote import is_connect
from arcbeam.spark.streaming.leveldata import LevelInput, property_of
from arcbeam.spark.streaming.leveltask import LevelTask
from arcbeam.spark.streaming.rows import ORDER, SCHEMA
from arcbeam.spark.streaming.workerjob import StreamingJob
from arcbeam.spark.tasks.failure import Guarded
from arcbeam.spark.tasks.jobproperties import PROPERTY_BYTES_MAX, encoded
from arcbeam.streaming.assignment import SampleOrder, TaskAssignment
from arcbeam.streaming.task.finalizing import Confirmed

_ROW = StructType([StructField(f.name, BinaryType() if f.name == "blob" else IntegerType()) for f in SCHEMA])


class MicroBatchFrames:
    """The data frames of a job's micro-batches.

    Args:
        spark: the session to run in.
        job: the job's data for its tasks.
    """

    def __init__(self, spark: SparkSession, job: StreamingJob) -> None:
        self._spark, self._job = spark, job
        # By the level with which a micro-batch begins.
        self._of_all: dict[int, DataFrame] = {}

    def of(
        self, order: TaskAssignment, confirmed: tuple[Confirmed, ...], samples: tuple[SampleOrder, ...] = ()
    ) -> DataFrame:
        """Return the reports of all tasks of a micro-batch, as a data frame; the calling thread must collect it."""
        physical = self._job.physical
        first = order.plan.first
        given = []
        for level, sides in enumerate(physical.sides_of[first:], first):
            stages = {placed.name for placed in physical.layout.at(level)}
            sampled = tuple(sample for sample in samples if sample.stage in stages)
            given.append(LevelInput(order.of_level(level, stages, sides), confirmed, sampled))
        if is_connect(self._spark):
            return self._built(first, given)
        texts = [encoded(each) for each in given]
        fits = sum(map(len, texts)) <= PROPERTY_BYTES_MAX
        for level, text in enumerate([*[None] * first, *texts]):
            self._spark.sparkContext.setLocalProperty(property_of(level), text if fits else None)  # type: ignore[arg-type]
        if not fits:
            return self._built(first, given)
        if first not in self._of_all:
            self._of_all[first] = self._built(first, [None] * len(given))
        return self._of_all[first].alias("step")

    def _built(self, first: int, given: list[LevelInput] | list[None]) -> DataFrame:
        tasks = self._job.physical.layout.tasks
        frame: DataFrame = self._spark.range(0, tasks[first], 1, tasks[first])
        for level, count in enumerate(tasks[first:], first):
            if level > first:
                frame = frame.repartitionById(count, "task").sortWithinPartitions(*ORDER)
            frame = frame.mapInArrow(Guarded(LevelTask(self._job.location, level, given[level - first])).__call__, _ROW)
        return frame
