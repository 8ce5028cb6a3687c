"""Heartbeats: the figures of a watched job grow while its tasks run, and agree with the reports in the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState

from arcbeam import ArcbeamRunner
from arcbeam.runner import job
from arcbeam.spark.tasks import heartbeat, workerlog
from arcbeam.spark.tasks.heartbeat import HeartbeatTask, TaskState, pulses, pulsing
from arcbeam.store.jobtemp.location import JobLocation
from tests.waiting import Deadline


class _Bundles:
    instruction = ""
    elements = 0


def test_heartbeat_counts_until_the_task_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location, bundles, seen = JobLocation(str(tmp_path)), _Bundles(), []
    monkeypatch.setattr(heartbeat, "_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(heartbeat, "_SECONDS", 0.01)

    def figures() -> list[tuple[int, TaskState]]:
        return [(pulse.elements, pulse.state) for pulse in pulses(location)]

    def works(_: Any) -> Iterator[Any]:
        workerlog.at("job", "s1", bundles)
        for elements in (3, 5):
            bundles.elements = elements
            deadline = Deadline("the figures in the heartbeat", 10)
            while figures() != [(elements, TaskState.RUNNING)]:
                deadline.check()
            seen.append(elements)
            yield from ()
        took.append(workerlog.ended())

    took: list[float] = []
    workerlog.at("another", "s0", bundles)
    assert list(HeartbeatTask(works, "s1", location, 3)(iter(()))) == []
    workerlog.at("", "")
    assert seen == [3, 5]
    (pulse,) = pulses(location)
    assert (pulse.stage, pulse.elements, pulse.round, pulse.state) == ("s1", 5, 3, TaskState.ENDED)
    assert 0.01 < pulse.seconds < 20
    assert [pulse.seconds] == took, "the time of a task that has ended is fixed"
    assert pulses(location, without={"s1"}) == []


@pytest.mark.parametrize(("error", "states"), [(ValueError, [TaskState.FAILED]), (GeneratorExit, [])])
def test_failed_task_has_not_ended(error: type[BaseException], states: list[TaskState], tmp_path: Path) -> None:
    def fails(_: Any) -> Iterator[Any]:
        yield from ()
        raise error

    location = JobLocation(str(tmp_path))
    with pytest.raises(error):
        list(HeartbeatTask(fails, "s1", location)(iter(())))
    assert [pulse.state for pulse in pulses(location)] == states


def test_unwatched_or_object_store_job_writes_nothing(tmp_path: Path) -> None:
    assert pulsing(len, "s1", JobLocation(str(tmp_path)), watched=False) is len
    assert pulsing(len, "s1", JobLocation("s3://bucket/job"), watched=True) is len
    assert pulses(JobLocation(str(tmp_path / "none"))) == []


def _slow(element: Any) -> int:
    time.sleep(0.4)  # the work itself
    return int(element[0])


@pytest.mark.contract("OPS-02")
@pytest.mark.usefixtures("spark")
def test_watched_jobs_figures_grow_within_tasks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(job, "watched", lambda: True)
    options = PipelineOptions(keep_job_temp=True, arcbeam_temp=str(tmp_path))
    p = beam.Pipeline(runner=ArcbeamRunner(), options=options)
    large = p | beam.Create(range(24)) | beam.Map(lambda n: (n, "x" * 200_000)) | beam.Reshuffle()
    _ = large | beam.Map(_slow)
    result: Any = p.run()
    seen, states = [], []
    while not PipelineState.is_terminal(result.state):
        run = result._job._run
        if run is not None:
            seen.append(run.progress().elements)
            states.append(tuple(stage.state for stage in run.stages()))
        time.sleep(0.1)
    assert result.wait_until_finish() == "DONE"
    reports = result._job._run.outcome.reports
    total = sum(report.elements_in for report in reports)
    progress = result._job._run.progress()
    assert (progress.elements, progress.tasks) == (total, len(reports))
    stages = result._job._run.stages()
    assert [(stage.state, stage.tasks, stage.retries) for stage in stages] == [("done", s.of, 0) for s in stages]
    assert sum(stage.elements for stage in stages) == total
    # What a stage shows as the time of its tasks does not change when it is done.
    kept = {(pulse.stage, pulse.attempt): pulse.seconds for pulse in pulses(result._job._run._location)}
    assert kept == {(report.stage, report.attempt): report.seconds for report in reports}
    within = {elements for elements in seen if 0 < elements < total}
    assert len(within) >= 3, seen
    assert seen == sorted(seen)
    # All stages are in one Spark job.
    assert ("done", "running") in {pair for each in states for pair in pairwise(each)}, set(states)


def _fail_late(element: Any) -> int:
    if element[0] == 23:
        raise KeyError("late")
    return int(element[0])


@pytest.mark.contract("PAGE-03")
@pytest.mark.usefixtures("spark")
def test_failed_job_keeps_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "watched", lambda: True)
    p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions())
    spread = p | beam.Create(range(24)) | beam.Map(lambda n: (n, n)) | beam.Reshuffle()
    _ = spread | "Fail" >> beam.Map(_fail_late) | beam.Map(lambda n: (n, n)) | beam.GroupByKey()
    result: Any = p.run()
    with pytest.raises(KeyError, match="late"):
        result.wait_until_finish()
    stages = {stage.stage: stage for stage in result._job._run.stages()}
    first, *_, last = stages.values()
    assert (first.state, first.tasks, last.state) == ("done", first.of, "not run")
    assert first.seconds > 0
    (failed,) = (stage for stage in stages.values() if stage.state == "failed")
    assert "Fail" in failed.stage
