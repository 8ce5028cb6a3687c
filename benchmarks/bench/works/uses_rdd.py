"""State and timers, aggregates of rows, and files as hand-written PySpark RDDs, pandas and fastavro."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from operator import add
from pathlib import Path
from typing import Any

import fastavro
import pandas
from pyspark import SparkContext
from pyspark.sql import Row

from bench.works import uses, work
from bench.works.rdd import JOBS as PLAIN
from bench.works.rdd import Job, numbers, tally
from bench.works.uses import Sale
from bench.works.work import Answer


def _timers(sc: SparkContext, elements: int) -> Answer:
    def fired(group: tuple[int, Iterable[int]]) -> Iterator[tuple[int, int]]:
        return ((group[0], value) for value in sorted(group[1]))

    groups = numbers(sc, elements).map(work.keyed).groupByKey(sc.defaultParallelism)
    return tally(groups.flatMap(fired), work.digest_pair)


def _aggregate(row: Callable[[int], Any]) -> Job:
    def run(sc: SparkContext, elements: int) -> Answer:
        pairs = numbers(sc, elements).map(row).map(lambda row: (row.k, row.v))
        return tally(pairs.reduceByKey(add, sc.defaultParallelism), uses.digest_sale)

    return run


def _aggregate_twice(sc: SparkContext, elements: int) -> Answer:
    pairs = numbers(sc, elements).map(_row).map(lambda row: (row.k, (row.v, row.v)))
    sums = pairs.reduceByKey(lambda a, b: (a[0] + b[0], max(a[1], b[1])), sc.defaultParallelism)
    return tally(sums, lambda pair: uses.digest_sale((pair[0], *pair[1])))


def _row(x: int) -> Row:
    return Row(k=work.key_of(x), v=x)


def _sale(x: int) -> Sale:
    return Sale(work.key_of(x), x)


def _write(kind: str, part: Callable[[Path, Iterable[int]], None] | None) -> Job:
    def run(sc: SparkContext, elements: int) -> Answer:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            written = Path(folder) / "out"
            if part is None:
                numbers(sc, elements).map(uses.line_of).saveAsTextFile(str(written))
            else:
                write = part
                written.mkdir()

                def each(place: int, made: Iterable[int]) -> Iterator[None]:
                    write(written / f"part-{place}", made)
                    return iter(())

                numbers(sc, elements).mapPartitionsWithIndex(each).count()
            return uses.look_at(kind, written)

    return run


def _write_parquet(path: Path, made: Iterable[int]) -> None:
    pandas.DataFrame(list(map(uses.record_of, made))).to_parquet(path)


def _write_avro(path: Path, made: Iterable[int]) -> None:
    with path.open("wb") as file:
        fastavro.writer(file, uses.AVRO, map(uses.record_of, made), codec="deflate")


def _read_text(sc: SparkContext, elements: int) -> Answer:
    return tally(sc.textFile(str(uses.files("text", elements))).map(uses.number_of), work.digest_number)


def _read(kind: str, records: Callable[[Path], Iterable[dict[str, Any]]]) -> Job:
    def run(sc: SparkContext, elements: int) -> Answer:
        paths = sorted(uses.files(kind, elements).iterdir())
        return tally(sc.parallelize(paths, sc.defaultParallelism).flatMap(records), uses.digest_record)

    return run


def _parquet_records(path: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = pandas.read_parquet(path).to_dict("records")
    return records


def _avro_records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        yield from fastavro.reader(file)


JOBS: dict[str, Job] = {
    "state-sum": PLAIN["state"],
    "timers": _timers,
    "aggregate-row": _aggregate(_row),
    "aggregate-rows": _aggregate_twice,
    "aggregate-named": _aggregate(_sale),
    "write-text": _write("text", None),
    "write-parts": _write("text", None),
    "write-parquet": _write("parquet", _write_parquet),
    "write-avro": _write("avro", _write_avro),
    "read-text": _read_text,
    "read-parquet": _read("parquet", _parquet_records),
    "read-avro": _read("avro", _avro_records),
}
