"""Like `test_beside_spark`, for several inputs or no windows: combined watermarks, deduplication, joins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import apache_beam as beam
import pytest
from apache_beam.transforms import deduplicate, window
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from arcbeam.io import DeduplicateWithinWatermark, JoinWithin, WithWatermark, WithWatermarkPolicy
from tests.spark.streaming.timing.beside import (
    Batches,
    Feed,
    Made,
    SparkResult,
    both_scripted,
    of_side,
    ours,
    results_of_spark,
    rows,
    scripted,
    with_policy,
)

# The side that is ahead changes; both bring rows that are late for one policy only, or for both.
_FAST = [rows(1, 31), rows(18, 62), rows(40, 63), rows(57, 90), rows(100)]
_SLOW = [rows(2, 14), rows(8, 27), rows(33, 120), rows(34, 88, 126), rows(117, 140)]


@pytest.mark.contract("WM-02")
@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        ("min", (10, 5)),
        pytest.param("max", (10, 10), marks=pytest.mark.long),
        pytest.param("max", (10, 5), marks=pytest.mark.long),
    ],
)
def test_combined_watermarks_are_as_in_structured_streaming(
    policy: Literal["min", "max"], delays: tuple[int, int], spark: SparkSession, tmp_path: Path
) -> None:
    theirs = _together(spark, tmp_path, policy, {"fast": _FAST, "slow": _SLOW}, delays)
    mine = _ours_together(tmp_path, policy, {"fast": _FAST, "slow": _SLOW}, delays)
    assert sorted(row for row in mine.rows if row[0] <= theirs.watermark) == sorted(theirs.rows)
    assert (mine.dropped > 0) == (theirs.dropped > 0)


@pytest.mark.long
@pytest.mark.contract("WM-02", "WM-03")
def test_restarted_query_forgets_single_watermarks(spark: SparkSession, tmp_path: Path) -> None:
    # Of the fast side 62 has arrived before, so the watermark is at 52 when 34 arrives; for Spark it is at 30.
    scripts = {"fast": [*_FAST[:2], rows(40), *_FAST[3:]], "slow": _SLOW}
    theirs = _together(spark, tmp_path, "min", scripts, (10, 5))
    mine = _ours_together(tmp_path, "min", scripts, (10, 5))
    assert (40.0, "a", 3) in theirs.rows
    assert (40.0, "a", 2) in mine.rows


def _together(
    spark: SparkSession, folder: Path, policy: str, scripts: dict[str, Batches], delays: tuple[int, int]
) -> SparkResult:
    feeds = [Feed(folder / name, batches) for name, batches in scripts.items()]
    with with_policy(spark, policy):
        both = [feed.streamed(spark, delay).select("time", "key") for feed, delay in zip(feeds, delays, strict=True)]
        counted = both[0].union(both[1]).groupBy(F.window("time", "10 seconds"), "key").count()
        shown = counted.select(F.col("window.end").cast("double"), "key", "count")
        return results_of_spark(shown, feeds, folder / "checkpoint")


def _ours_together(folder: Path, policy: Any, scripts: dict[str, Batches], delays: tuple[int, int]) -> Made:
    def build(p: beam.Pipeline) -> Any:
        arrived = p | both_scripted(scripts)
        sides = tuple(
            of_side(arrived, side) | side >> WithWatermark("at", delay)
            for side, delay in zip(scripts, delays, strict=True)
        )
        return (
            sides
            | WithWatermarkPolicy(policy)
            | beam.Flatten()
            | beam.WindowInto(window.FixedWindows(10))
            | beam.Map(lambda row: (row["key"], 1))
            | beam.CombinePerKey(sum)
            | beam.Map(lambda kv, w=beam.DoFn.WindowParam: (float(w.end), *kv))
        )

    return ours(build, folder / "out")


# Of b, one arrives that is far from the first before the watermark has passed that, of d after that; of c, e and g,
# one arrives late.
_TWICE = [
    [(1, "a"), (2, "b"), (3, "a")],
    [(9, "a"), (20, "b"), (5, "c")],
    [(40, "d"), (8, "e")],
    [(41, "d"), (39, "f"), (42, "f"), (6, "c"), (12, "g")],
    [(95, "h"), (60, "a")],
    [(100, "d")],
]
_DIFFERS: dict[str, Any] = {
    # 20 s apart, and the watermark was at -7 when the second arrived.
    "b": ([2, 20], [2]),
    # Late, and no equal one is remembered.
    "c": ([5, 6], [5]),
    "e": ([8], []),
    "g": ([12], []),
}
"""The output of arcbeam, and of Spark."""


@pytest.mark.contract("WM-08")
def test_duplicates_differ_only_if_far_apart_or_late(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in", _TWICE)
    frame = feed.streamed(spark, 10).dropDuplicatesWithinWatermark(["key"]).select("at", "key")
    theirs = _by_key(results_of_spark(frame, [feed], tmp_path / "checkpoint").rows)

    def build(p: beam.Pipeline) -> Any:
        once = p | scripted(_TWICE) | WithWatermark("at", 10) | DeduplicateWithinWatermark(10, lambda row: row["key"])
        return once | beam.Map(lambda row: (float(row["at"]), row["key"]))

    mine = _by_key(ours(build, tmp_path / "out").rows)
    keys = {key for batch in _TWICE for _, key in batch}
    assert {key: (mine[key], theirs[key]) for key in keys if mine[key] != theirs[key]} == _DIFFERS


@pytest.mark.long
@pytest.mark.contract("WM-08")
def test_beams_duplicates_differ_only_if_late(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in", _TWICE)
    frame = feed.streamed(spark, 10).dropDuplicatesWithinWatermark(["key"]).select("at", "key")
    theirs = _by_key(results_of_spark(frame, [feed], tmp_path / "checkpoint").rows)

    def build(p: beam.Pipeline) -> Any:
        pairs = p | scripted(_TWICE) | WithWatermark("at", 10) | beam.Map(lambda row: (row["key"], float(row["at"])))
        once = pairs | deduplicate.DeduplicatePerKey(event_time_duration=10)
        return once | beam.MapTuple(lambda key, at: (at, key))

    mine = _by_key(ours(build, tmp_path / "out").rows)
    keys = {key for batch in _TWICE for _, key in batch}
    assert {key: (mine[key], theirs[key]) for key in keys if mine[key] != theirs[key]} == {
        key: both for key, both in _DIFFERS.items() if key != "b"
    }


def _by_key(arrived: Sequence[tuple[float, str]]) -> dict[str, list[float]]:
    """Return the output times by key. Of the rows of one batch Spark may take any; here it takes the first."""
    found: dict[str, list[float]] = {key: [] for batch in _TWICE for _, key in batch}
    likes = {(3.0, "a"): 1.0, (42.0, "f"): 39.0}
    for at, key in arrived:
        found[key].append(likes.get((at, key), at))
    return {key: sorted(times) for key, times in found.items()}


_LEFT = [
    [(1, "a"), (5, "b"), (38, "a")],
    [(30, "a"), (52, "c")],
    [(60, "z")],
    [(90, "z"), (70, "late")],
    [(200, "end")],
]
_RIGHT = [
    [(3, "a"), (36, "q")],
    [(12, "b"), (33, "a"), (41, "a"), (47, "c"), (57, "c"), (50, "y")],
    [(61, "y")],
    [(91, "y"), (88, "z")],
    [(72, "late"), (200, "end")],
]


@pytest.mark.contract("WM-08")
@pytest.mark.parametrize("how", [pytest.param("inner", marks=pytest.mark.long), "left"])
@pytest.mark.parametrize(
    ("before", "after", "delays"),
    [
        pytest.param(0, 5, (10, 10), marks=pytest.mark.long),
        pytest.param(7, 5, (10, 10), marks=pytest.mark.long),
        (7, 5, (10, 25)),
        pytest.param(-2, 9, (10, 25), marks=pytest.mark.long),
    ],
)
def test_join_within_bounds_equals_structured_streaming(
    how: Literal["inner", "left"],
    before: int,
    after: int,
    delays: tuple[int, int],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    scripts = {"left": _LEFT, "right": _RIGHT}
    theirs = _joined_by_spark(spark, tmp_path, scripts, (before, after), delays, how)
    mine = Counter(_joined(tmp_path, scripts, (before, after), delays, how))
    # What Spark still holds when it stops, because its watermark has not passed it.
    over = 200 - max(delays) - max(0, after)
    held = {row for row in mine if row[2] is None and row[0] > over}
    assert Counter({row: count for row, count in mine.items() if row not in held}) == Counter(theirs)


@pytest.mark.long
@pytest.mark.contract("WM-08")
def test_late_row_joins_unlike_in_structured_streaming(spark: SparkSession, tmp_path: Path) -> None:
    # The watermark is at 80 when the right one of 78 arrives; the left one of 82 waits until 87.
    scripts = {"left": [[(82, "w"), (90, "z")], [(200, "end")]], "right": [[(90, "z")], [(78, "w"), (200, "end")]]}
    theirs = _joined_by_spark(spark, tmp_path, scripts, (7, 5), (10, 10), "inner")
    mine = _joined(tmp_path, scripts, (7, 5), (10, 10), "inner")
    assert sorted(theirs) == [(90, "z", 90), (200, "end", 200)]
    assert sorted(mine) == [(82, "w", 78), *sorted(theirs)]


def _joined(
    folder: Path, scripts: dict[str, Batches], bounds: tuple[int, int], delays: tuple[int, int], how: Any
) -> list[Any]:
    def build(p: beam.Pipeline) -> Any:
        arrived = p | both_scripted(scripts)
        pair = tuple(
            of_side(arrived, side)
            | f"Timed {side}" >> WithWatermark("at", delay)
            | f"Of {side}" >> beam.Map(lambda row: (row["key"], float(row["at"])))
            for side, delay in zip(scripts, delays, strict=True)
        )
        found = pair | JoinWithin(before=bounds[0], after=bounds[1], how=how)
        return found | beam.MapTuple(lambda key, both: (both[0], key, both[1]))

    return ours(build, folder / "out").rows


def _joined_by_spark(
    spark: SparkSession,
    folder: Path,
    scripts: dict[str, Batches],
    bounds: tuple[int, int],
    delays: tuple[int, int],
    how: str,
) -> list[Any]:
    feeds = {name: Feed(folder / name, batches) for name, batches in scripts.items()}
    left, right = (
        feed.streamed(spark, delay).select(
            F.col("at").alias(f"{name}_at"), F.col("key").alias(f"{name}_key"), F.col("time").alias(f"{name}_time")
        )
        for (name, feed), delay in zip(feeds.items(), delays, strict=True)
    )
    before, after = bounds
    near = (
        f"left_key = right_key and right_time >= left_time - interval {before} seconds "
        f"and right_time <= left_time + interval {after} seconds"
    )
    joined = left.join(right, F.expr(near), "leftOuter" if how == "left" else "inner")
    shown = joined.select("left_at", "left_key", "right_at")
    return results_of_spark(shown, list(feeds.values()), folder / "checkpoint").rows
