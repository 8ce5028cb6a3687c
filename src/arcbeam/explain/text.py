"""The plan as text for people and as JSON for programs. Pure; imports only `model.plan`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from arcbeam.explain.words import (
    EXCHANGES,
    decided_by,
    observed_text,
    observers_of,
    side_text,
    transform_names,
    words_of,
)
from arcbeam.model.observers import Observer
from arcbeam.model.plan import Channel, Plan, Stage


def as_text(plan: Plan) -> str:
    """Return the plan as aligned text: each stage with its inputs, transforms and outputs, then a table of channels.

    Returns:
        Lines without trailing spaces, ending in a newline.
    """
    users = _side_users(plan)
    exchanges = sum(channel.routing in EXCHANGES for channel in plan.channels)
    counts = [_count(len(plan.stages), "stage"), _count(len(plan.channels), "channel"), _count(exchanges, "exchange")]
    lines = [f"plan {plan.name!r}: {', '.join(counts)}"]
    if local := plan.local_stages():
        ids = ", ".join(stage.id for stage in local)
        lines += ["", f"in one task, while at most {plan.local_bytes >> 10:,} KiB wait between them: {ids}"]
    for stage in plan.stages:
        lines += ["", *_stage_lines(plan, stage)]
    if plan.channels:
        header = ("channel", "routing", "from", "to", "coder", "windowing", "PCollection")
        lines += ["", *_table([header, *(_channel_cells(c, users[c.index]) for c in plan.channels)])]
    if exchanges:
        lines += ["", "* an exchange: a shuffle of Spark"]
    for warning in plan.warnings:
        lines += ["", f"warning: {warning}"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as values for JSON: every field of the plan, and the payloads' sizes in bytes instead of them."""
    users = _side_users(plan)
    return {
        "name": plan.name,
        "stages": [_stage_json(plan, stage) for stage in plan.stages],
        "channels": [
            {
                "index": channel.index,
                "name": channel.name,
                "routing": channel.routing.value,
                "exchange": channel.routing in EXCHANGES,
                "coder": channel.coder,
                "schema": channel.schema and {field.name: str(field.type) for field in channel.schema},
                "windowing": channel.windowing,
                "producers": list(channel.producers),
                "consumers": list(channel.consumers),
                "side_consumers": users[channel.index],
            }
            for channel in plan.channels
        ],
        "in_one_task": [stage.id for stage in plan.local_stages()],
        "in_one_task_bytes": plan.local_bytes,
        "warnings": list(plan.warnings),
    }


def _stage_json(plan: Plan, stage: Stage) -> dict[str, Any]:
    return {
        "id": stage.id,
        "name": stage.name,
        "uid": stage.uid,
        "transforms": [{"id": t.id, "name": t.name, "urn": t.urn} for t in stage.transforms],
        "payload_bytes": len(stage.payload),
        "source": stage.source,
        "sinks": list(stage.sinks),
        "side_inputs": [{"transform": s.transform, "tag": s.tag, "channel": s.channel} for s in stage.side_inputs],
        "states": [{"transform": transform, "state": state} for transform, state in stage.states],
        "timers": [
            {"transform": t.transform, "family": t.family, "domain": t.domain.value, "expiration": t.expiration}
            for t in stage.timers
        ],
        "splittable": stage.splittable,
        "finalizes": stage.finalizes,
        "time_sorted": stage.time_sorted,
        "scripted": stage.scripted,
        "observers": [
            {
                "name": observer.name,
                "delay_us": observer.delay,
                "policy": observer.policy.value,
                "of_inputs": observer.shared and observer.shared.value,
                "quantile": observer.quantile,
                "max_skew_us": observer.max_skew,
                "max_jump_us": observer.max_jump,
                "confirmed_by": None if observer.max_jump is None else observer.confirmed_by,
                "idle_after_us": observer.idle_after,
                "decides": [] if plan.bounded else decided_by(plan, stage, observer),
            }
            for observer in observers_of(stage)
        ],
    }


def _stage_lines(plan: Plan, stage: Stage) -> list[str]:
    flags = words_of(stage)
    lines = [f"{stage.id}  {stage.name}" + (f"  [{', '.join(flags)}]" if flags else "")]
    names = transform_names(stage)
    rows: list[tuple[str, list[Sequence[str]]]] = [
        ("reads", [("script",) if stage.scripted else _reference(plan, stage.source)]),
        ("sides", [(*_reference(plan, s.channel), side_text(s, names)) for s in stage.side_inputs]),
        ("state", [(state, f"of {names[transform]}") for transform, state in stage.states]),
        ("timers", [(t.family, f"{t.follows}, of {names[t.transform]}") for t in stage.timers]),
        ("time", [(o.name, observed_text(o), _decides(plan, stage, o)) for o in observers_of(stage)]),
        ("runs", [(t.name, t.urn) for t in stage.transforms]),
        ("writes", [_reference(plan, sink) for sink in stage.sinks]),
    ]
    for label, cells in rows:
        for position, line in enumerate(_table(cells)):
            lines.append(f"    {label if position == 0 else '':<7} {line}")
    return lines


def _decides(plan: Plan, stage: Stage, observer: Observer) -> str:
    if plan.bounded:
        return "event times only: the input is bounded"
    decided = decided_by(plan, stage, observer)
    return f"used by {', '.join(decided)}" if decided else "used by no stage"


def _reference(plan: Plan, channel: int | None) -> Sequence[str]:
    if channel is None:
        return ("impulse",)
    return (f"c{channel}", plan.channels[channel].routing.value, plan.channels[channel].name)


def _channel_cells(channel: Channel, side_users: Sequence[str]) -> Sequence[str]:
    routing = channel.routing.value + (" *" if channel.routing in EXCHANGES else "")
    to = [*channel.consumers, *(f"{user} (side)" for user in side_users)]
    return (
        f"c{channel.index}",
        routing,
        ", ".join(channel.producers) or "-",
        ", ".join(to) or "-",
        channel.coder or "-",
        channel.windowing or "-",
        channel.name,
    )


def _side_users(plan: Plan) -> dict[int, list[str]]:
    """Return, for each channel, the ids of the stages that read it as a side input, in plan order, each once."""
    users: dict[int, list[str]] = defaultdict(list)
    for stage in plan.stages:
        for channel in dict.fromkeys(side.channel for side in stage.side_inputs):
            users[channel].append(stage.id)
    return users


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    columns = max((len(row) for row in rows), default=0)
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(columns)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
