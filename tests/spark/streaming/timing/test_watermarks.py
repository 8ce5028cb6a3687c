"""Observed watermarks in a streaming job on Spark: what fires, what is late, what a resumed job keeps."""

from __future__ import annotations

import re
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
from arcbeam.errors import UserCodeError
from arcbeam.io import WithWatermark
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.manifest.values import Manifest
from arcbeam.streaming.driverstate import times_of
from tests.notes import note, noted
from tests.spark.streaming.fed import fed, feed
from tests.spark.streaming.timing.test_times import counts
from tests.waiting import while_running

pytestmark = pytest.mark.usefixtures("spark")


def pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", "--shards=2", *arguments]))


def script(*micro_batches: list[int]) -> Any:
    """Return rows of these times, each list in a separate micro-batch; the script itself reports no watermark."""
    stream = test_stream.TestStream()
    for times in micro_batches:
        stream = stream.add_elements([{"at": at} for at in times])
    return stream.advance_watermark_to_infinity()


def tens(rows: Any, label: str = "Sum") -> Any:
    """Return the rows of ten seconds each, as (end of the window, their times)."""
    return (
        rows
        | f"{label}Tens" >> beam.WindowInto(window.FixedWindows(10))
        | f"{label}Keyed" >> beam.Map(lambda row: (0, row["at"]))
        | label >> beam.GroupByKey()
        | f"{label}Said" >> beam.Map(lambda kv, w=beam.DoFn.WindowParam: (int(w.end), sorted(kv[1])))
    )


@pytest.mark.contract("WM-01", "ENG-10")
def test_window_fires_at_observed_watermark_minus_delay() -> None:
    p = pipeline()
    # 11 is one second too early for the first window; with 12 its end has passed.
    rows = p | script([1, 11], [9], [12], [5, 13], [25], [13, 14]) | WithWatermark("at", 2)
    assert_that(tens(rows), equal_to([(10, [1, 9]), (20, [11, 12, 13]), (30, [25])]))
    result = p.run()
    result.wait_until_finish()
    # 5 after 12; 13 and 14 after 25.
    assert counts(result, "committed") == {("Sum", "droppedDueToLateness"): 3}


@pytest.mark.contract("WM-01")
def test_lateness_uses_watermark_before_micro_batch() -> None:
    p = pipeline()
    rows = p | script([95, 3, 50], [95, 94, 9]) | WithWatermark(lambda row: Timestamp(row["at"]), 0)
    assert_that(tens(rows), equal_to([(10, [3]), (60, [50]), (100, [94, 95, 95])]))
    result = p.run()
    result.wait_until_finish()
    assert counts(result, "committed") == {("Sum", "droppedDueToLateness"): 1}


@pytest.mark.contract("WM-02")
def test_sources_watermark_counts_by_policy() -> None:
    def reported() -> Any:
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

    # The source still promises nothing after 5: 9 is in time. After 40, which was not seen, 32 is still in time.
    p = pipeline()
    assert_that(tens(p | reported() | WithWatermark("at", 0)), equal_to([(10, [1, 9]), (40, [31, 32])]))
    p.run().wait_until_finish()
    # First the observed watermark is further than the source's, then the source's is further.
    p = pipeline()
    assert_that(tens(p | reported() | WithWatermark("at", 0, policy="max")), equal_to([(10, [1]), (40, [31])]))
    result = p.run()
    result.wait_until_finish()
    assert counts(result, "committed") == {("Sum", "droppedDueToLateness"): 2}


@pytest.mark.contract("WM-02")
def test_earliest_watermark_counts_unless_observed_together() -> None:
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
def test_time_far_ahead_of_clock_does_not_move_watermark() -> None:
    p = pipeline()
    # A script's clock begins at the start of 1970.
    rows = p | script([1, 4_000_000_000], [12], [3]) | WithWatermark("at", 0, max_skew=60)
    assert_that(tens(rows), equal_to([(10, [1]), (20, [12]), (4_000_000_010, [4_000_000_000])]))
    result = p.run()
    result.wait_until_finish()
    assert counts(result, "committed") == {("Sum", "droppedDueToLateness"): 1}
    found = result.metrics().query(beam.metrics.MetricsFilter().with_name("rejectedEventTimes"))["counters"]
    assert [counter.committed for counter in found] == [1]


@pytest.mark.contract("WM-04")
def test_replay_ignores_outlier_times_until_confirmed() -> None:
    p = pipeline()
    # One time is wrong, and is not counted twice.
    micro_batches: list[list[int]] = [[1, 2, 900, 3], [900, 14], [25], [4], [910], [13], [915], [26]]
    rows = p | script(*micro_batches) | WithWatermark("at", 0, max_jump=15)
    # 4 is late after 25; then three agree that it is about 900, so 26 is late, too. 13 was late before.
    windows = [(10, [1, 2, 3]), (20, [14]), (30, [25]), (910, [900, 900]), (920, [910, 915])]
    assert_that(tens(rows), equal_to(windows))
    result = p.run()
    result.wait_until_finish()
    assert counts(result, "committed") == {("Sum", "droppedDueToLateness"): 3}


@pytest.mark.contract("WM-04", "WM-03", "STORE-05")
def test_resumed_job_keeps_and_confirms_outliers(tmp_path: Path) -> None:
    job, source, out = (tmp_path / name for name in ("job", "source", "out"))
    out.mkdir()

    def run() -> Any:
        p = pipeline(f"--checkpoint_dir={job}")
        rows = fed(p, source) | beam.Map(_jumping) | WithWatermark("at", 0, policy="max", max_jump=20)
        _ = tens(rows) | beam.Map(note, str(out))
        return p.run()

    def head() -> Manifest:
        return known(read_newest(FolderBlobs(job)))

    feed(source, 10)
    first = run()
    while_running(first, lambda: len(noted(out)) >= 7)
    observers = [cause for cause in first.status().causes if cause.kind == "observer"]
    assert [re.search(r"\b2\b", cause.text) is not None for cause in observers] == [True]
    first.suspend()
    before = times_of(head())
    assert before.seen == {"WithWatermark(at)": 70_000_000}
    assert before.unconfirmed == {"WithWatermark(at)": (5_000_000_000, 5_010_000_000)}
    # One more is enough, with the earlier ones.
    feed(source, 11)
    second = run()
    while_running(second, lambda: len(noted(out)) >= 10)
    second.suspend()
    after = times_of(head())
    after.check_after(before)
    assert after.seen == {"WithWatermark(at)": 5_020_000_000}
    assert after.unconfirmed == {}
    feed(source, 12, end=True)
    third = run()
    assert third.wait_until_finish() == "DONE"
    assert counts(third, "committed") == {("Sum", "droppedDueToLateness"): 1}
    assert sorted(noted(out)) == [
        *((10 * n + 10, [10 * n]) for n in range(8)),
        (5_010, [5_000]),
        (5_020, [5_010]),
        (5_030, [5_020]),
    ]


def _jumping(n: int) -> dict[str, int]:
    return {"at": 10 * n if n < 8 else 5_000 + 10 * (n - 8) if n < 11 else 75}


def _at(n: int) -> dict[str, int]:
    return {"at": 5 if n == 30 else 10 * n}


@pytest.mark.contract("WM-03", "STORE-05")
def test_resumed_job_keeps_watermark_with_other_slots(tmp_path: Path) -> None:
    job, source, out = tmp_path / "job", tmp_path / "source", tmp_path / "out"
    out.mkdir()

    def run() -> Any:
        p = pipeline(f"--checkpoint_dir={job}", "--shards=3")
        # The source reports only what it has output: 30 when 290 was observed.
        rows = fed(p, source) | beam.Map(_at) | WithWatermark("at", 0, policy="max")
        _ = tens(rows) | beam.Map(note, str(out))
        return p.run()

    def head() -> Manifest:
        return known(read_newest(FolderBlobs(job)))

    feed(source, 30)
    first = run()
    while_running(first, lambda: len(noted(out)) >= 29)
    first.suspend()
    before = times_of(head())
    assert before.seen == {"WithWatermark(at)": 290_000_000}
    feed(source, 33, end=True)
    second = run()
    assert second.wait_until_finish() == "DONE"
    after = times_of(head())
    assert after.seen == {"WithWatermark(at)": 320_000_000}
    after.check_after(before)
    assert sorted(noted(out)) == [(10 * n + 10, [10 * n]) for n in range(33) if n != 30]
    assert counts(second, "committed") == {("Sum", "droppedDueToLateness"): 1}


@pytest.mark.contract("WM-04")
def test_idle_source_holds_watermark_for_limited_time() -> None:
    def reported(p: beam.Pipeline) -> Any:
        return p | (
            test_stream.TestStream()
            .advance_watermark_to(1)
            .add_elements([{"at": 5}, {"at": 30}])
            .advance_processing_time(100)
            .add_elements([{"at": 7}, {"at": 31}])
            .advance_watermark_to_infinity()
        )

    p = pipeline()
    assert_that(tens(reported(p) | WithWatermark("at", 0)), equal_to([(10, [5, 7]), (40, [30, 31])]))
    p.run().wait_until_finish()
    p = pipeline()
    assert_that(tens(reported(p) | WithWatermark("at", 0, idle_after=60)), equal_to([(10, [5]), (40, [30, 31])]))
    p.run().wait_until_finish()


@pytest.mark.contract("WM-04")
def test_quantile_ignores_single_outlier() -> None:
    far = [1] * 50 + [1000]
    p = pipeline()
    rows = p | script(far, [2], [25] * 500, [5]) | WithWatermark("at", 2, quantile=0.9)
    assert_that(tens(rows), equal_to([(10, [1] * 50 + [2]), (30, [25] * 500), (1010, [1000])]))
    result = p.run()
    result.wait_until_finish()
    assert counts(result, "committed") == {("Sum", "droppedDueToLateness"): 1}


@pytest.mark.contract("WM-04", "STORE-05")
def test_resumed_job_keeps_quantile(tmp_path: Path) -> None:
    job, source, out, read = (tmp_path / name for name in ("job", "source", "out", "read"))
    out.mkdir()
    read.mkdir()

    def run() -> Any:
        p = pipeline(f"--checkpoint_dir={job}")
        rows = fed(p, source) | beam.Map(_ahead)
        _ = rows | "Read" >> beam.Map(lambda row: row["n"]) | "Note read" >> beam.Map(note, str(read))
        _ = tens(rows | WithWatermark("at", 0, policy="max", quantile=0.5)) | beam.Map(note, str(out))
        return p.run()

    def until_read(result: Any, numbers: int) -> None:
        while_running(result, lambda: len(noted(read)) >= numbers)

    feed(source, 50)
    first = run()
    until_read(first, 50)
    first.suspend()
    feed(source, 80)
    second = run()
    until_read(second, 80)
    # Half of all 80 are at 100. If the first 50 had been forgotten, the watermark would be at 1000, and this one late.
    feed(source, 81, end=True)
    assert second.wait_until_finish() == "DONE"
    assert sorted(noted(out)) == [(110, [100] * 50 + [105]), (1010, [1000] * 30)]
    assert counts(second, "committed") == {}


def _ahead(n: int) -> Any:
    return {"n": n, "at": 100 if n < 50 else 1000 if n < 80 else 105}


@pytest.mark.contract("WM-07")
@pytest.mark.parametrize("bounded", [True, False])
def test_element_without_time_names_field_and_type(bounded: bool) -> None:
    p = pipeline()
    rows = p | (
        beam.Create([{"at": "soon", "of": 1}]) if bounded else test_stream.TestStream().add_elements([{"at": "soon"}])
    )
    _ = rows | "Timed" >> WithWatermark("at", 2)
    with pytest.raises(UserCodeError, match=r"'at'.*str") as raised:
        p.run().wait_until_finish()
    assert "Timed" in str(raised.value)
