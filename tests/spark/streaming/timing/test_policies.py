"""Several collections on Spark with one watermark: the latest one, or the earliest of those that are not idle."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.testing import test_stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import window
from apache_beam.utils.timestamp import Timestamp

from arcbeam.io import JoinWithin, WithLate, WithWatermark, WithWatermarkPolicy
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.manifest.values import Manifest
from arcbeam.streaming.driverstate import times_of
from tests.notes import note, noted
from tests.offsets import NO_END, Endless
from tests.spark.streaming.fed import fed, feed
from tests.spark.streaming.timing.test_times import counts
from tests.spark.streaming.timing.test_watermarks import pipeline, tens
from tests.waiting import while_running

pytestmark = pytest.mark.usefixtures("spark")


def _two(p: beam.Pipeline, *micro_batches: tuple[list[int], list[int]]) -> tuple[Any, Any]:
    """Return two collections, which receive the times of each pair one after the other, each observed."""
    stream = test_stream.TestStream()
    for times, others in micro_batches:
        for tag, each in (("fast", times), ("slow", others)):
            if each:
                stream = stream.add_elements([{"at": at} for at in each], tag=tag)
    for tag in ("fast", "slow"):
        stream = stream.advance_watermark_to_infinity(tag=tag)
    outputs = p | stream
    return outputs["fast"] | "Fast" >> WithWatermark("at", 0), outputs["slow"] | "Slow" >> WithWatermark("at", 5)


@pytest.mark.contract("WM-02", "ENG-10")
def test_latest_watermark_makes_slower_elements_late() -> None:
    micro_batches = ([31], []), ([], [1, 12, 33]), ([], [55]), ([52], [49])
    p = pipeline()
    together = _two(p, *micro_batches) | WithWatermarkPolicy("max") | beam.Flatten()
    # 1 and 12 are late after 31. The slow one's 55, minus its delay, is then the latest: 49 is late after 50.
    assert_that(tens(together), equal_to([(40, [31, 33]), (60, [52, 55])]))
    result = p.run()
    result.wait_until_finish()
    assert counts(result, "committed") == {("Sum", "droppedDueToLateness"): 3}


@pytest.mark.long
@pytest.mark.contract("WM-02", "WM-09")
def test_join_by_latest_watermark_and_late_rows() -> None:
    p = pipeline()
    both = _two(p, ([1, 40], []), ([], [2, 41])) | WithWatermarkPolicy("max")
    keyed = [each | f"Key{n}" >> beam.Map(lambda row: ("a", row["at"])) for n, each in enumerate(both)]
    joined = tuple(keyed) | JoinWithin(after=3, how="left")
    pairs = joined | "Pair" >> beam.Map(lambda pair: pair[1])
    # 1 was forgotten before 2 arrived: by the fast side, no partner could arrive any more.
    assert_that(pairs, equal_to([(1, None), (40, 41)]), "Pairs")
    windowed = tuple(keyed) | beam.Flatten() | beam.WindowInto(window.FixedWindows(10))
    _, late = windowed | WithLate(beam.GroupByKey())
    assert_that(late | beam.Map(lambda each: (each.value, each.watermark)), equal_to([(2, Timestamp(40))]), "Late")
    p.run().wait_until_finish()


def _at(n: int) -> dict[str, int]:
    return {"at": 10 * n}


@pytest.mark.long
@pytest.mark.contract("WM-02", "WM-03", "STORE-05")
def test_resumed_job_keeps_combined_watermark(tmp_path: Path) -> None:
    job, ahead, behind, out = (tmp_path / name for name in ("job", "ahead", "behind", "out"))
    out.mkdir()

    def run() -> Any:
        p = pipeline(f"--checkpoint_dir={job}")
        both = tuple(
            p
            | name >> _Numbers(folder)
            | f"At{name}" >> beam.Map(_at)
            | f"W{name}" >> WithWatermark("at", 0, policy="max")
            for name, folder in (("Ahead", ahead), ("Behind", behind))
        )
        _ = tens(both | WithWatermarkPolicy("max") | beam.Flatten()) | beam.Map(note, str(out))
        return p.run()

    def head() -> Manifest:
        return known(read_newest(FolderBlobs(job)))

    feed(ahead, 30)
    feed(behind, 0)
    first = run()
    while_running(first, lambda: len(noted(out)) >= 29)
    first.suspend()
    before = times_of(head())
    assert before.seen["WithWatermarkPolicy"] == 290_000_000
    # The one that was ahead reports nothing more, and the other's numbers are behind the common watermark.
    feed(ahead, 30, end=True)
    feed(behind, 20)
    second = run()
    while_running(second, lambda: counts(second, "committed") == {("Sum", "droppedDueToLateness"): 20})
    times = times_of(head())
    times.check_after(before)
    assert times.seen["WithWatermarkPolicy"] == 290_000_000
    feed(behind, 33, end=True)
    assert second.wait_until_finish() == "DONE"
    assert {tuple(of) for end, of in noted(out) if end <= 290} == {(10 * n,) for n in range(29)}
    assert sum(len(of) for _, of in noted(out)) == 30 + 4


class _Numbers(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def expand(self, pbegin: Any) -> Any:
        return fed(pbegin.pipeline, self._folder)


class _Partition(beam.DoFn):
    """Yields numbers of a partition; the element is its folder; the partition reports its own watermark."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: str,
        tracker: Any = beam.DoFn.RestrictionParam(Endless()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        until, end = map(int, Path(element, "fed").read_text().split())
        first = tracker.current_restriction().start
        for n in range(first, until):
            if not tracker.try_claim(n):
                return
            yield window.TimestampedValue({"at": n, "of": Path(element).name}, n)
        if until > first:
            estimator.set_watermark(Timestamp(until))
        if end:
            tracker.try_claim(NO_END)
        else:
            tracker.defer_remainder(Timestamp.of(time.time() + 0.05))


def _partitions(p: beam.Pipeline, *folders: Path) -> Any:
    return p | beam.Create([str(folder) for folder in folders]) | beam.Reshuffle() | beam.ParDo(_Partition())


def _ends(out: Path) -> set[int]:
    return {end for end, _ in noted(out)}


@pytest.mark.contract("WM-04")
def test_idle_partition_is_skipped_until_it_reports(
    tmp_path: Path,
) -> None:
    names = ("a", "b", "silent")
    folders = [tmp_path / name for name in names]
    out = tmp_path / "out"
    out.mkdir()
    for folder in folders:
        feed(folder, 5)
    p = pipeline("--shards=4")
    _ = tens(_partitions(p, *folders) | WithWatermark("at", 0, idle_after=1)) | beam.Map(note, str(out))
    result = p.run()
    # Two continue, one reports nothing more: it holds the watermark, but not forever.
    for folder in folders[:2]:
        feed(folder, 45)
    while_running(result, lambda: {10, 20, 30, 40} <= _ends(out))
    # It reports again: what is behind the others is late, the rest is in time.
    feed(folders[2], 44, end=True)
    for folder in folders[:2]:
        feed(folder, 45, end=True)
    assert result.wait_until_finish() == "DONE"
    assert counts(result, "committed") == {("Sum", "droppedDueToLateness"): 35}
    found = {end: len(times) for end, times in noted(out)}
    assert found == {10: 25, 20: 20, 30: 20, 40: 20, 50: 14}


@pytest.mark.contract("WM-02", "WM-04")
def test_idle_collection_holds_others_for_limited_time() -> None:
    def reported(p: beam.Pipeline) -> tuple[Any, Any]:
        stream = test_stream.TestStream().add_elements([{"at": 5}], tag="fast").add_elements([{"at": 3}], tag="slow")
        # 7 arrives when the slow one is idle, which then counts again: so 36 is in time.
        stream = stream.add_elements([{"at": 30}], tag="fast").advance_processing_time(100)
        stream = stream.add_elements([{"at": 7}, {"at": 32}], tag="slow").add_elements([{"at": 55}], tag="fast")
        stream = stream.add_elements([{"at": 36}], tag="slow")
        for tag in ("fast", "slow"):
            stream = stream.advance_watermark_to_infinity(tag=tag)
        outputs = p | stream
        return outputs["fast"] | "Fast" >> WithWatermark("at", 0), outputs["slow"] | "Slow" >> WithWatermark("at", 0)

    p = pipeline()
    assert_that(
        tens(reported(p) | WithWatermarkPolicy("min", idle_after=60) | beam.Flatten()),
        equal_to([(10, [3, 5]), (40, [30, 32, 36]), (60, [55])]),
    )
    result = p.run()
    result.wait_until_finish()
    assert counts(result, "committed") == {("Sum", "droppedDueToLateness"): 1}
