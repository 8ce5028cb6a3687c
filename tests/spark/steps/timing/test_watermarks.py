"""Observed watermarks in steps on Spark: what fires, what is late, what a resumption goes on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import window
from apache_beam.utils.timestamp import Timestamp

from arcbeam import ArcbeamRunner
from arcbeam.io import WithWatermark
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.manifest.values import Manifest
from tests.spark.steps.timing.test_times import counts

pytestmark = pytest.mark.usefixtures("spark")


def pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", "--shards=2", *arguments]))


def script(*steps: list[int]) -> Any:
    """Rows of these times, those of each list in a step of their own; the script itself says nothing of time."""
    stream = test_stream.TestStream()
    for times in steps:
        stream = stream.add_elements([{"at": at} for at in times])
    return stream.advance_watermark_to_infinity()


def tens(rows: Any, label: str = "Sum") -> Any:
    """The rows of ten seconds each, as (what they end with, their times)."""
    return (
        rows
        | f"{label}Tens" >> beam.WindowInto(window.FixedWindows(10))
        | f"{label}Keyed" >> beam.Map(lambda row: (0, row["at"]))
        | label >> beam.GroupByKey()
        | f"{label}Said" >> beam.Map(lambda kv, w=beam.DoFn.WindowParam: (int(w.end), sorted(kv[1])))
    )


def manifests(folder: Path) -> list[Manifest]:
    blobs = FolderBlobs(str(folder))
    return [read_newest(blobs)] if not folder else [known(blobs, step) for step in range(read_newest(blobs).step + 1)]


@pytest.mark.contract("WM-01", "ENG-10")
def test_a_window_fires_when_what_was_seen_less_the_delay_has_passed_it_and_what_comes_later_is_late() -> None:
    p = pipeline()
    # 11 is one second too early for the first window; behind 12 its end has passed.
    rows = p | script([1, 11], [9], [12], [5, 13], [25], [13, 14]) | WithWatermark("at", 2)
    assert_that(tens(rows), equal_to([(10, [1, 9]), (20, [11, 12, 13]), (30, [25])]))
    result = p.run()
    result.wait_until_finish()
    # 5 behind 12; 13 and 14 behind 25.
    assert counts(result, "committed") == {("Sum", "droppedDueToLateness"): 3}


@pytest.mark.contract("WM-01")
def test_all_of_a_step_is_judged_by_what_was_seen_before_it_and_the_latest_time_itself_is_not_late() -> None:
    p = pipeline()
    rows = p | script([95, 3, 50], [95, 94, 9]) | WithWatermark(lambda row: Timestamp(row["at"]), 0)
    assert_that(tens(rows), equal_to([(10, [3]), (60, [50]), (100, [94, 95, 95])]))
    result = p.run()
    result.wait_until_finish()
    assert counts(result, "committed") == {("Sum", "droppedDueToLateness"): 1}


@pytest.mark.contract("WM-02")
def test_what_the_source_says_counts_by_the_policy() -> None:
    def said() -> Any:
        return (
            test_stream.TestStream()
            .advance_watermark_to(0)
            .add_elements([{"at": 1}, {"at": 31}])
            .advance_watermark_to(5)
            .add_elements([{"at": 9}])
            .advance_watermark_to(40)
            .add_elements([{"at": 32}])
            .advance_watermark_to_infinity()
        )

    # The source still promises nothing behind 5: 9 is in time. Behind 40, which was not seen, 32 is still in time.
    p = pipeline()
    assert_that(tens(p | said() | WithWatermark("at", 0)), equal_to([(10, [1, 9]), (40, [31, 32])]))
    p.run().wait_until_finish()
    # What was seen is further than what the source says, then what the source says is further.
    p = pipeline()
    assert_that(tens(p | said() | WithWatermark("at", 0, policy="max")), equal_to([(10, [1]), (40, [31])]))
    result = p.run()
    result.wait_until_finish()
    assert counts(result, "committed") == {("Sum", "droppedDueToLateness"): 2}


@pytest.mark.contract("WM-02")
def test_of_several_collections_the_earliest_counts_unless_they_are_observed_together() -> None:
    def two(p: beam.Pipeline) -> tuple[Any, Any]:
        stream = (
            test_stream.TestStream()
            .add_elements([{"at": 31}], tag="fast")
            .add_elements([{"at": 1}, {"at": 12}], tag="slow")
            .add_elements([{"at": 8}], tag="slow")
            .advance_watermark_to_infinity(tag="fast")
            .advance_watermark_to_infinity(tag="slow")
        )
        outputs = p | stream
        return outputs["fast"], outputs["slow"]

    p = pipeline()
    fast, slow = two(p)
    each = (fast | "Fast" >> WithWatermark("at", 0), slow | "Slow" >> WithWatermark("at", 5))
    assert_that(tens(each | beam.Flatten()), equal_to([(10, [1, 8]), (20, [12]), (40, [31])]))
    p.run().wait_until_finish()
    p = pipeline()
    together = two(p) | beam.Flatten() | WithWatermark("at", 0)
    assert_that(tens(together), equal_to([(40, [31])]))
    result = p.run()
    result.wait_until_finish()
    assert counts(result, "committed") == {("Sum", "droppedDueToLateness"): 3}


@pytest.mark.contract("WM-04")
def test_what_is_too_far_ahead_of_the_clock_is_processed_and_not_believed() -> None:
    p = pipeline()
    # A script's clock begins at the beginning of 1970.
    rows = p | script([1, 4_000_000_000], [12], [3]) | WithWatermark("at", 0, max_skew=60)
    assert_that(tens(rows), equal_to([(10, [1]), (20, [12]), (4_000_000_010, [4_000_000_000])]))
    result = p.run()
    result.wait_until_finish()
    assert counts(result, "committed") == {("Sum", "droppedDueToLateness"): 1}
    found = result.metrics().query(beam.metrics.MetricsFilter().with_name("notBelieved"))["counters"]
    assert [counter.committed for counter in found] == [1]
