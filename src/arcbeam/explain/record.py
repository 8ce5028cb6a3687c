"""A plan as values for JSON, and the plan that is drawn from such a record, without the pipeline.

Owns the fields of the record. It has names only: no payload, so reading it runs no user code. Imports only
`model.plan` and what `explain` has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arcbeam.explain.text import as_json
from arcbeam.model.observers import Observer
from arcbeam.model.plan import Channel, Plan, Routing, SideInput, Stage, TimeDomain, TimerFamily, Transform
from arcbeam.model.timestamps import Duration


def plan_record(plan: Plan, outputs: Mapping[tuple[str, int], str]) -> dict[str, Any]:
    """Return the plan as `as_json` does; each stage also has `outputs`, the names of its sinks in a status.

    Args:
        plan: of an unbounded pipeline.
        outputs: the name of each stage's output, by the stage's id and the index of the channel.
    """
    record = as_json(plan)
    for stage in record["stages"]:
        stage["outputs"] = [outputs[stage["id"], sink] for sink in stage["sinks"]]
    return record


def plan_of(record: Mapping[str, Any]) -> Plan:
    """Return the plan of a record, as far as pictures and texts show it: it cannot be run.

    Raises:
        ValueError: it is not the record of a plan; the text says why.
    """
    try:
        stages = tuple(map(_stage, record["stages"]))
        plan = Plan(str(record["name"]), stages, tuple(map(_channel, record["channels"])), bounded=False)
        _check(plan)
    except (KeyError, TypeError, AttributeError, IndexError) as e:
        raise ValueError(f"it is not the record of a plan: {type(e).__name__}: {e}") from e
    return plan


def _check(plan: Plan) -> None:
    """Raise ValueError if a reference leads nowhere, or back: a picture needs producers before consumers."""
    order = {stage.id: number for number, stage in enumerate(plan.stages)}
    if len(order) != len(plan.stages) or [c.index for c in plan.channels] != list(range(len(plan.channels))):
        raise ValueError("stages or channels have the same number")
    for stage in plan.stages:
        reads = [side.channel for side in stage.side_inputs] + ([] if stage.source is None else [stage.source])
        for channel in reads:
            if any(order[producer] >= order[stage.id] for producer in plan.channels[channel].producers):
                raise ValueError(f"stage {stage.id!r} reads what a later stage writes")


def _channel(record: Mapping[str, Any]) -> Channel:
    return Channel(
        int(record["index"]),
        str(record["name"]),
        Routing(record["routing"]),
        str(record["coder"]),
        str(record["windowing"]),
        tuple(map(str, record["producers"])),
        tuple(map(str, record["consumers"])),
    )


def _stage(record: Mapping[str, Any]) -> Stage:
    observers = tuple(Observer(str(of["name"]), Duration(of["delay_us"])) for of in record["observers"])
    source = record["source"]
    return Stage(
        id=str(record["id"]),
        name=str(record["name"]),
        transforms=tuple(Transform(str(t["id"]), str(t["name"]), str(t["urn"])) for t in record["transforms"]),
        payload=b"",
        source=None if source is None else int(source),
        sinks=tuple(map(int, record["sinks"])),
        side_inputs=tuple(
            SideInput(str(s["transform"]), str(s["tag"]), int(s["channel"])) for s in record["side_inputs"]
        ),
        states=tuple((str(s["transform"]), str(s["state"])) for s in record["states"]),
        timers=tuple(
            TimerFamily(str(t["transform"]), str(t["family"]), TimeDomain(t["domain"]), bool(t.get("expiration")))
            for t in record["timers"]
        ),
        splittable=bool(record["splittable"]),
        finalizes=bool(record["finalizes"]),
        time_sorted=bool(record["time_sorted"]),
        scripted=bool(record["scripted"]),
        uid=str(record["uid"]),
        # Which outputs they observe is not in the record, and not shown.
        observed={0: observers} if observers else {},
    )
