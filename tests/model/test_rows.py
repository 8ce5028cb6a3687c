"""Rows between stages, and reports among them."""

from __future__ import annotations

import pickle

import pytest

from arcbeam.model.rows import REPORT, RESIDUAL, BundleReport, Passed, RowFile, buckets_per_shard


def test_channels_of_reports_and_residuals_are_no_indexes() -> None:
    assert (REPORT, RESIDUAL) == (-1, -2)  # also in rows of a running job's executors


@pytest.mark.parametrize(("shards", "buckets"), [(0, 4096), (1, 4096), (2, 2048), (256, 16), (257, 16), (8192, 16)])
def test_buckets_are_four_thousand_in_all(shards: int, buckets: int) -> None:
    assert buckets_per_shard(shards) == buckets


def test_report_travels_before_all_data_of_first_shard() -> None:
    report = BundleReport("s0", 3, passed={1: Passed(bytes=5)}, row_files=[RowFile(1, "path", 9)])
    row = report.to_row()
    assert (row.channel, row.shard, row.bucket) == (REPORT, 0, -1)
    assert BundleReport.from_blob(row.blob) == report


def test_blob_of_something_else_is_no_report() -> None:
    with pytest.raises(TypeError, match="not a report of bundles: str"):
        BundleReport.from_blob(pickle.dumps("text"))


def test_statistics_of_tasks_add_up() -> None:
    total = Passed()
    assert (total.bytes, total.counted, total.total) == (0, 0, 0)
    assert total.least > total.most, "no time was seen"
    for bytes, counted, least, most, times in ((5, 2, 10, 30, 40), (7, 1, -4, -4, -4)):
        total.add(Passed(bytes, counted, least, most, times))
    assert total == Passed(12, 3, -4, 30, 36)
    total.add(Passed(bytes=1))
    assert total == Passed(13, 3, -4, 30, 36)
