"""The same scripted rows through Structured Streaming and arcbeam, on the same Spark: the same windows of counts.

Where results differ, `docs/explanation/differences.md` and the test say so. More tests: `test_beside_spark_*`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import apache_beam as beam
import pytest
from apache_beam.transforms import window
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from arcbeam.io import OutputMode, WithWatermark
from tests.notes import note, noted
from tests.spark.streaming.fed import fed, feed
from tests.spark.streaming.timing import beside
from tests.spark.streaming.timing.beside import (
    Batches,
    Feed,
    SparkResult,
    in_turn,
    ours,
    results_of_spark,
    rows,
    scripted,
)

pytestmark = pytest.mark.contract("WM-01", "WM-05")


@dataclass(frozen=True)
class Windowed:
    """Counts of a key in windows.

    Attributes:
        batches: batches of rows.
        delay: seconds.
        size, slide: of the windows, seconds.
        mode: output mode.
    """

    batches: Batches
    delay: float = 10
    size: int = 10
    slide: int = 10
    mode: Literal["append", "update"] = "append"


_LATER = rows(1_000, key="end")
_LATE = [rows(1, 2), rows(45), rows(3, 24, 36), rows(60)]
WINDOWED = {
    "one batch": Windowed([rows(1, 2, 11)]),
    "a window ends at the watermark": Windowed([rows(1, 12), rows(20), rows(21)]),
    "a microsecond before the end": Windowed([rows(1, 12), rows(19.999999), rows(5)]),
    "late rows": Windowed(_LATE),
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
    "update": Windowed([rows(1, 2), rows(3, 14), rows(28), rows(4, 15), rows(29)], mode="update"),
    "update, several keys": Windowed(
        [[(1, "a"), (2, "b")], [(3, "a"), (14, "b")], [], [(5, "b"), (6, "a"), (16, "b")], [(40, "a")], [(7, "b")]],
        mode="update",
    ),
    "update, sliding windows": Windowed(
        [rows(1, 12), rows(3, 24), rows(13), rows(4, 39), rows(21)], size=20, slide=10, mode="update"
    ),
}
_OFTEN = ("late rows", "update")


def _theirs(case: Windowed, spark: SparkSession, folder: Path, together: int = 1) -> SparkResult:
    arrived = Feed(folder / "in", case.batches)
    span = [f"{case.size} seconds", f"{case.slide} seconds"]
    counted = arrived.streamed(spark, case.delay).groupBy(F.window("time", *span), "key").count()
    return results_of_spark(_shown(counted), [arrived], folder / "checkpoint", case.mode, together)


def _shown(counted: DataFrame) -> DataFrame:
    return counted.select(F.col("window.end").cast("double"), "key", "count")


def _counts(case: Windowed, arrived: Any) -> Any:
    """Return arcbeam's output: end of the window, key, number of the pane, count."""
    windows: Any = window.FixedWindows(case.size)
    if case.slide != case.size:
        windows = window.SlidingWindows(case.size, case.slide)
    return (
        arrived
        | WithWatermark("at", case.delay)
        | {"append": OutputMode.append, "update": OutputMode.update}[case.mode](windows)
        | beam.Map(lambda row: (row["key"], 1))
        | beam.CombinePerKey(sum)
        | beam.Map(_pane)
    )


def _pane(kv: Any, of: Any = beam.DoFn.WindowParam, pane: Any = beam.DoFn.PaneInfoParam) -> Any:
    return (float(of.end), kv[0]), pane.index, kv[1]


def _compare(case: Windowed, theirs: SparkResult, mine: Sequence[Any]) -> None:
    """Each window has the same results in the same order; in mode append, of the windows that have ended for Spark."""
    if case.mode == "append":
        mine = [pane for pane in mine if pane[0][0] <= theirs.watermark]
    reported = [((end, key), n, count) for n, batch in enumerate(theirs.batches) for end, key, count in batch]
    assert in_turn(mine) == in_turn(reported)


@pytest.mark.parametrize(
    "name", [name if name in _OFTEN else pytest.param(name, marks=pytest.mark.long) for name in WINDOWED]
)
def test_windows_are_as_in_structured_streaming(name: str, spark: SparkSession, tmp_path: Path) -> None:
    case = WINDOWED[name]
    theirs = _theirs(case, spark, tmp_path)
    mine = ours(lambda p: _counts(case, p | scripted(case.batches)), tmp_path / "out")
    if name == "before 1970":
        # Spark's watermark begins in 1970: everything earlier is late.
        assert theirs.rows == []
        assert theirs.dropped == 5, "two rows are combined before they are counted"
        assert mine.dropped == 1
        assert in_turn(mine.rows) == {(-90.0, "a"): [2], (-60.0, "a"): [1], (-50.0, "a"): [1], (-10.0, "a"): [1]}
        return
    _compare(case, theirs, mine.rows)
    # Both may count several combined rows as one.
    assert (mine.dropped > 0) == (theirs.dropped > 0)


STOPPED = {
    "append": Windowed([*_LATE, rows(41)]),
    "update": Windowed([rows(1, 2), rows(3, 14), rows(28), rows(4, 15), rows(29)], mode="update"),
}


@pytest.mark.long
@pytest.mark.contract("WM-03", "END-03", "STORE-04")
@pytest.mark.parametrize("how", ["suspended", "cancelled"])
@pytest.mark.parametrize("name", STOPPED)
def test_job_stopped_after_each_batch_resumes_like_query(
    name: str, how: str, spark: SparkSession, tmp_path: Path
) -> None:
    case = STOPPED[name]
    theirs = _theirs(case, spark, tmp_path)
    mine, late = _stopped_behind_each(case, tmp_path, how)
    _compare(case, theirs, mine)
    assert (late > 0) == (theirs.dropped > 0)


def _stopped_behind_each(case: Windowed, folder: Path, how: str) -> tuple[list[Any], int]:
    """Return the output of a job that is stopped after each batch and resumed, and how many rows were late."""
    source, out = folder / "source", folder / "out"
    out.mkdir()
    late = 0
    for n in range(len(case.batches)):
        is_last = n == len(case.batches) - 1
        feed(source, n + 1, end=is_last)
        p = beside.pipeline(f"--checkpoint_dir={folder / 'job'}")
        arrived = fed(p, source, silently=True) | "Rows" >> beam.FlatMap(_rows_of, case.batches)
        _ = _counts(case, arrived) | "Note" >> beam.Map(note, str(out))
        result = p.run()
        if is_last:
            assert result.wait_until_finish() == "DONE"
        else:
            while not _committed(result):
                assert result.wait_until_finish(20) == "RUNNING"
            result.suspend() if how == "suspended" else result.cancel()
        late += beside.dropped(result)
    return noted(out), late


def _rows_of(n: int, batches: Batches) -> Iterator[Any]:
    beam.metrics.Metrics.counter("beside", "batches").inc()
    return ({"at": at, "key": key} for at, key in batches[n])


def _committed(result: Any) -> bool:
    """Return whether the batch is committed."""
    found = result.metrics().query(beam.metrics.MetricsFilter().with_name("batches"))["counters"]
    return any(counter.committed for counter in found)


@pytest.mark.parametrize("every_window", [pytest.param(False, marks=pytest.mark.long), True])
def test_complete_is_the_table_of_structured_streaming(every_window: bool, spark: SparkSession, tmp_path: Path) -> None:
    batches = [[(1, "a"), (2, "b")], [(3, "a"), (34, "b")], [], [(4, "a"), (5, "c"), (35, "b")]]
    arrived = Feed(tmp_path / "in", batches)
    by = [F.window("time", "10 seconds"), "key"] if every_window else ["key"]
    end = F.col("window.end").cast("double") if every_window else F.lit(0.0)
    counted = arrived.streamed(spark, 10).groupBy(*by).count().select(end, "key", "count")
    theirs = results_of_spark(counted, [arrived], tmp_path / "checkpoint", "complete")

    def build(p: beam.Pipeline) -> Any:
        return (
            p
            | scripted(batches)
            | WithWatermark("at", 10)
            | OutputMode.complete()
            | beam.Map(lambda row: ((row["at"] // 10 * 10.0 + 10 if every_window else 0.0, row["key"]), 1))
            | beam.CombinePerKey(sum)
            | beam.Map(lambda kv, pane=beam.DoFn.PaneInfoParam: (kv[0], pane.index, kv[1]))
        )

    mine = ours(build, tmp_path / "out")
    # Spark repeats the whole table in each batch; arcbeam outputs what has changed. Nothing is ever late.
    table: dict[Any, int] = {}
    changes = []
    for n, batch in enumerate(theirs.batches):
        now = {(end, key): count for end, key, count in batch}
        changes += [(key, n, count) for key, count in now.items() if table.get(key) != count]
        assert now.keys() >= table.keys()
        table = now
    assert in_turn(mine.rows) == in_turn(changes)
    assert (mine.dropped, theirs.dropped) == (0, 0)


@pytest.mark.long
def test_update_with_endless_lateness_is_complete_by_windows(spark: SparkSession, tmp_path: Path) -> None:
    batches = [rows(1, 2), rows(3, 14), rows(28), rows(4), rows(29)]
    arrived = Feed(tmp_path / "in", batches)
    counted = arrived.streamed(spark, 10).groupBy(F.window("time", "10 seconds"), "key").count()
    theirs = results_of_spark(_shown(counted), [arrived], tmp_path / "checkpoint", "complete")

    def build(p: beam.Pipeline) -> Any:
        timed = p | scripted(batches) | WithWatermark("at", 10)
        windowed = timed | OutputMode.update(window.FixedWindows(10), allowed_lateness=1_000_000)
        return windowed | beam.Map(lambda row: (row["key"], 1)) | beam.CombinePerKey(sum) | beam.Map(_pane)

    last = {key: counts[-1] for key, counts in in_turn(ours(build, tmp_path / "out").rows).items()}
    assert last == {(end, key): count for end, key, count in theirs.batches[-1]}


@pytest.mark.long
def test_spark_drops_late_rows_one_batch_later(spark: SparkSession, tmp_path: Path) -> None:
    # By the watermark before the last: an ended window also takes rows of the batch in which it is output.
    case = WINDOWED["late rows"]
    theirs = _theirs(case, spark, tmp_path, together=len(case.batches))
    mine = ours(lambda p: _counts(case, p | scripted(case.batches)), tmp_path / "out")
    assert (10.0, "a", 3) in theirs.rows
    assert ((10.0, "a"), 0, 2) in mine.rows
