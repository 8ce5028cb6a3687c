"""Scripted rows for Structured Streaming and for us, and what either makes of them.

A script is rows of (event time in seconds, key), batch by batch: a file each for Spark, a micro-batch each for us.
Spark's query is stopped and begun again behind each batch, as its checkpoint has it. It ends without an end of event
time, ours has one: so what comes out of us behind Spark's last watermark is what Spark still holds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.testing import test_stream
from apache_beam.transforms import window
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.notes import note, noted
from tests.spark.streaming.timing.test_watermarks import pipeline

Row = tuple[float, str]
Batches = Sequence[Sequence[Row]]
_SCHEMA = "at double, key string"


def rows(*times: float, key: str = "a") -> list[Row]:
    """Rows of one key."""
    return [(time, key) for time in times]


class Feed:
    """A folder to which a script's batches come one after the other, each as a file.

    Args:
        folder: that is made.
        batches: of rows.
    """

    def __init__(self, folder: Path, batches: Batches) -> None:
        folder.mkdir(parents=True)
        self._folder, self._batches, self._come = folder, batches, 0

    def next(self, count: int) -> bool:
        """Some more come; whether there were any."""
        more = self._batches[self._come : self._come + count]
        for batch in more:
            file = self._folder / f"{self._come:03}.json"
            # Spark reads no file without rows: a row without a time is one that no window has.
            lines = [json.dumps({"at": at, "key": key}) for at, key in batch] or [json.dumps({"key": "nobody"})]
            file.write_text("\n".join(lines))
            os.utime(file, (1_000 + self._come, 1_000 + self._come))
            self._come += 1
        return bool(more)

    def streamed(self, spark: SparkSession, delay: float) -> DataFrame:
        """Its rows with the watermark."""
        stream = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).json(str(self._folder))
        timed = stream.withColumn("time", F.timestamp_micros(F.round(F.col("at") * 1_000_000).cast("long")))
        return timed.withWatermark("time", f"{round(delay * 1_000_000)} microseconds").where("at is not null")


@dataclass
class Told:
    """What Spark has made of a script.

    Attributes:
        batches: what each batch has put out, in turn.
        watermark: where it is at last, seconds.
        dropped: so many were late, before or behind a first aggregation.
    """

    batches: list[list[Any]] = field(default_factory=list)
    watermark: float = 0.0
    dropped: int = 0

    @property
    def rows(self) -> list[Any]:
        """All that came out."""
        return [row for batch in self.batches for row in batch]


def told_by_spark(
    frame: DataFrame, feeds: Sequence[Feed], checkpoint: Path, mode: str = "append", together: int = 1
) -> Told:
    """What a query puts out.

    Args:
        frame: of the query.
        feeds: that it reads.
        checkpoint: of the query.
        mode: of output.
        together: so many batches come before it runs; each run ends with a batch without rows if the watermark moved.
    """
    told = Told()

    def take(batch: DataFrame, _: int) -> None:
        told.batches.append([tuple(row) for row in batch.collect()])

    while sum(feed.next(together) for feed in feeds):
        query = (
            frame.writeStream.foreachBatch(take)
            .outputMode(mode)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        for progress in query.recentProgress:
            if text := progress["eventTime"].get("watermark"):
                told.watermark = max(told.watermark, window.Timestamp.from_rfc3339(text).micros / 1e6)
            told.dropped += sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"])
    return told


@contextmanager
def with_policy(spark: SparkSession, policy: str) -> Iterator[None]:
    """Spark's way of making one watermark of several."""
    spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", policy)
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.streaming.multipleWatermarkPolicy")


def scripted(batches: Batches) -> Any:
    """A script of which each batch is a micro-batch, and that says nothing of time before it ends."""
    return both_scripted({"": batches})


def both_scripted(sides: dict[str, Batches]) -> Any:
    """As `scripted`; rows of several scripts, those of the same batch in the same micro-batch, know their `side`."""
    stream = test_stream.TestStream()
    for batches in zip(*sides.values(), strict=True):
        stream = stream.add_elements(
            [
                {"at": at, "key": key, "side": side}
                for side, batch in zip(sides, batches, strict=True)
                for at, key in batch
            ]
        )
    return stream.advance_watermark_to_infinity()


def of_side(elements: Any, side: str) -> Any:
    """The rows of one side."""
    return elements | f"{side.title()} rows" >> beam.Filter(lambda row: row["side"] == side)


@dataclass(frozen=True)
class Made:
    """What we have made of a script.

    Attributes:
        rows: all that came out, in no order.
        dropped: so many were late.
    """

    rows: list[Any]
    dropped: int


def ours(build: Callable[[beam.Pipeline], Any], folder: Path) -> Made:
    """What a pipeline puts out."""
    folder.mkdir(parents=True)
    p = pipeline()
    _ = build(p) | "Note" >> beam.Map(note, str(folder))
    result = p.run()
    result.wait_until_finish()
    return Made(noted(folder), dropped(result))


def dropped(result: Any) -> int:
    """How many were late in a job."""
    found = result.metrics().query(beam.metrics.MetricsFilter().with_name("droppedDueToLateness"))["counters"]
    return sum(counter.committed for counter in found)


def in_turn(panes: Iterable[tuple[Any, int, Any]]) -> dict[Any, list[Any]]:
    """The results of each key, one after the other.

    Args:
        panes: key, a number that grows, result.
    """
    found: dict[Any, list[Any]] = {}
    for key, _, result in sorted(panes):
        found.setdefault(key, []).append(result)
    return found
