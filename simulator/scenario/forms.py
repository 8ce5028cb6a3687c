"""Change some stages of a chosen pipeline into other forms: of observers, side inputs and stateful stages.

Owns how often each form is chosen, and the changes that a form needs to have an effect. Uses its own randomness: a seed
without changes gives the same scenario as before. Must not know how a form is run.
"""

from __future__ import annotations

import random
from dataclasses import replace

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.observers import Policy
from simulator.scenario.kinds import MAIN, Event, Expand, Group, Join, Keep, Kind, Pass, Shared, Source
from simulator.scenario.plans import Pipeline, Stage
from simulator.scenario.scenarios import Scenario

_BEGIN = 2_000_000
"""The time of the first micro-batch; most jobs end some seconds later."""
_SKEWS = (0, 50_000, 1_000_000)
_PATIENCE = (0, 1_000, 20_000, 1_000_000)
"""Idle timeouts: some are shorter than the pauses of sources, some longer."""

_STAYS = 0.85
"""The part of stateful stages that stays unchanged."""
_QUANTILES = (0.5, 0.5, 0.8, 0.9)


def formed(scenario: Scenario, seed: int) -> Scenario:
    """Return the scenario of a seed with other forms of some of its stages."""
    pipeline = _debouncing(scenario.pipeline, random.Random(f"debounce {seed}"))
    pipeline = _besides(pipeline, random.Random(f"beside {seed}"))
    pipeline = _of_newest(pipeline, random.Random(f"newest {seed}"))
    pipeline = _skewed(pipeline, random.Random(f"skew {seed}"))
    pipeline = _impatient(pipeline, random.Random(f"idle {seed}"))
    pipeline = _of_quantiles(pipeline, random.Random(f"of ranks {seed}"))
    return _shared(replace(scenario, pipeline=pipeline), random.Random(f"shared {seed}"))


def _besides(pipeline: Pipeline, chance: random.Random) -> Pipeline:
    """Give some side inputs several producers, if no source joins later."""
    if any(isinstance(stage.kind, Source) and stage.kind.joins for stage in pipeline.stages):
        return pipeline
    return replace(pipeline, stages=tuple(_with_beside(stage, pipeline, chance) for stage in pipeline.stages))


def _with_beside(stage: Stage, pipeline: Pipeline, chance: random.Random) -> Stage:
    if not isinstance(stage.kind, (Expand, Keep, Join)) or stage.kind.side is None or chance.random() < 0.4:
        return stage
    before = pipeline.stages[: pipeline.stages.index(stage)]
    ports = [
        Port(each.name, output)
        for each in before
        for output in each.outputs
        if Port(each.name, output) != stage.kind.side and not (isinstance(each.kind, Group) and each.kind.accumulating)
    ]
    beside = tuple(chance.sample(ports, min(len(ports), chance.choice((1, 1, 2)))))
    return replace(stage, kind=replace(stage.kind, beside=beside))


def _of_newest(pipeline: Pipeline, chance: random.Random) -> Pipeline:
    """Let some stages read only the newest firings of their side inputs."""
    return replace(pipeline, stages=tuple(_with_newest(stage, chance) for stage in pipeline.stages))


def _with_newest(stage: Stage, chance: random.Random) -> Stage:
    if not isinstance(stage.kind, (Expand, Keep, Join)) or stage.kind.side is None or chance.random() < 0.6:
        return stage
    return replace(stage, kind=replace(stage.kind, newest=True))


def _debouncing(pipeline: Pipeline, chance: random.Random) -> Pipeline:
    """Let some stateful stages move their timers with every element."""
    return replace(pipeline, stages=tuple(_debounced(stage, chance) for stage in pipeline.stages))


def _debounced(stage: Stage, chance: random.Random) -> Stage:
    if not isinstance(stage.kind, Keep) or chance.random() < _STAYS:
        return stage
    return replace(stage, kind=replace(stage.kind, way="debounce"))


def _skewed(pipeline: Pipeline, chance: random.Random) -> Pipeline:
    """Let some observers ignore timestamps far ahead of the clock, and move some events that far ahead."""
    stages = tuple(_with_skew(stage, chance) for stage in pipeline.stages)
    if stages == pipeline.stages or not all(_is_past(stage.kind) for stage in stages):
        return pipeline
    return replace(pipeline, stages=tuple(_ahead(stage, chance) for stage in stages))


def _with_skew(stage: Stage, chance: random.Random) -> Stage:
    if not isinstance(stage.kind, Pass) or not stage.kind.observes or chance.random() < 0.4:
        return stage
    # An observer that doubts timestamps far ahead of all others seldom needs the clock to ignore them.
    jump, policy = chance.choice((None, stage.kind.jump)), chance.choice((stage.kind.policy, Policy.MAX))
    return replace(stage, kind=replace(stage.kind, policy=policy, jump=jump, skew=chance.choice(_SKEWS)))


def _impatient(pipeline: Pipeline, chance: random.Random) -> Pipeline:
    """Give some observers an idle timeout."""
    return replace(pipeline, stages=tuple(_with_patience(stage, chance) for stage in pipeline.stages))


def _with_patience(stage: Stage, chance: random.Random) -> Stage:
    if not isinstance(stage.kind, Pass) or not stage.kind.observes or chance.random() < 0.6:
        return stage
    # With `Policy.MAX`, an idle input holds nothing back.
    return replace(stage, kind=replace(stage.kind, policy=Policy.MIN, idle=chance.choice(_PATIENCE)))


def _of_quantiles(pipeline: Pipeline, chance: random.Random) -> Pipeline:
    """Let some observers use a quantile instead of the latest timestamp."""
    return replace(pipeline, stages=tuple(_with_quantile(stage, chance) for stage in pipeline.stages))


def _with_quantile(stage: Stage, chance: random.Random) -> Stage:
    if not isinstance(stage.kind, Pass) or not stage.kind.observes or chance.random() < 0.7:
        return stage
    return replace(stage, kind=replace(stage.kind, jump=None, quantile=chance.choice(_QUANTILES)))


def _shared(scenario: Scenario, chance: random.Random) -> Scenario:
    """Let some sources share one watermark: insert a level of observing stages between them and their consumers."""
    stages = scenario.pipeline.stages
    ports = [Port(stage.name, output) for stage in stages if stage.level == 0 for output in stage.outputs]
    if len(ports) < 2 or chance.random() < 0.8:
        return scenario
    shared = Shared("shared", chance.choice(tuple(Policy)))
    idle = chance.choice(_PATIENCE) if shared.policy is Policy.MIN else None
    read = chance.sample(ports, chance.randint(2, min(3, len(ports))))
    number = 1 + max(scenario.pipeline.numbers.values())
    parts = {
        port: Stage(f"pass-{number + at}", 1, Pass(0, Policy.MAX, idle=idle, shared=shared), (port,))
        for at, port in enumerate(read)
    }
    instead = {port: Port(part.name, MAIN) for port, part in parts.items()}
    later = (
        replace(stage, level=stage.level + 1, inputs=tuple(instead.get(port, port) for port in stage.inputs))
        for stage in stages
        if stage.level
    )
    pipeline = Pipeline(
        (*(stage for stage in stages if not stage.level), *parts.values(), *later), scenario.pipeline.shards
    )
    tasks = tuple((first, chance.randint(1, pipeline.shards), *more) for first, *more in scenario.tasks)
    return replace(scenario, pipeline=pipeline, tasks=tasks)


def _is_past(kind: Kind) -> bool:
    """Return whether the events of a source are before the first micro-batch, and not at the minimum; else true."""
    return not isinstance(kind, Source) or all(abs(event.time) < _BEGIN for event in kind.events)


def _ahead(stage: Stage, chance: random.Random) -> Stage:
    """Move some events of a source to times that the clock reaches during the job, or not at all."""
    if not isinstance(stage.kind, Source):
        return stage
    # Most of them are at the end: there, the remaining events do not hold the watermark at an earlier time.
    count = len(stage.kind.events)
    events = (
        _moved(event, chance) if chance.random() < 0.6 * at / count else event
        for at, event in enumerate(stage.kind.events, 1)
    )
    return replace(stage, kind=replace(stage.kind, events=tuple(events)))


def _moved(event: Event, chance: random.Random) -> Event:
    return replace(event, time=_BEGIN + chance.choice((chance.randint(0, 100_000), chance.randint(0, 4_000_000))))
