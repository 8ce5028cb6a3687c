"""Plans of small pipelines, and access to their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsSingleton
from apache_beam.transforms.trigger import (
    AccumulationMode,
    TriggerFn,
)
from apache_beam.transforms.window import FixedWindows

from arcbeam.model.plan import Channel, Plan, Routing, Stage
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto

EXCHANGES = {Routing.GROUPED, Routing.KEYED, Routing.SPREAD}


def proto_of(build: Callable[[Any], Any]) -> Any:
    p = beam.Pipeline()
    build(p)
    return pipeline_proto(p)


def plan_of(build: Callable[[Any], Any], **kwargs: Any) -> Plan:
    return translate(ParsedPipeline(proto_of(build)), name="test", **kwargs)


def names(stage: Stage) -> list[str]:
    """Return the names of a stage's transforms, without those of `source`."""
    return [t.name for t in stage.transforms if not t.name.startswith("Create")]


def stage_of(plan: Plan, name: str) -> Stage:
    (found,) = [stage for stage in plan.stages if name in [t.name for t in stage.transforms]]
    return found


def channels(plan: Plan, *routings: Routing) -> list[Channel]:
    return [channel for channel in plan.channels if channel.routing in routings]


def source(p: Any, name: str = "Create") -> Any:
    return p | name >> beam.Create([("a", 1), ("b", 2)], reshuffle=False)


def combine(p: Any, fn: TriggerFn | None = None) -> None:
    windowed = source(p) | beam.WindowInto(
        FixedWindows(1), trigger=fn, accumulation_mode=AccumulationMode.DISCARDING if fn else None
    )
    windowed | "sum" >> beam.CombinePerKey(sum)


def winding(p: Any) -> None:
    words = source(p) | "Words" >> beam.Map(lambda kv: kv[0])
    total = words | beam.combiners.Count.Globally()
    parts = [words | f"Part {n}" >> beam.Map(lambda w, t: (w, t), AsSingleton(total)) for n in range(3)]
    parts | beam.Flatten() | beam.Reshuffle() | beam.GroupByKey() | "End" >> beam.Map(str)
