"""The record of a plan: what it says, and that the picture made of it is the plan's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from arcbeam.explain import as_live_svg, as_svg, plan_of, plan_record
from arcbeam.model.observers import Observer
from arcbeam.model.plan import Plan, TimeDomain, TimerFamily
from arcbeam.model.timestamps import Duration
from tests.explain.plans import SHAPES, diamond

pytestmark = pytest.mark.contract("PAGE-10")


def record_of(plan: Plan) -> dict[str, Any]:
    outputs = {(stage.id, sink): f"out {sink}" for stage in plan.stages for sink in stage.sinks}
    found: dict[str, Any] = json.loads(json.dumps(plan_record(plan, outputs)))
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_picture_of_record_is_that_of_plan(shape: Callable[[], Plan]) -> None:
    plan = shape()
    assert as_svg(plan_of(record_of(plan))) == as_svg(plan)
    assert as_live_svg(plan_of(record_of(plan)), "p-") == as_live_svg(plan, "p-")


def test_picture_of_record_has_state_timers_and_observers() -> None:
    plan = diamond()
    stage = replace(
        plan.stages[0],
        uid="Read",
        states=(("t0", "seen"),),
        timers=(TimerFamily("t0", "flush", TimeDomain.PROCESSING),),
        observed={0: (Observer("at", Duration(5)),)},
        splittable=True,
    )
    plan = replace(plan, stages=(stage, *plan.stages[1:]))
    record = record_of(plan)
    assert as_svg(plan_of(record)) == as_svg(plan)
    assert (record["stages"][0]["uid"], record["stages"][0]["outputs"]) == ("Read", ["out 0"])
    assert plan_of(record).stages[0].payload == b""


@pytest.mark.parametrize(
    "change",
    [
        {"stages": None},
        {"stages": [{}]},
        {"channels": []},
        {"name": "x", "stages": [{"id": "s0"}]},
        {"channels": [{"index": 5}]},
    ],
)
def test_wrong_record_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="it is not the record of a plan"):
        plan_of({**record_of(diamond()), **change})


def test_circle_is_refused() -> None:
    record = record_of(diamond())
    record["stages"][0]["source"] = 1
    with pytest.raises(ValueError, match="reads what a later stage writes"):
        plan_of(record)
    record["stages"][0]["id"] = "s1"
    with pytest.raises(ValueError, match="have the same number"):
        plan_of(record)
