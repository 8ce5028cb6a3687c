"""Other forms of observers than those that go by the latest time of all: for scenarios that were chosen without them.

Owns how often each is chosen, and what else must be so in a pipeline that it can be seen. Has chance of its own: where
nothing observes, a seed is what it was before. Must not know how a form is run.
"""

from __future__ import annotations

import random
from dataclasses import replace

from arcbeam.model.observers import Policy
from arcbeam.testing.simulate.scenario.kinds import Event, Kind, Pass, Source
from arcbeam.testing.simulate.scenario.plans import Pipeline, Stage
from arcbeam.testing.simulate.scenario.scenarios import Scenario

_BEGIN = 2_000_000
"""When the first step runs; most jobs are over some seconds later."""
_SKEWS = (0, 50_000, 1_000_000)
_PATIENCE = (0, 1_000, 20_000, 1_000_000)
"""Shorter than some pauses of sources, and longer than others."""


def formed(scenario: Scenario, seed: int) -> Scenario:
    """The scenario of a seed with other forms of observers in some of those stages that observe."""
    pipeline = _skewed(scenario.pipeline, random.Random(f"skew {seed}"))
    return replace(scenario, pipeline=_impatient(pipeline, random.Random(f"idle {seed}")))


def _skewed(pipeline: Pipeline, chance: random.Random) -> Pipeline:
    """Observers that do not believe what is far ahead of the clock, where some of it is, and most is not."""
    stages = tuple(_with_skew(stage, chance) for stage in pipeline.stages)
    if stages == pipeline.stages or not all(_is_behind(stage.kind) for stage in stages):
        return pipeline
    return replace(pipeline, stages=tuple(_ahead(stage, chance) for stage in stages))


def _with_skew(stage: Stage, chance: random.Random) -> Stage:
    if not isinstance(stage.kind, Pass) or not stage.kind.observes or chance.random() < 0.4:
        return stage
    # Who doubts what is far ahead of all others hardly needs the clock for it.
    jump, policy = chance.choice((None, stage.kind.jump)), chance.choice((stage.kind.policy, Policy.MAX))
    return replace(stage, kind=replace(stage.kind, policy=policy, jump=jump, skew=chance.choice(_SKEWS)))


def _impatient(pipeline: Pipeline, chance: random.Random) -> Pipeline:
    """Observers that do not wait for an input that stands."""
    return replace(pipeline, stages=tuple(_with_patience(stage, chance) for stage in pipeline.stages))


def _with_patience(stage: Stage, chance: random.Random) -> Stage:
    if not isinstance(stage.kind, Pass) or not stage.kind.observes or chance.random() < 0.6:
        return stage
    # Of the latest what stands holds nothing back.
    return replace(stage, kind=replace(stage.kind, policy=Policy.MIN, idle=chance.choice(_PATIENCE)))


def _is_behind(kind: Kind) -> bool:
    """Whether all that it reads, if it reads anything, is of the past, and not of its beginning."""
    return not isinstance(kind, Source) or all(abs(event.time) < _BEGIN for event in kind.events)


def _ahead(stage: Stage, chance: random.Random) -> Stage:
    """A source, with some events of times that the clock comes to while the job runs, or not at all."""
    if not isinstance(stage.kind, Source):
        return stage
    # Most at the end, where what is left holds nobody at an earlier time.
    count = len(stage.kind.events)
    events = (
        _moved(event, chance) if chance.random() < 0.6 * at / count else event
        for at, event in enumerate(stage.kind.events, 1)
    )
    return replace(stage, kind=replace(stage.kind, events=tuple(events)))


def _moved(event: Event, chance: random.Random) -> Event:
    return replace(event, time=_BEGIN + chance.choice((chance.randint(0, 100_000), chance.randint(0, 4_000_000))))
