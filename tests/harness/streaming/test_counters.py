"""What counts as attempted, and what as committed."""

from __future__ import annotations

import pytest
from apache_beam.metrics import monitoring_infos
from apache_beam.metrics.metric import MetricsFilter

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.harness.streaming.counters import Counters
from arcbeam.jobs.metrics import JobMetrics
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp

_TIMES = WatermarkTimes(
    {"read": MIN_TIMESTAMP, "sum": Timestamp(1_000_000)},
    {Port("read", "out"): Timestamp(1_000_000), Port("sum", "out"): MAX_TIMESTAMP},
)


def report(count: int) -> BundleReport:
    info = monitoring_infos.int64_user_counter("ns", "words", count, ptransform="Count")
    return BundleReport("s0", 0, metrics=[info.SerializeToString()], elements_in=count)


def values(counters: Counters) -> list[tuple[int | None, int | None]]:
    found = JobMetrics(counters.committed_metrics(), True, counters.attempted()).query(
        MetricsFilter().with_name("words")
    )["counters"]
    return [(each.attempted, each.committed) for each in found]


@pytest.mark.contract("API-06")
def test_uncommitted_run_counts_as_attempted() -> None:
    counters = Counters()
    counters.ran(1, [report(3)])
    assert values(counters) == [(3, None)]
    counters.ran(1, [report(4)])
    reports, line = counters.committed(1, _TIMES, Duration(1_500_000))
    assert [each.elements_in for each in reports] == [4]
    # As in the status: the earliest output, also while the input of a source is at the beginning of time.
    assert line == "micro-batch 1: 1.50 s, 4 elements, watermark 1970-01-01T00:00:01Z"
    assert values(counters) == [(7, 4)]
    counters.ran(2, [report(1)])
    counters.committed(2, _TIMES, Duration(0))
    assert values(counters) == [(8, 5)]
    assert (counters.micro_batches, counters.progress().elements, counters.progress().tasks) == (2, 5, 2)
    # The job's total includes elements of earlier drivers.
    counters.committed(486, _TIMES, Duration(0))
    assert counters.progress().stages == ("micro-batch 486, watermark 1970-01-01T00:00:01Z",)


def test_commit_without_run_has_no_reports() -> None:
    counters = Counters()
    reports, line = counters.committed(1, WatermarkTimes({}, {}), Duration(0))
    assert (list(reports), line) == ([], "micro-batch 1: 0.00 s, 0 elements, watermark the beginning of time")
