"""The same scripted rows through Structured Streaming and through us, on the same Spark: the same results.

A script is rows of (event time in seconds, key), batch by batch: a file each for Spark, a step each for us. Spark's
query ends without an end of event time, ours has one: so what comes out of us behind Spark's last watermark is what
Spark still holds. Where results differ, `docs/time.md` says so, and the test says how.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import apache_beam as beam
import pytest
from apache_beam.testing import test_stream
from apache_beam.transforms import window
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from arcbeam.io import DeduplicateWithinWatermark, JoinWithin, OutputMode, WithWatermark
from tests.notes import note, noted
from tests.spark.steps.timing.test_watermarks import pipeline

pytestmark = pytest.mark.contract("WM-01", "WM-02", "WM-05")

Row = tuple[float, str]
Batches = Sequence[Sequence[Row]]


@dataclass(frozen=True)
class Windowed:
    """Counts of a key in windows.

    Attributes:
        batches: of rows.
        delay: seconds.
        size, slide: of the windows, seconds.
        mode: in which results come out.
    """

    batches: Batches
    delay: float = 10
    size: int = 10
    slide: int = 10
    mode: Literal["append", "update", "complete"] = "append"


def rows(*times: float, key: str = "a") -> list[Row]:
    return [(time, key) for time in times]


_LATER = rows(1_000, key="end")
WINDOWED = {
    "one batch": Windowed([rows(1, 2, 11)]),
    "a window ends at the watermark": Windowed([rows(1, 12), rows(20), rows(21)]),
    "a microsecond before the end": Windowed([rows(1, 12), rows(19.999999), rows(5)]),
    "late rows": Windowed([rows(1, 2), rows(45), rows(3, 24, 36), rows(60)]),
    "late by less than the delay": Windowed([rows(11), rows(25), rows(14, 16), rows(45)]),
    "late rows in the batch that makes them late": Windowed([rows(1), rows(50, 2, 3), rows(4, 70)]),
    "no delay, and what equals the latest": Windowed([rows(15), rows(15, 20), rows(20, 19), rows(40)], delay=0),
    "batches without rows": Windowed([rows(1, 30), [], [], rows(2, 31), [], rows(60)]),
    "before 1970": Windowed([rows(-100, -95), rows(-60), rows(-99, -61), rows(-20)]),
    "microseconds": Windowed([rows(0.000001, 9.999999), rows(10.0, 20.000001), rows(9.999999, 40)]),
    "out of order": Windowed([rows(30, 5, 22), rows(12, 41), rows(25, 3), rows(80)]),
    "several keys": Windowed([[(1, "a"), (2, "b"), (13, "b")], [(25, "a")], [(3, "b"), (14, "a")], _LATER]),
    "sliding windows": Windowed([rows(1, 12), rows(24), rows(4, 9), rows(44)], size=20, slide=5),
    "sliding windows, late for some": Windowed([rows(30), rows(12), rows(38), rows(11, 16), rows(90)], size=20),
    "restarted": Windowed([rows(1), rows(45), rows(3, 24, 36), rows(60), rows(41)]),
    "update": Windowed([rows(1, 2), rows(3, 14), rows(28), rows(4), rows(29)], mode="update"),
    "complete": Windowed([rows(1, 2), rows(3, 14), rows(28), rows(4), rows(29)], mode="complete"),
}
_OFTEN = ("late rows",)
_SCHEMA = "at double, key string"


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


def told_by_spark(
    frame: DataFrame, feeds: Sequence[Feed], checkpoint: Path, mode: str = "append", together: int = 1
) -> tuple[list[Any], float]:
    """What a query puts out, and where its watermark is then, seconds.

    Args:
        frame: of the query.
        feeds: that it reads.
        checkpoint: of the query.
        mode: of output.
        together: so many batches come before it runs; each run ends with a batch without rows if the watermark moved.
    """
    got: list[Any] = []
    watermark = 0.0

    def take(batch: DataFrame, _: int) -> None:
        found = [tuple(row) for row in batch.collect()]
        got[:] = found if mode == "complete" else [*got, *found]

    while sum(feed.next(together) for feed in feeds):
        query = (
            frame.writeStream.foreachBatch(take)
            .outputMode(mode)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        told = [progress["eventTime"].get("watermark") for progress in query.recentProgress]
        watermark = max([watermark, *(_seconds(text) for text in told if text)])
    return got, watermark


def _seconds(text: str) -> float:
    return window.Timestamp.from_rfc3339(text).micros / 1e6


def scripted(batches: Batches, tag: str | None = None) -> Any:
    stream = test_stream.TestStream()
    for batch in batches:
        stream = stream.add_elements([{"at": at, "key": key} for at, key in batch], tag=tag)
    return stream


def ours(build: Callable[[beam.Pipeline], Any], folder: Path) -> list[Any]:
    """What a pipeline puts out."""
    folder.mkdir(parents=True)
    p = pipeline()
    _ = build(p) | "Note" >> beam.Map(note, str(folder))
    p.run().wait_until_finish()
    return noted(folder)


def _counts(case: Windowed) -> Callable[[beam.Pipeline], Any]:
    windows: Any = window.FixedWindows(case.size)
    if case.slide != case.size:
        windows = window.SlidingWindows(case.size, case.slide)
    into = {"append": OutputMode.append, "update": OutputMode.update, "complete": OutputMode.update}[case.mode](windows)

    def build(p: beam.Pipeline) -> Any:
        return (
            p
            | scripted(case.batches).advance_watermark_to_infinity()
            | WithWatermark("at", case.delay)
            | into
            | beam.Map(lambda row: (row["key"], 1))
            | beam.CombinePerKey(sum)
            | beam.Map(lambda kv, w=beam.DoFn.WindowParam: (float(w.end), *kv))
        )

    return build


@pytest.mark.parametrize(
    "name", [name if name in _OFTEN else pytest.param(name, marks=pytest.mark.long) for name in WINDOWED]
)
def test_windows_are_as_in_structured_streaming(name: str, spark: SparkSession, tmp_path: Path) -> None:
    case = WINDOWED[name]
    feed = Feed(tmp_path / "in", case.batches)
    frame = feed.streamed(spark, case.delay)
    span = [f"{case.size} seconds", f"{case.slide} seconds"]
    counted = frame.groupBy(F.window("time", *span), "key").count()
    shown = counted.select(F.col("window.end").cast("double"), "key", "count")
    theirs, watermark = told_by_spark(shown, [feed], tmp_path / "checkpoint", case.mode)
    mine = ours(_counts(case), tmp_path / "out")
    if case.mode == "complete":
        # Nothing is let go by Spark, so nothing is late; ours, in windows, is: `docs/time.md`.
        mine = ours(_counts(Windowed(case.batches, 1_000, mode="complete")), tmp_path / "complete")
        latest = {(end, key): count for end, key, count in sorted(mine, key=lambda row: row[2])}
        assert latest == {(end, key): count for end, key, count in theirs}
        return
    if name == "before 1970":
        # Spark's watermark begins in 1970: nothing before comes out, and nothing is late.
        assert theirs == []
        assert mine == [(-90.0, "a", 2), (-60.0, "a", 1), (-50.0, "a", 1), (-10.0, "a", 1)]
        return
    if case.mode == "update":
        assert sorted(set(mine)) == sorted(set(theirs))
        return
    assert sorted(row for row in mine if row[0] <= watermark) == sorted(theirs)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["min", "max"])
def test_several_watermarks_go_together_as_in_structured_streaming(
    policy: Literal["min", "max"], spark: SparkSession, tmp_path: Path
) -> None:
    fast, slow = [rows(1, 31), rows(62), rows(90)], [rows(2, 14), rows(8), rows(33)]
    spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", policy)
    try:
        feeds = [Feed(tmp_path / "fast", fast), Feed(tmp_path / "slow", slow)]
        both = [feed.streamed(spark, delay).select("time", "key") for feed, delay in zip(feeds, (10, 5), strict=True)]
        counted = both[0].union(both[1]).groupBy(F.window("time", "10 seconds"), "key").count()
        shown = counted.select(F.col("window.end").cast("double"), "key", "count")
        theirs, watermark = told_by_spark(shown, feeds, tmp_path / "checkpoint")
    finally:
        spark.conf.unset("spark.sql.streaming.multipleWatermarkPolicy")

    def build(p: beam.Pipeline) -> Any:
        stream = test_stream.TestStream()
        for first, second in zip(fast, slow, strict=True):
            # One step for both, as one batch has both.
            tagged = [{"at": at, "key": key, "fast": True} for at, key in first]
            stream = stream.add_elements(tagged + [{"at": at, "key": key, "fast": False} for at, key in second])
        outputs = p | stream.advance_watermark_to_infinity()
        quick = outputs | "Fast" >> beam.Filter(lambda row: row["fast"]) | "F" >> WithWatermark("at", 10)
        late = outputs | "Slow" >> beam.Filter(lambda row: not row["fast"]) | "S" >> WithWatermark("at", 5)
        if policy == "min":
            together = (quick, late) | beam.Flatten()
        else:
            # Observed together, with the delay of the one that is further all the time.
            together = outputs | WithWatermark("at", 10)
        return (
            together
            | beam.WindowInto(window.FixedWindows(10))
            | beam.Map(lambda row: (row["key"], 1))
            | beam.CombinePerKey(sum)
            | beam.Map(lambda kv, w=beam.DoFn.WindowParam: (float(w.end), *kv))
        )

    mine = ours(build, tmp_path / "out")
    assert sorted(row for row in mine if row[0] <= watermark) == sorted(theirs)


@pytest.mark.long
def test_duplicates_within_the_watermark_are_those_of_structured_streaming(spark: SparkSession, tmp_path: Path) -> None:
    batches = [[(1, "a"), (2, "b"), (3, "a")], [(9, "a"), (5, "c")], [(40, "d")], [(41, "d"), (39, "e"), (42, "e")]]
    feed = Feed(tmp_path / "in", batches)
    frame = feed.streamed(spark, 10).dropDuplicatesWithinWatermark(["key"])
    theirs, _ = told_by_spark(frame.select("at", "key"), [feed], tmp_path / "checkpoint")

    def build(p: beam.Pipeline) -> Any:
        timed = p | scripted(batches).advance_watermark_to_infinity() | WithWatermark("at", 10)
        once = timed | DeduplicateWithinWatermark(10, lambda row: row["key"])
        return once | beam.Map(lambda row: (float(row["at"]), row["key"]))

    mine = ours(build, tmp_path / "out")
    # Of rows of one batch Spark takes any, we take what comes first.
    assert sorted(key for _, key in mine) == sorted(key for _, key in theirs)


@pytest.mark.long
@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_join_within_bounds_is_that_of_structured_streaming(
    how: Literal["inner", "left"], spark: SparkSession, tmp_path: Path
) -> None:
    left = [[(1, "a"), (5, "b")], [(30, "a")], [(60, "z")], [(90, "z")]]
    right = [[(3, "a")], [(11, "b"), (33, "a"), (41, "a")], [(61, "y")], [(91, "y")]]
    feeds = {name: Feed(tmp_path / name, batches) for name, batches in (("left", left), ("right", right))}
    sides = [
        feed.streamed(spark, 10).select(
            F.col("at").alias(f"{name}_at"), F.col("key").alias(f"{name}_key"), F.col("time").alias(f"{name}_time")
        )
        for name, feed in feeds.items()
    ]
    joined = sides[0].join(
        sides[1],
        F.expr("left_key = right_key and right_time >= left_time and right_time <= left_time + interval 5 seconds"),
        "leftOuter" if how == "left" else "inner",
    )
    theirs, _ = told_by_spark(
        joined.select("left_at", "left_key", "right_at"), list(feeds.values()), tmp_path / "checkpoint"
    )

    def build(p: beam.Pipeline) -> Any:
        stream = test_stream.TestStream()
        for first, second in zip(left, right, strict=True):
            tagged = [{"at": at, "key": key, "left": True} for at, key in first]
            stream = stream.add_elements(tagged + [{"at": at, "key": key, "left": False} for at, key in second])
        timed = p | stream.advance_watermark_to_infinity() | WithWatermark("at", 10)
        pair = [
            timed
            | f"{side}" >> beam.Filter(lambda row, side=side: row["left"] is side)
            | f"Of {side}" >> beam.Map(lambda row: (row["key"], float(row["at"])))
            for side in (True, False)
        ]
        found = tuple(pair) | JoinWithin(after=5, how=how)
        return found | beam.MapTuple(lambda key, both: (both[0], key, both[1]))

    mine = ours(build, tmp_path / "out")
    held = [row for row in mine if row[2] is None and row not in theirs]
    # What Spark still holds when it stops: what its watermark has not passed.
    assert all(at >= 60 for at, _, _ in held)
    assert sorted(map(str, (row for row in mine if row not in held))) == sorted(map(str, theirs))


@pytest.mark.long
def test_spark_finds_what_is_late_one_batch_later_where_batches_follow_each_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    # By the watermark before the last: a window that has ended takes rows of the batch in which it comes out, too.
    case = WINDOWED["late rows"]
    feed = Feed(tmp_path / "in", case.batches)
    counted = feed.streamed(spark, case.delay).groupBy(F.window("time", "10 seconds"), "key").count()
    shown = counted.select(F.col("window.end").cast("double"), "key", "count")
    theirs, _ = told_by_spark(shown, [feed], tmp_path / "checkpoint", together=len(case.batches))
    mine = ours(_counts(case), tmp_path / "out")
    assert (10.0, "a", 3) in theirs
    assert (10.0, "a", 2) in mine
