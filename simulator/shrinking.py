"""Shrink a failing scenario to a smaller one that fails in the same way.

Owns which parts are removed, and in which order. Must not know what a failure is: the `play` function decides that.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from simulator.playing.world import World, play
from simulator.scenario.kinds import Expand, Join, Keep, Pace, Source
from simulator.scenario.plans import Pipeline, Stage
from simulator.scenario.scenarios import Scenario

_PLAIN = Pace(splits=0)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Failure:
    """A scenario that fails.

    Attributes:
        error: the error that was raised.
        place: where it was raised. Two failures with the same place are treated as the same.
        event_log: the events before it.
    """

    scenario: Scenario
    error: str
    place: str
    event_log: tuple[str, ...]

    def __str__(self) -> str:
        scenario = self.scenario
        lines = [f"seed {scenario.seed}: {self.error}", f"  raised in {self.place}"]
        lines.append(f"  shards: {scenario.pipeline.shards}, tasks: {scenario.tasks}, hosts: {scenario.hosts}")
        lines.append(f"  additional exchanges, by driver: {scenario.exchanges}")
        lines.append(f"  budget: {scenario.looks} looks, a sweep keeps {scenario.keep} micro-batches")
        for stage in scenario.pipeline.stages:
            reads = ", ".join(map(str, stage.inputs))
            lines.append(f"  {stage.name} (level {stage.level}){' reads ' + reads if reads else ''}: {stage.kind}")
        lines += [f"  {fault.kind.value}: at {fault.at}, {fault.number}" for fault in scenario.faults]
        lines += [f"  {request.kind.value}: after commit {request.at}" for request in scenario.requests]
        return "\n".join([*lines, *self.event_log])


def played(scenario: Scenario) -> World | Failure:
    """Play a scenario, and return its world, or its failure."""
    event_log: list[str] = []
    try:
        return play(scenario, event_log)
    except Exception as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        place = f"{last.filename.rpartition('/')[2]}, line {last.lineno}"
        return Failure(scenario, f"{type(e).__name__}: {e}", place, tuple(event_log))


def failure_of(scenario: Scenario) -> Failure | None:
    """Return the failure of a scenario; None if it does not fail."""
    found = played(scenario)
    return found if isinstance(found, Failure) else None


def shrunk(failure: Failure, play: Callable[[Scenario], Failure | None] = failure_of, tries: int = 400) -> Failure:
    """Return the smallest failure with the same place that is found within this number of tries."""
    while tries > 0:
        for smaller in _smaller(failure.scenario):
            tries -= 1
            found = play(smaller)
            if found is not None and found.place == failure.place:
                failure = found
                break
            if tries <= 0:
                break
        else:
            break
    return failure


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yield smaller scenarios, those with the largest parts removed first."""
    for faults in _fewer(scenario.faults):
        yield replace(scenario, faults=faults)
    for requests in _fewer(scenario.requests):
        yield replace(scenario, requests=requests)
    for pipeline in _smaller_pipelines(scenario.pipeline):
        tasks = tuple(
            tuple(min(count, pipeline.shards) for count in each[: pipeline.levels]) for each in scenario.tasks
        )
        yield replace(scenario, pipeline=pipeline, tasks=tasks)
    ones = (1,) * scenario.pipeline.levels
    if scenario.tasks != (ones,):
        yield replace(scenario, tasks=(ones,))
    if len(scenario.tasks) > 1:
        yield replace(scenario, tasks=scenario.tasks[:1])
    if scenario.exchanges != (0,):
        yield replace(scenario, exchanges=(0,))
    if scenario.hosts > 1:
        yield replace(scenario, hosts=1)
    if scenario.real_cache:
        yield replace(scenario, real_cache=False)
    if scenario.looks < 1000:
        yield replace(scenario, looks=1000)


def _fewer(things: Sequence[_T]) -> Iterator[tuple[_T, ...]]:
    """Yield the things without all of them, then without each half, and at last without each one."""
    size = len(things)
    while size:
        for start in range(0, len(things), size):
            yield (*things[:start], *things[start + size :])
        size //= 2


def _smaller_pipelines(pipeline: Pipeline) -> Iterator[Pipeline]:
    read = {port.stage for stage in pipeline.stages for port in stage.inputs}
    read |= {side.stage for stage in pipeline.stages for side in stage.sides}
    for stage in pipeline.stages:
        if stage.name not in read and len(pipeline.stages) > 1:
            yield Pipeline(tuple(each for each in pipeline.stages if each is not stage), pipeline.shards)
    if pipeline.shards > 1:
        yield replace(pipeline, shards=pipeline.shards - 1)
    for stage in pipeline.stages:
        for smaller in _smaller_stages(stage):
            yield Pipeline(tuple(smaller if each is stage else each for each in pipeline.stages), pipeline.shards)


def _smaller_stages(stage: Stage) -> Iterator[Stage]:
    kind = stage.kind
    if isinstance(kind, Source):
        for events in _fewer(kind.events):
            yield replace(stage, kind=replace(kind, events=events))
        if kind.joins:
            yield replace(stage, kind=replace(kind, joins=0))
        if kind.parts > 1:
            yield replace(stage, kind=replace(kind, parts=1))
    if isinstance(kind, (Source, Expand)) and kind.pace != _PLAIN:
        yield replace(stage, kind=replace(kind, pace=_PLAIN))
    if isinstance(kind, (Expand, Keep)) and kind.side is not None:
        yield replace(stage, kind=replace(kind, side=None, beside=()))
    if isinstance(kind, (Expand, Keep, Join)) and kind.beside:
        yield replace(stage, kind=replace(kind, beside=()))
    if len(stage.inputs) > 1:
        for port in stage.inputs:
            yield replace(stage, inputs=(port,))
