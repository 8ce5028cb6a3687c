"""Channels as data frames: filter, union, exchange.

Owns how a routing becomes Spark operators. Rows have the schema `arcbeam.spark.tasks.task.ARROW_SCHEMA`. Each operator
costs some milliseconds of Spark's planning, so operators without effect are omitted. Conditions are SQL text: parsing
it takes one call to the JVM, while a column expression takes one call for each of its parts.
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
"""The type of a row in an exchange. A schema as text would be parsed in the JVM for every stage of every pipeline."""


def impulse(spark: SparkSession) -> DataFrame:
    """Return one number in one partition, which a task reads as one row: the input of every root stage."""
    return spark.range(0, 1, 1, 1)


def union(frames: list[DataFrame]) -> DataFrame:
    """Return the union of all rows, with all partitions side by side."""
    return reduce(lambda a, b: a.union(b), frames)


def channel(frame: DataFrame, index: int, with_reports: bool) -> DataFrame:
    """Return the rows of one channel of a stage's output."""
    return frame.filter(f"channel IN ({index}, {REPORT})" if with_reports else f"channel = {index}")


def reports(frame: DataFrame) -> DataFrame:
    """Return the reports in a stage's output."""
    return frame.filter(f"channel = {REPORT}")


def exchanged(frame: DataFrame, routing: Routing, shards: int) -> DataFrame:
    """Move rows to their shards. Where keys matter, the rows of a shard are sorted by bucket."""
    if routing in (Routing.FORWARD, Routing.SIDE):
        return frame
    moved = frame.repartitionById(shards, "shard")
    return moved if routing is Routing.SPREAD else moved.sortWithinPartitions("bucket")


def mapped(frame: DataFrame, task: Any) -> DataFrame:
    """Run a task (a callable over Arrow batches) on every partition."""
    return frame.mapInArrow(Guarded(task).__call__, _ROW)
