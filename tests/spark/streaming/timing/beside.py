"""Scripted rows for Structured Streaming and for arcbeam, and the results of both.

A script is rows of (event time in seconds, key), batch by batch: one file each for Spark, one micro-batch each for
arcbeam. Spark's query is stopped and restarted after each batch, from its checkpoint. It ends without an end of event
time, but arcbeam's job has one. So arcbeam's output after Spark's last watermark is what Spark still holds.
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
    """Return rows of one key."""
    return [(time, key) for time in times]


class Feed:
    """A folder that receives a script's batches one after the other, each as a file.

    Args:
        folder: created.
        batches: batches of rows.
    """

    def __init__(self, folder: Path, batches: Batches) -> None:
        folder.mkdir(parents=True)
        self._folder, self._batches, self._come = folder, batches, 0

    def next(self, count: int) -> bool:
        """Add some more; return whether there were any."""
        more = self._batches[self._come : self._come + count]
        for batch in more:
            file = self._folder / f"{self._come:03}.json"
            # Spark does not read a file without rows, so it gets a row without a time, which is in no window.
            lines = [json.dumps({"at": at, "key": key}) for at, key in batch] or [json.dumps({"key": "nobody"})]
            file.write_text("\n".join(lines))
            os.utime(file, (1_000 + self._come, 1_000 + self._come))
            self._come += 1
        return bool(more)

    def streamed(self, spark: SparkSession, delay: float) -> DataFrame:
        """Return its rows with the watermark."""
        stream = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).json(str(self._folder))
        timed = stream.withColumn("time", F.timestamp_micros(F.round(F.col("at") * 1_000_000).cast("long")))
        return timed.withWatermark("time", f"{round(delay * 1_000_000)} microseconds").where("at is not null")


@dataclass
class SparkResult:
    """Spark's result for a script.

    Attributes:
        batches: the output of each batch, in order.
        watermark: the final watermark, seconds.
        dropped: how many rows were late, before or after a first aggregation.
    """

    batches: list[list[Any]] = field(default_factory=list)
    watermark: float = 0.0
    dropped: int = 0

    @property
    def rows(self) -> list[Any]:
        """Return the whole output."""
        return [row for batch in self.batches for row in batch]


def results_of_spark(
    frame: DataFrame, feeds: Sequence[Feed], checkpoint: Path, mode: str = "append", together: int = 1
) -> SparkResult:
    """Return the output of a query.

    Args:
        frame: the query.
        feeds: its inputs.
        checkpoint: the query's checkpoint.
        mode: output mode.
        together: number of batches that arrive before a run; each run ends with an empty batch if the watermark moved.
    """
    reported = SparkResult()

    def take(batch: DataFrame, _: int) -> None:
        reported.batches.append([tuple(row) for row in batch.collect()])

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
                reported.watermark = max(reported.watermark, window.Timestamp.from_rfc3339(text).micros / 1e6)
            reported.dropped += sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"])
    return reported


@contextmanager
def with_policy(spark: SparkSession, policy: str) -> Iterator[None]:
    """Set Spark's policy for several watermarks."""
    spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", policy)
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.streaming.multipleWatermarkPolicy")


def scripted(batches: Batches) -> Any:
    """Return a script in which each batch is a micro-batch, and which reports no watermark before it ends."""
    return both_scripted({"": batches})


def both_scripted(sides: dict[str, Batches]) -> Any:
    """Like `scripted`, for several scripts; rows of the same batch are in the same micro-batch, and have a `side`."""
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
    """Return the rows of one side."""
    return elements | f"{side.title()} rows" >> beam.Filter(lambda row: row["side"] == side)


@dataclass(frozen=True)
class Made:
    """arcbeam's result for a script.

    Attributes:
        rows: the whole output, unordered.
        dropped: how many rows were late.
    """

    rows: list[Any]
    dropped: int


def ours(build: Callable[[beam.Pipeline], Any], folder: Path) -> Made:
    """Return the output of a pipeline."""
    folder.mkdir(parents=True)
    p = pipeline()
    _ = build(p) | "Note" >> beam.Map(note, str(folder))
    result = p.run()
    result.wait_until_finish()
    return Made(noted(folder), dropped(result))


def dropped(result: Any) -> int:
    """Return how many rows were late in a job."""
    found = result.metrics().query(beam.metrics.MetricsFilter().with_name("droppedDueToLateness"))["counters"]
    return sum(counter.committed for counter in found)


def in_turn(panes: Iterable[tuple[Any, int, Any]]) -> dict[Any, list[Any]]:
    """Return the results of each key, in order.

    Args:
        panes: key, a number that grows, result.
    """
    found: dict[Any, list[Any]] = {}
    for key, _, result in sorted(panes):
        found.setdefault(key, []).append(result)
    return found
