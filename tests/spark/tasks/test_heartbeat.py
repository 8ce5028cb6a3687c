"""Heartbeats: the figures of a watched job grow while its tasks run, and agree with the reports in the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from arcbeam.model.rows import BundleReport
from arcbeam.runner import job
from arcbeam.spark.tasks import heartbeat, workerlog
from arcbeam.spark.tasks.heartbeat import HeartbeatTask, pulsing, unreported
from arcbeam.store.jobtemp.location import JobLocation


class _Bundles:
    instruction = ""
    elements = 0


def test_heartbeat_counts_until_the_report_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location, bundles, seen = JobLocation(str(tmp_path)), _Bundles(), []
    monkeypatch.setattr(heartbeat, "_SECONDS", 0.01)

    def works(_: Any) -> Iterator[Any]:
        workerlog.at("job", "s1", bundles)
        for elements in (3, 5):
            bundles.elements = elements
            deadline = time.monotonic() + 10
            while unreported(location, []) != (elements, 0):
                assert time.monotonic() < deadline
            seen.append(elements)
            yield from ()

    workerlog.at("another", "s0", bundles)
    assert list(HeartbeatTask(works, "s1", location)(iter(()))) == []
    workerlog.at("", "")
    assert seen == [3, 5]
    assert unreported(location, []) == (5, 1)
    assert unreported(location, [BundleReport("s0", 0), BundleReport("s1", 0, attempt=7)]) == (5, 1)
    assert unreported(location, [BundleReport("s1", 0, attempt=0)]) == (0, 0)


def test_failed_task_has_not_ended(tmp_path: Path) -> None:
    def fails(_: Any) -> Iterator[Any]:
        yield from ()
        raise ValueError

    location = JobLocation(str(tmp_path))
    with pytest.raises(ValueError):  # noqa: PT011 - it has no text
        list(HeartbeatTask(fails, "s1", location)(iter(())))
    assert unreported(location, []) == (0, 0)


def test_unwatched_or_object_store_job_writes_nothing(tmp_path: Path) -> None:
    assert pulsing(len, "s1", JobLocation(str(tmp_path)), watched=False) is len
    assert pulsing(len, "s1", JobLocation("s3://bucket/job"), watched=True) is len
    assert unreported(JobLocation(str(tmp_path / "none")), []) == (0, 0)


def _slow(element: Any) -> int:
    time.sleep(0.4)  # the work itself
    return int(element[0])


@pytest.mark.contract("OPS-02")
@pytest.mark.usefixtures("spark")
def test_watched_jobs_figures_grow_within_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "watched", lambda: True)
    p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions())
    large = p | beam.Create(range(24)) | beam.Map(lambda n: (n, "x" * 200_000)) | beam.Reshuffle()
    _ = large | beam.Map(_slow)
    result: Any = p.run()
    seen = []
    while result.state not in ("DONE", "FAILED"):
        run = result._job._run
        if run is not None:
            seen.append(run.progress().elements)
        time.sleep(0.1)
    assert result.wait_until_finish() == "DONE"
    reports = result._job._run.outcome.reports
    total = sum(report.elements_in for report in reports)
    progress = result._job._run.progress()
    assert (progress.elements, progress.tasks) == (total, len(reports))
    stages = result._job._run.stages()
    assert [(stage.state, stage.tasks, stage.retries) for stage in stages] == [("done", s.of, 0) for s in stages]
    assert sum(stage.elements for stage in stages) == total
    within = {elements for elements in seen if 0 < elements < total}
    assert len(within) >= 3, seen
    assert seen == sorted(seen)
