"""Pipelines for rare cases: many elements in one shard, and much late data.

Owns the heavy pipelines, and changes of a chosen pipeline. Must not know how a pipeline is run.
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
"""One seed in this number of seeds is heavy."""
WAITING = 24
"""Among the same number of seeds, the position of the one whose windows wait for the budget."""
EVENTS = 1050
"""The number of events of the source of a heavy pipeline."""
_PIECE = 350
"""The events per micro-batch. More than the index rows of one read, and more than the values of one row."""
_WAITING = 90
"""The number of events of the source of a pipeline whose windows wait."""
_LATE = 0.25
"""The part of pipelines that get late data."""
_BACK = 15
"""The number of events between a late event and the events of the same time."""
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
    """Return a pipeline with one large source, and a stage of each kind that buffers elements.

    It has long bags and large accumulators. Its indexes and the changes of a micro-batch exceed one read or block.
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
        # The random choice above seldom takes the usual trigger, whose windows are buffered in sorted runs.
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
    """Return a pipeline in which several windows end at once, and elements arrive after these ends.

    With a small budget, these windows are not released in one micro-batch.
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
    """Return the pipeline, in some cases with elements that are late, but within the allowed lateness."""
    late = _unit(pipeline) if chance.random() < _LATE else None
    return Pipeline(tuple(_varied(stage, chance, late) for stage in pipeline.stages), pipeline.shards)


def _unit(pipeline: Pipeline) -> int:
    """Return the approximate distance of events."""
    times = [[event.time for event in stage.kind.events] for stage in pipeline.stages if isinstance(stage.kind, Source)]
    return max(1, max(max(of) - min(of) for of in times) // 60)


def _varied(stage: Stage, chance: random.Random, late: int | None) -> Stage:
    """Return a varied stage. `late` is the distance of events if some must be late."""
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
