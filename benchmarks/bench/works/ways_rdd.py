"""The ways to write it as hand-written PySpark RDDs."""

from __future__ import annotations

from collections.abc import Callable
from operator import add
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.sql import Row

from bench.works import ways, work
from bench.works.rdd import Job, numbers, tally
from bench.works.work import Answer


def by_row(x: int) -> tuple[Row, int]:
    key = work.key_of(x)
    return Row(row=key // ways.WIDE, column=key % ways.WIDE), x


_KEYED: dict[str, Callable[[int], Any]] = ways.KEYED | {"row": by_row}


def _yields(sc: SparkContext, elements: int) -> Answer:
    made = numbers(sc, elements).flatMap(ways.once).flatMap(ways.zero_or_once).flatMap(ways.once_or_twice)
    return tally(made, work.digest_number)


def _mapped(sc: SparkContext, elements: int) -> RDD[int]:
    return numbers(sc, elements).map(work.scale).map(work.mix)


def _one(value: float) -> Answer:
    return Answer(1, work.digest_number(int(value)))


def _mean(sc: SparkContext, elements: int) -> Answer:
    # `RDD.mean` takes several times as long, because it also computes the variance.
    total, count = _mapped(sc, elements).aggregate(
        (0, 0), lambda a, x: (a[0] + x, a[1] + 1), lambda a, b: (a[0] + b[0], a[1] + b[1])
    )
    return _one(total / count)


def _sum(kind: str) -> Job:
    def run(sc: SparkContext, elements: int) -> Answer:
        sums = numbers(sc, elements).map(_KEYED[kind]).reduceByKey(add, sc.defaultParallelism)
        return tally(sums, ways.digest_by(kind))

    return run


def _group(kind: str) -> Job:
    def run(sc: SparkContext, elements: int) -> Answer:
        groups = numbers(sc, elements).map(_KEYED[kind]).groupByKey(sc.defaultParallelism)
        return tally(groups.mapValues(sum), ways.digest_by(kind))

    return run


def _distinct(kind: str) -> Job:
    def run(sc: SparkContext, elements: int) -> Answer:
        keys = numbers(sc, elements).map(_KEYED[kind]).keys().distinct(sc.defaultParallelism)
        return tally(keys, ways.digest_key(kind))

    return run


JOBS: dict[str, Job] = {
    "yields": _yields,
    "count-globally": lambda sc, elements: _one(_mapped(sc, elements).map(work.scale).count()),
    "sum-globally": lambda sc, elements: _one(_mapped(sc, elements).sum()),
    "top": lambda sc, elements: _one(sum(_mapped(sc, elements).top(ways.LARGEST))),
    "mean": _mean,
    **{f"sum-{kind}": _sum(kind) for kind in ways.KINDS},
    **{f"group-{kind}": _group(kind) for kind in ways.KINDS},
    **{f"distinct-{kind}": _distinct(kind) for kind in ("tuple", "dataclass")},
}
