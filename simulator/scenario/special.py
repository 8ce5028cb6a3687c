"""Pipelines for what chance alone would hardly reach: many elements in one shard, and much that is late.

Owns what is changed of a pipeline that was chosen, and the heavy pipelines. Must not know how a pipeline is run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from arcbeam.engine.watermarks.clocks import Port
from simulator.scenario.kinds import MAIN, TRIGGERS, Event, Group, Keep, Pace, Source
from simulator.scenario.plans import Pipeline, Stage
from simulator.scenario.windowings import Windowing

HEAVY = 50
"""One seed in so many is heavy."""
WAITING = 24
"""The place of another one, in which windows wait for the budget, among as many."""
EVENTS = 1050
"""Of the source of a heavy pipeline."""
_PIECE = 350
"""So many events come in a micro-batch: more than the rows of an index that are read at once, and than values in one
row."""
_WAITING = 90
"""Events of the source of a pipeline in which windows wait."""
_LATE = 0.25
"""So many pipelines get what is late."""
_BACK = 15
"""So many events are read between one that is late and those of its time."""
_SHOWS_LATE = (
    "early and late",
    "early by the clock",
    "repeated watermark",
    "counts",
    "clock",
    "count or clock",
    "always",
)


def heavy(chance: random.Random) -> Pipeline:
    """One source of very many elements, and a stage of each kind that keeps them: long bags, large accumulators, and
    indexes and changes of a micro-batch beyond what is read and held at once.
    """
    source = Stage(
        "source-1",
        0,
        Source(tuple(_events(chance)), Pace(_PIECE, 1_000, 0, chance.choice((0, 1)), chance.choice((0, 0.2)))),
    )
    stages = [source]
    for kind in (
        Keep(_wide(chance), "end", chance.choice((0, 3))),
        Keep(_wide(chance), "each", chance.choice((0, 30))),
        Keep(Windowing("global"), "order", chance.choice((0, 3)), pause=0),
        Group(_wide(chance, "sessions"), chance.choice(tuple(TRIGGERS)), 100, chance.choice((0, 20))),
        # Chance seldom takes the trigger that nearly all have, whose windows are gathered.
        Group(Windowing("global"), "repeated watermark", 100, chance.choice((0, 20))),
    ):
        stages.append(Stage(f"{type(kind).__name__.lower()}-{len(stages) + 1}", 1, kind, (Port("source-1", MAIN),)))
    return Pipeline(tuple(stages), chance.choice((1, 1, 2)))


def _events(chance: random.Random) -> Iterator[Event]:
    for at in range(EVENTS):
        yield Event(b"heavy-%04d" % at, chance.choice((b"a", b"a", b"a", b"b")), at // 4 + chance.randint(0, 20))


def _wide(chance: random.Random, *more: str) -> Windowing:
    return Windowing(chance.choice(("fixed", "global", *more)), 120 if not more else chance.choice((3, 120)))


def waiting(chance: random.Random) -> Pipeline:
    """A source in which several windows end at once, and elements that come behind these ends; for a budget that ends
    sooner than what is gathered of them can go on.
    """
    events = []
    for at in range(_WAITING):
        back = chance.random() < 0.3
        time = at if back else at + _BACK
        events.append(Event(b"waiting-%03d" % at, chance.choice((b"a", b"a", b"b")), time, surprising=back))
    stages = [Stage("source-1", 0, Source(tuple(events), Pace(_BACK, 1_000, 0, 0, 0)))]
    for size in (3, 8):
        windowing = Windowing(chance.choice(("fixed", "sliding")), size)
        trigger = chance.choice(("watermark", "repeated watermark"))
        kind = Group(windowing, trigger, 2, chance.choice((_BACK, _WAITING)), chance.random() < 0.5)
        stages.append(Stage(f"group-{len(stages) + 1}", 1, kind, (Port("source-1", MAIN),)))
    return Pipeline(tuple(stages), chance.choice((1, 2)))


def varied(pipeline: Pipeline, chance: random.Random) -> Pipeline:
    """A pipeline with several estimators for an output, and perhaps with elements that come late to windows that still
    take them.
    """
    late = _unit(pipeline) if chance.random() < _LATE else None
    return Pipeline(tuple(_varied(stage, chance, late) for stage in pipeline.stages), pipeline.shards)


def _unit(pipeline: Pipeline) -> int:
    """How far apart events are, about."""
    times = [[event.time for event in stage.kind.events] for stage in pipeline.stages if isinstance(stage.kind, Source)]
    return max(1, max(max(of) - min(of) for of in times) // 60)


def _varied(stage: Stage, chance: random.Random, late: int | None) -> Stage:
    """A stage, varied; `late` is how far apart events are to be, if some are to be late."""
    match stage.kind:
        case Source() as kind if late:
            start = min(event.time for event in kind.events)
            events = []
            for at, event in enumerate(kind.events):
                back = chance.random() < 0.3
                time = start + (at if back else at + _BACK) * late
                events.append(replace(event, time=time, surprising=back))
            return replace(stage, kind=replace(kind, events=tuple(events), pace=replace(kind.pace, piece=2)))
        case Group() as kind if late:
            windowing = chance.choice((kind.windowing, Windowing(chance.choice(("fixed", "sliding")), 8 * late)))
            trigger = chance.choice((kind.trigger, *_SHOWS_LATE))
            return replace(stage, kind=replace(kind, windowing=windowing, lateness=100 * late, trigger=trigger))
    return stage
