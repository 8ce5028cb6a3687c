"""How many tasks a bounded job's stages have, and what they have reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from arcbeam.console.progressline import StageProgress
from arcbeam.model.plan import Plan
from arcbeam.model.rows import RESIDUAL, BundleReport, RowFile
from arcbeam.options import ArcbeamOptions
from arcbeam.spark.batch.rounds import Rounds
from arcbeam.spark.batch.stageprogress import StageTasks
from arcbeam.spark.tasks.heartbeat import Pulse, TaskState
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.translate import ParsedPipeline
from arcbeam.translate.proto import pipeline_proto, plan_of

pytestmark = pytest.mark.contract("PAGE-03")


@pytest.fixture
def plan() -> Plan:
    p = beam.Pipeline()
    keyed = p | beam.Create(range(4), reshuffle=False) | beam.Map(lambda n: (n, n))
    _ = keyed | beam.GroupByKey() | beam.Map(len)
    return plan_of(ParsedPipeline(pipeline_proto(p)), ArcbeamOptions([]), name="words")


def tasks_of(plan: Plan, folder: Path) -> StageTasks:
    nothing: Any = None
    return StageTasks(plan, 3, Rounds(nothing, JobLocation(str(folder)), 3))


def test_stages_go_from_waiting_to_done(plan: Plan, tmp_path: Path) -> None:
    tasks, (first, *_, last) = tasks_of(plan, tmp_path), plan.stages
    assert {stage.state for stage in tasks.progress([], [])} == {"waiting"}
    for stage in plan.stages:
        tasks.built(stage)
    assert {stage.state for stage in tasks.progress([], [])} == {"waiting"}, "built, and no task has begun"
    of_first = Pulse(first.id, 7, 1, 0.5, 1, state=TaskState.ENDED)
    of_last = [Pulse(last.id, 8, 5, 1.0), Pulse(last.id, 9, 2, 0.25, 2, state=TaskState.ENDED)]
    found = {stage.stage: stage for stage in tasks.progress([], [of_first, *of_last])}
    assert found[first.name] == StageProgress(first.name, "done", 1, 1, 1, 1, 0.5)
    assert found[last.name] == StageProgress(last.name, "running", 1, 3, 2, 7, 1.25)
    report = BundleReport(first.id, 0, attempt=7, elements_in=1, seconds=0.5, retries=1)
    assert {stage.stage: stage for stage in tasks.progress([report], [of_first, *of_last])} == found
    tasks.ran({stage.id for stage in plan.stages})
    last_progress = tasks.progress([report], of_last)
    assert {(stage.state, stage.tasks == stage.of) for stage in last_progress} == {("done", True)}
    assert [(stage.elements, stage.retries) for stage in last_progress if stage.elements] == [(1, 1)]


def test_tasks_that_write_nothing_are_not_live(plan: Plan, tmp_path: Path) -> None:
    tasks, (first, *_) = tasks_of(plan, tmp_path), plan.stages
    tasks.built(first)
    assert [(stage.state, stage.live) for stage in tasks.progress([], None)][:2] == [
        ("running", False),
        ("waiting", False),
    ]


def test_stages_of_failed_job_keep_their_figures(plan: Plan, tmp_path: Path) -> None:
    tasks, (first, *_, last) = tasks_of(plan, tmp_path), plan.stages
    tasks.built(first)
    progress = tasks.progress([], [Pulse(first.id, 7, 1, 0.5)])
    found = tasks.unfinished(progress, {first.id})
    assert [(each.stage, each.state) for each in (found[0], found[-1])] == [
        (first.name, "failed"),
        (last.name, "not run"),
    ]
    assert (found[0].elements, found[0].seconds, found[0].of) == (1, 0.5, 1)
    assert tasks.unfinished(progress, set())[0].state == "stopped"


def test_further_round_has_further_tasks(plan: Plan, tmp_path: Path) -> None:
    nothing: Any = None
    rounds = Rounds(nothing, JobLocation(str(tmp_path)), 3)
    tasks, first = StageTasks(plan, 3, rounds), plan.stages[0]
    tasks.built(first)
    rounds._running[first.id] = type("Running", (), {"round": 2})()
    tasks.ran(set())
    before, now = (Pulse(first.id, 7, round=number, state=TaskState.ENDED) for number in (1, 2))
    progress = tasks.progress([], [before])[0]
    assert (progress.state, progress.tasks, progress.of, progress.rounds) == ("running", 1, 1 + 3, 2)
    assert tasks.progress([], [now])[0].tasks == 2
    rounds._output[first.id, 0] = [RowFile(0, "a", 1), RowFile(0, "b", 1)]
    assert (rounds.parts(first.id, 0), rounds.parts(first.id, RESIDUAL)) == (2, 1)
