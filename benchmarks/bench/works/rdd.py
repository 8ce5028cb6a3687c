"""The works as hand-written PySpark RDDs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import add
from typing import Any

from pyspark import RDD, SparkContext

from bench.works import work
from bench.works.work import Answer


def tally(rdd: RDD[Any], digest: Callable[[Any], int]) -> Answer:
    def part(elements: Iterable[Any]) -> Iterator[tuple[int, int]]:
        count = total = 0
        for element in elements:
            count += 1
            total += digest(element)
        yield count, total

    parts = rdd.mapPartitions(part).collect()
    return Answer(sum(count for count, _ in parts), sum(total for _, total in parts))


def numbers(sc: SparkContext, elements: int, start: int = 0) -> RDD[int]:
    return sc.parallelize(work.seeds(elements, start), sc.defaultParallelism).flatMap(work.numbers)


def _map(sc: SparkContext, elements: int) -> Answer:
    return tally(numbers(sc, elements).map(work.scale).filter(work.keep).map(work.mix), work.digest_number)


def _group(sc: SparkContext, elements: int) -> Answer:
    groups = numbers(sc, elements).map(work.keyed).groupByKey(sc.defaultParallelism)
    return tally(groups.mapValues(sum), work.digest_pair)


def _count(sc: SparkContext, elements: int) -> Answer:
    ones = numbers(sc, elements).map(lambda x: (work.key_of(x), 1))
    return tally(ones.reduceByKey(add, sc.defaultParallelism), work.digest_pair)


def _reshuffle(sc: SparkContext, elements: int) -> Answer:
    return tally(numbers(sc, elements).repartition(sc.defaultParallelism), work.digest_number)


def _cogroup(sc: SparkContext, elements: int) -> Answer:
    half = elements // 2
    lefts = numbers(sc, half).map(work.keyed)
    rights = numbers(sc, elements - half, half).map(work.keyed)
    groups = lefts.cogroup(rights, sc.defaultParallelism)
    return tally(groups.mapValues(lambda sides: work.merge(*sides)), work.digest_pair)


def _window(sc: SparkContext, elements: int) -> Answer:
    def windowed(x: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        key = work.window_key(x)
        return [((key, start), (x, 1)) for start in work.window_starts(work.second_of(x))]

    sums = numbers(sc, elements).flatMap(windowed)
    sums = sums.reduceByKey(lambda a, b: (a[0] + b[0], a[1] + b[1]), sc.defaultParallelism)
    means = sums.mapValues(lambda pair: pair[0] / pair[1])
    return tally(means, lambda element: work.digest_window(element[0][0], element[0][1], element[1]))


def _state(sc: SparkContext, elements: int) -> Answer:
    def ordinals(group: tuple[int, Iterable[int]]) -> Iterator[tuple[int, int]]:
        return ((group[0], ordinal) for ordinal, _ in enumerate(group[1], 1))

    groups = numbers(sc, elements).map(work.keyed).groupByKey(sc.defaultParallelism)
    return tally(groups.flatMap(ordinals), work.digest_pair)


def _side(sc: SparkContext, elements: int) -> Answer:
    table = sc.broadcast(numbers(sc, work.KEYS).map(work.table_row).collectAsMap())
    return tally(numbers(sc, elements).map(lambda x: x + table.value[work.key_of(x)]), work.digest_number)


def _words(sc: SparkContext, elements: int) -> Answer:
    words = sc.textFile(str(work.corpus(elements))).flatMap(work.words_of).map(lambda word: (word, 1))
    return tally(words.reduceByKey(add, sc.defaultParallelism), work.digest_word)


def _tiny(sc: SparkContext, elements: int) -> Answer:
    return tally(sc.parallelize(range(work.TINY), sc.defaultParallelism).map(lambda x: x), work.digest_number)


def _tiny_group(sc: SparkContext, elements: int) -> Answer:
    groups = sc.parallelize(range(work.TINY), sc.defaultParallelism).map(work.third).groupByKey(sc.defaultParallelism)
    return tally(groups.mapValues(sum), work.digest_pair)


Job = Callable[[SparkContext, int], Answer]

JOBS: dict[str, Job] = {
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
