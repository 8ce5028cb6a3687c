"""How many tasks a bounded job's stages have, and what they have reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from arcbeam.model.plan import Plan
from arcbeam.model.rows import RESIDUAL, BundleReport, RowFile
from arcbeam.options import ArcbeamOptions
from arcbeam.spark.batch.rounds import Rounds
from arcbeam.spark.batch.stageprogress import StageTasks
from arcbeam.spark.tasks.heartbeat import Pulse
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.translate.proto import pipeline_proto, plan_of

pytestmark = pytest.mark.contract("PAGE-03")


@pytest.fixture
def plan() -> Plan:
    p = beam.Pipeline()
    keyed = p | beam.Create(range(4), reshuffle=False) | beam.Map(lambda n: (n, n))
    _ = keyed | beam.GroupByKey() | beam.Map(len)
    return plan_of(pipeline_proto(p), ArcbeamOptions([]), name="words")


def tasks_of(plan: Plan, folder: Path) -> StageTasks:
    nothing: Any = None
    return StageTasks(plan, 3, Rounds(nothing, JobLocation(str(folder)), 3))


def test_stages_go_from_waiting_to_done(plan: Plan, tmp_path: Path) -> None:
    tasks, (first, *_, last) = tasks_of(plan, tmp_path), plan.stages
    assert {stage.state for stage in tasks.progress([], None)} == {"waiting"}
    for stage in plan.stages:
        tasks.built(stage)
    reports = [BundleReport(first.id, 0, attempt=7, elements_in=1, seconds=0.5)]
    pulses = [Pulse(first.id, 7, 1, 1, True), Pulse(last.id, 8, 5, 0, False), Pulse(last.id, 9, 2, 2, True)]
    found = {stage.stage: stage for stage in tasks.progress(reports, pulses)}
    of_first, of_last = found[first.name], found[last.name]
    assert (of_first.state, of_first.tasks, of_first.of, of_first.elements, of_first.seconds) == (
        "running",
        1,
        1,
        1,
        0.5,
    )
    assert (of_last.tasks, of_last.of, of_last.elements, of_last.retries) == (1, 3, 7, 2)
    tasks.ran({stage.id for stage in plan.stages})
    assert {stage.state for stage in tasks.progress(reports, None)} == {"done"}
    assert {stage.retries for stage in tasks.progress(reports, None)} == {None}


def test_further_round_has_further_tasks(plan: Plan, tmp_path: Path) -> None:
    nothing: Any = None
    rounds = Rounds(nothing, JobLocation(str(tmp_path)), 3)
    tasks, first = StageTasks(plan, 3, rounds), plan.stages[0]
    tasks.built(first)
    rounds._running[first.id] = type("Running", (), {"round": 2})()
    tasks.ran(set())
    progress = tasks.progress([], None)[0]
    assert (progress.state, progress.of, progress.rounds) == ("running", 1 + 3, 2)
    rounds._output[first.id, 0] = [RowFile(0, "a", 1), RowFile(0, "b", 1)]
    assert (rounds.parts(first.id, 0), rounds.parts(first.id, RESIDUAL)) == (2, 1)
