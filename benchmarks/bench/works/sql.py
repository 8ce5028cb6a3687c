"""The works in pure Spark SQL, without Python functions: the potential gain where SQL can express the work.

The element functions are written again in SQL. State by key, which SQL cannot express directly, is replaced by
numbering rows.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from bench.works import work
from bench.works.work import Answer

_KEY = f"pmod(x * 2654435761 & 4294967295, {work.KEYS})"
_WINDOW_KEY = f"pmod(x * 2654435761 & 4294967295, {work.WINDOW_KEYS})"
_PRIME = "10007"
_PAIR = f"(key * 31 + value) % {_PRIME}"


def tally(frame: DataFrame, digest: str) -> Answer:
    """Return the count of the rows, and the sum of an expression over them."""
    row = frame.selectExpr("count(*)", f"sum({digest})").first()
    assert row is not None
    return Answer(row[0], row[1] or 0)


def numbers(spark: SparkSession, elements: int, start: int = 0) -> DataFrame:
    return spark.range(start, start + elements, 1, spark.sparkContext.defaultParallelism).withColumnRenamed("id", "x")


def keyed(frame: DataFrame) -> DataFrame:
    return frame.selectExpr(f"{_KEY} key", "x")


def _map(spark: SparkSession, elements: int) -> Answer:
    kept = numbers(spark, elements).selectExpr("x * 3 + 1 x").where("x % 4 != 0")
    return tally(kept.selectExpr("x ^ 21845 x"), f"x % {_PRIME}")


def _group(spark: SparkSession, elements: int) -> Answer:
    sums = keyed(numbers(spark, elements)).groupBy("key").sum("x")
    return tally(sums.toDF("key", "value"), _PAIR)


def _count(spark: SparkSession, elements: int) -> Answer:
    return tally(keyed(numbers(spark, elements)).groupBy("key").count().toDF("key", "value"), _PAIR)


def _reshuffle(spark: SparkSession, elements: int) -> Answer:
    return tally(numbers(spark, elements).repartition(spark.sparkContext.defaultParallelism), f"x % {_PRIME}")


def _cogroup(spark: SparkSession, elements: int) -> Answer:
    half = elements // 2
    lefts = keyed(numbers(spark, half)).groupBy("key").agg({"x": "sum", "*": "count"})
    lefts = lefts.selectExpr("key", "`sum(x)` lefts", "`count(1)` n")
    rights = keyed(numbers(spark, elements - half, half)).groupBy("key").sum("x").toDF("key", "rights")
    merged = "coalesce(lefts, 0) * 3 + coalesce(rights, 0) * 5 + coalesce(n, 0)"
    return tally(lefts.join(rights, "key", "full").selectExpr("key", f"{merged} value"), _PAIR)


def _window(spark: SparkSession, elements: int) -> Answer:
    seconds = numbers(spark, elements).selectExpr(f"{_WINDOW_KEY} key", f"x % {work.WINDOW_SPAN} second", "x")
    last = f"second - second % {work.WINDOW_PERIOD}"
    starts = f"sequence({last}, {last} - {work.WINDOW_SIZE - work.WINDOW_PERIOD}, -{work.WINDOW_PERIOD})"
    means = seconds.selectExpr("key", "x", f"explode({starts}) start").groupBy("key", "start").avg("x")
    return tally(means.toDF("key", "start", "mean"), f"pmod(key * 31 + start * 17 + cast(mean as bigint), {_PRIME})")


def _state(spark: SparkSession, elements: int) -> Answer:
    ordinal = "row_number() over (partition by key order by x) value"
    return tally(keyed(numbers(spark, elements)).selectExpr("key", ordinal), _PAIR)


def _side(spark: SparkSession, elements: int) -> Answer:
    table = numbers(spark, work.KEYS).selectExpr("x key", "x * x % 1009 value")
    joined = keyed(numbers(spark, elements)).join(table.hint("broadcast"), "key")
    return tally(joined, f"(x + value) % {_PRIME}")


def _words(spark: SparkSession, elements: int) -> Answer:
    lines = spark.read.text(str(work.corpus(elements)))
    words = lines.selectExpr('explode(regexp_extract_all(value, "[A-Za-z\']+", 0)) key')
    counts = words.groupBy("key").count().toDF("key", "value")
    return tally(counts, f"(crc32(key) + value) % {_PRIME}")


def _tiny(spark: SparkSession, elements: int) -> Answer:
    return tally(numbers(spark, work.TINY), f"x % {_PRIME}")


def _tiny_group(spark: SparkSession, elements: int) -> Answer:
    sums = numbers(spark, work.TINY).selectExpr("x % 3 key", "x").groupBy("key").sum("x")
    return tally(sums.toDF("key", "value"), _PAIR)


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
