"""Channels as data frames: filter, union, exchange.

Owns how a routing becomes Spark operators. Rows are as in `arcbeam.spark.tasks.task.ARROW_SCHEMA`. Each operator
costs some milliseconds of Spark's planning, so there is none that would do nothing. Conditions are SQL text: it is
parsed in one call of the JVM, where an expression of columns takes a call for each of its parts.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from arcbeam.model.plan import Routing
from arcbeam.model.rows import REPORT
from arcbeam.spark.tasks.failure import Guarded

_ROW = StructType(
    [
        StructField("channel", IntegerType()),
        StructField("shard", IntegerType()),
        StructField("bucket", IntegerType()),
        StructField("blob", BinaryType()),
        StructField("unpacked", IntegerType()),
    ]
)
"""The type of a row as it travels; a schema in words would be parsed in the JVM, for every stage of every pipeline."""


def impulse(spark: SparkSession) -> DataFrame:
    """One number in one partition, which a task takes for one row: the beginning of everything."""
    return spark.range(0, 1, 1, 1)


def union(frames: list[DataFrame]) -> DataFrame:
    """All rows, partitions side by side."""
    return reduce(lambda a, b: a.union(b), frames)


def channel(frame: DataFrame, index: int, with_reports: bool) -> DataFrame:
    """The rows of one channel of a stage's output."""
    return frame.filter(f"channel IN ({index}, {REPORT})" if with_reports else f"channel = {index}")


def reports(frame: DataFrame) -> DataFrame:
    """The reports in a stage's output."""
    return frame.filter(f"channel = {REPORT}")


def exchanged(frame: DataFrame, routing: Routing, shards: int) -> DataFrame:
    """Moves rows to their shards; rows of a shard come in ascending order of bucket where keys matter."""
    if routing in (Routing.FORWARD, Routing.SIDE):
        return frame
    moved = frame.repartitionById(shards, "shard")
    return moved if routing is Routing.SPREAD else moved.sortWithinPartitions("bucket")


def mapped(frame: DataFrame, task: Any) -> DataFrame:
    """Runs a task (a callable over Arrow batches) on every partition."""
    return frame.mapInArrow(Guarded(task).__call__, _ROW)
