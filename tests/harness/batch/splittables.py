"""Splittable DoFns that record what they do, and a driver of their plans."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker

from arcbeam.harness.batch.batchstage import BoundedStage
from arcbeam.harness.batch.restrictions import WaitingRestriction, _unpacked
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.plan import Routing
from arcbeam.model.rows import RESIDUAL, BundleReport, Row
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.offsets import UpTo

SHARDS = 3

found: list[Any] = []
"""Outputs of the pipeline under test."""
calls: list[tuple[Any, ...]] = []
"""Calls that the DoFn under test has recorded."""
gates: dict[Any, threading.Event] = {}
"""Events for which the DoFn under test waits."""


def note(element: Any) -> None:
    """Record an element. A pickled `found.append` would refer to another list."""
    found.append(element)


# A driver of plans: every shard is a task, one after the other; a splittable stage runs in rounds.


@dataclass
class Driven:
    reports: list[BundleReport] = field(default_factory=list)
    rounds: int = 0
    tasks: Counter[int] = field(default_factory=Counter)
    residuals: list[list[WaitingRestriction]] = field(default_factory=list)


class _Box:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def put(self, row: Row) -> None:
        self.rows.append(row)


def drive(
    build: Callable[[beam.Pipeline], Any],
    settings: TaskSettings | None = None,
    drain: bool = False,
    fusion: bool = True,
) -> Driven:
    settings = settings or TaskSettings(shards=SHARDS)
    pipeline = beam.Pipeline()
    build(pipeline)
    plan = translate(ParsedPipeline(pipeline_proto(pipeline)), drain=drain, fusion=fusion)
    channels: dict[int, list[Row]] = {}
    driven = Driven()
    for stage in plan.stages:
        bounded = BoundedStage(stage, settings, None)
        rows = [Row(0, 0, 0, b"")] if stage.source is None else channels.get(stage.source, [])
        while rows:
            box = _Box()
            for shard in range(settings.shards):
                mine = sorted((r for r in rows if r.shard == shard), key=lambda r: r.bucket)
                if mine:
                    report = bounded.run(iter(mine), box, shard, None)
                    driven.reports.append(report)
                    if stage.splittable:
                        driven.tasks[shard] += 1
            driven.rounds += stage.splittable
            for row in box.rows:
                if row.channel != RESIDUAL:
                    channels.setdefault(row.channel, []).append(row)
            rows = [row for row in box.rows if row.channel == RESIDUAL]
            if rows:
                driven.residuals.append([entry for row in rows for entry in _unpacked(row.blob)])
                assert sum(r.residuals for r in driven.reports) == sum(map(len, driven.residuals))
        bounded.close()
    assert all(plan.channels[c].routing in (Routing.FORWARD, Routing.SPREAD, Routing.GROUPED) for c in channels)
    return driven


# Splittable DoFns.


Numbers = UpTo


class InPairs(Numbers):
    def split(self, element: int, restriction: OffsetRange) -> Iterable[OffsetRange]:
        return restriction.split(2)


class Range(beam.DoFn):
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Numbers())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield element, at
            at += 1


def expected(*elements: int) -> list[Any]:
    return sorted((element, at) for element in elements for at in range(element))


class OneByOne(beam.DoFn):
    """Defers the rest after every number, with the next of its delays."""

    def __init__(self, delays: Callable[[], Any] = lambda: None) -> None:
        self._delays = delays

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Numbers())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        calls.append((element, at, time.time()))
        if tracker.try_claim(at):
            yield element, at
            tracker.defer_remainder(self._delays())


# A DoFn that waits in the middle of its work until it was split, or until another one runs.


class Claimed(OffsetRestrictionTracker):  # type: ignore[misc]
    """Opens the restriction's gate when all possible splits were made."""

    def try_split(self, fraction_of_remainder: float) -> Any:
        calls.append(("split", fraction_of_remainder))
        split = super().try_split(fraction_of_remainder)
        if fraction_of_remainder == 0:
            gates["split"].set()
        return split
