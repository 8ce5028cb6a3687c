"""The works as hand-written PySpark DataFrames with Python functions.

Element functions are the same Python functions as for the other peers, as Arrow-optimised UDFs or inside `mapInArrow`.
Grouping, counting, windows and joins are Spark's own, so some of it runs in the JVM without Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from bench.works import work
from bench.works.work import Answer

BATCH = 10_000
Batches = Iterator[pa.RecordBatch]


def tally(frame: DataFrame, digest: Callable[..., int]) -> Answer:
    """`digest` gets the columns of a row as arguments."""

    def part(batches: Batches) -> Batches:
        count = total = 0
        for batch in batches:
            count += batch.num_rows
            total += sum(map(digest, *(column.to_pylist() for column in batch.columns)))
        yield pa.RecordBatch.from_pydict({"count": [count], "total": [total]})

    parts = frame.mapInArrow(part, "count long, total long").collect()
    return Answer(sum(row["count"] for row in parts), sum(row["total"] for row in parts))


def flat_map(frame: DataFrame, function: Callable[[Any], Iterable[Any]], schema: str) -> DataFrame:
    """Apply `function` to each row (a dict), and make rows (tuples) of its results."""
    names = StructType.fromDDL(schema).names

    def part(batches: Batches) -> Batches:
        rows = (row for batch in batches for element in batch.to_pylist() for row in function(element))
        while chunk := list(islice(rows, BATCH)):
            yield pa.RecordBatch.from_arrays([pa.array(column) for column in zip(*chunk, strict=True)], names)

    return frame.mapInArrow(part, schema)


def numbers(spark: SparkSession, elements: int, start: int = 0) -> DataFrame:
    def part(batches: Batches) -> Batches:
        for batch in batches:
            for seed in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                values = iter(work.numbers(seed))
                while chunk := list(islice(values, BATCH)):
                    yield pa.RecordBatch.from_arrays([pa.array(chunk, pa.int64())], ["x"])

    seeds = spark.createDataFrame(work.seeds(elements, start), "start long, stop long")
    return seeds.mapInArrow(part, "x long")


def udf(function: Callable[..., Any], returns: str = "long") -> Callable[..., Any]:
    return F.udf(function, returns, useArrow=True)


def pair(key: int, value: int) -> int:
    return work.digest_pair((key, value))


def keyed(frame: DataFrame) -> DataFrame:
    return frame.select(udf(work.key_of)("x").alias("key"), "x")


def _map(spark: SparkSession, elements: int) -> Answer:
    scaled = numbers(spark, elements).select(udf(work.scale)("x").alias("x"))
    kept = scaled.where(udf(work.keep, "boolean")("x"))
    return tally(kept.select(udf(work.mix)("x").alias("x")), work.digest_number)


def _group(spark: SparkSession, elements: int) -> Answer:
    groups = keyed(numbers(spark, elements)).groupBy("key").agg(F.collect_list("x").alias("values"))
    return tally(groups.select("key", udf(sum)("values")), pair)


def _count(spark: SparkSession, elements: int) -> Answer:
    keys = numbers(spark, elements).select(udf(work.key_of)("x").alias("key"))
    return tally(keys.groupBy("key").count(), pair)


def _reshuffle(spark: SparkSession, elements: int) -> Answer:
    spread = numbers(spark, elements).repartition(spark.sparkContext.defaultParallelism)
    return tally(spread, work.digest_number)


def _cogroup(spark: SparkSession, elements: int) -> Answer:
    half = elements // 2
    lefts = keyed(numbers(spark, half)).groupBy("key").agg(F.collect_list("x").alias("lefts"))
    rights = keyed(numbers(spark, elements - half, half)).groupBy("key").agg(F.collect_list("x").alias("rights"))

    def merge(lefts: Sequence[int] | None, rights: Sequence[int] | None) -> int:
        # Arrow passes arrays to a UDF as numpy arrays or lists, and a missing side as None.
        return int(work.merge([] if lefts is None else lefts, [] if rights is None else rights))

    return tally(lefts.join(rights, "key", "full").select("key", udf(merge)("lefts", "rights")), pair)


def _window(spark: SparkSession, elements: int) -> Answer:
    timed = numbers(spark, elements).select(
        udf(work.window_key)("x").alias("key"),
        F.timestamp_seconds(udf(work.second_of)("x")).alias("time"),
        "x",
    )
    sliding = F.window("time", f"{work.WINDOW_SIZE} seconds", f"{work.WINDOW_PERIOD} seconds")
    means = timed.groupBy("key", sliding.alias("window")).agg(F.avg("x").alias("mean"))
    return tally(means.select("key", F.unix_timestamp("window.start").alias("start"), "mean"), work.digest_window)


def _state(spark: SparkSession, elements: int) -> Answer:
    def ordinals(group: dict[str, Any]) -> Iterator[tuple[int, int]]:
        return ((group["key"], ordinal) for ordinal, _ in enumerate(group["values"], 1))

    groups = keyed(numbers(spark, elements)).groupBy("key").agg(F.collect_list("x").alias("values"))
    return tally(flat_map(groups, ordinals, "key long, ordinal long"), pair)


def _side(spark: SparkSession, elements: int) -> Answer:
    rows = flat_map(numbers(spark, work.KEYS), lambda row: [work.table_row(row["x"])], "key long, value long")
    table: Broadcast[dict[int, int]] = spark.sparkContext.broadcast(dict(rows.collect()))
    joined = numbers(spark, elements).select(udf(lambda x: x + table.value[work.key_of(x)])("x"))
    return tally(joined, work.digest_number)


def _words(spark: SparkSession, elements: int) -> Answer:
    lines = spark.read.text(str(work.corpus(elements)))
    words = flat_map(lines, lambda row: [(word,) for word in work.words_of(row["value"])], "word string")
    return tally(words.groupBy("word").count(), lambda word, count: work.digest_word((word, count)))


def _tiny(spark: SparkSession, elements: int) -> Answer:
    frame = spark.createDataFrame([(x,) for x in range(work.TINY)], "x long")
    return tally(frame.select(udf(lambda x: x)("x")), work.digest_number)


def _tiny_group(spark: SparkSession, elements: int) -> Answer:
    frame = spark.createDataFrame([work.third(x) for x in range(work.TINY)], "key long, x long")
    groups = frame.groupBy("key").agg(F.collect_list("x").alias("values"))
    return tally(groups.select("key", udf(sum)("values")), pair)


JOBS: dict[str, Callable[[SparkSession, int], Answer]] = {
    "map": _map,
    "group": _group,
    "count": _count,
    "reshuffle": _reshuffle,
    "cogroup": _cogroup,
    "window": _window,
    "state": _state,
    "side": _side,
    "words": _words,
    "tiny": _tiny,
    "tiny-group": _tiny_group,
}
