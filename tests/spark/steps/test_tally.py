"""What counts as attempted, and what as committed."""

from __future__ import annotations

import pytest
from apache_beam.metrics import monitoring_infos
from apache_beam.metrics.metric import MetricsFilter

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import Times
from arcbeam.jobs.metrics import JobMetrics
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import MAX_TIMESTAMP, Duration, Timestamp
from arcbeam.spark.steps.tally import Tally

_TIMES = Times({"read": MAX_TIMESTAMP, "sum": Timestamp(0)}, {Port("read", "out"): Timestamp(1_000_000)})


def report(count: int) -> BundleReport:
    info = monitoring_infos.int64_user_counter("ns", "words", count, ptransform="Count")
    return BundleReport("s0", 0, metrics=[info.SerializeToString()], elements_in=count)


def values(tally: Tally) -> list[tuple[int | None, int | None]]:
    found = JobMetrics(tally.real(), True, tally.attempted()).query(MetricsFilter().with_name("words"))["counters"]
    return [(each.attempted, each.committed) for each in found]


@pytest.mark.contract("API-06")
def test_a_run_that_came_to_nothing_was_attempted() -> None:
    tally = Tally()
    tally.ran(1, [report(3)])
    assert values(tally) == [(3, None)]
    tally.ran(1, [report(4)])
    reports, line = tally.committed(1, _TIMES, Duration(1_500_000))
    assert [each.elements_in for each in reports] == [4]
    assert line == "step 1: 1.50 s, 4 elements, watermark 1970-01-01T00:00:00Z"
    assert values(tally) == [(7, 4)]
    tally.ran(2, [report(1)])
    tally.committed(2, _TIMES, Duration(0))
    assert values(tally) == [(8, 5)]
    assert (tally.steps, tally.standing().elements, tally.standing().tasks) == (2, 5, 2)


def test_a_commit_without_a_step_has_no_reports() -> None:
    tally = Tally()
    reports, line = tally.committed(1, Times({}, {}), Duration(0))
    assert (list(reports), line) == ([], "step 1: 0.00 s, 0 elements, watermark the end of time")
