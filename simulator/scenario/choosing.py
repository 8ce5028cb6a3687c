"""Choose scenarios from seeds.

Owns how often each fault and request is chosen; `pipelines` chooses pipelines. The same seed always gives the same
scenario. Must not know how it is played.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from arcbeam.testing.faults import Faults
from simulator.scenario import special
from simulator.scenario.forms import formed
from simulator.scenario.kinds import Buffer, Source
from simulator.scenario.pipelines import pipeline_of
from simulator.scenario.plans import Pipeline
from simulator.scenario.scenarios import OF_TASKS, Fault, FaultKind, Request, RequestKind, Scenario
from simulator.scenario.special import EVENTS, HEAVY, WAITING

_OF_TASKS = sorted(OF_TASKS - {FaultKind.USER_ERROR}, key=lambda kind: kind.name)
_AT_THE_END = FaultKind.DRIVER_DIES_AT_THE_END
_RARE = frozenset({_AT_THE_END, FaultKind.GIVEN_UP, FaultKind.STALLED, FaultKind.WORKERS_DIE})
_OF_COMMANDS = [kind for kind in FaultKind if kind not in OF_TASKS | _RARE]


def scenario_of(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    scenario = plain_scenario_of(seed)
    return scenario if seed % HEAVY in (WAITING, HEAVY - 1) else formed(scenario, seed)


def plain_scenario_of(seed: int) -> Scenario:
    """Return the scenario of a seed before `formed` changes it."""
    chance = random.Random(f"scenario {seed}")
    pipeline, looks = _pipeline(seed, chance)
    pipeline = _joining(pipeline, random.Random(f"joining {seed}"))
    tasks = tuple(
        tuple(chance.randint(1, pipeline.shards) for _ in range(pipeline.levels)) for _ in range(chance.randint(1, 3))
    )
    return Scenario(
        seed,
        pipeline,
        tasks,
        hosts=chance.randint(1, 3),
        looks=chance.choice(looks),
        keep=chance.choice((1, 3, 10)),
        real_cache=chance.random() < 0.05,
        faults=(
            *_faults(chance),
            *_rare_faults(random.Random(f"rare {seed}")),
            *_stalls(random.Random(f"stalled {seed}")),
            *_deaths(random.Random(f"deaths {seed}")),
        ),
        requests=(*_requests(chance), *_rescales(pipeline, random.Random(f"other shards {seed}"))),
        exchanges=_exchanges(random.Random(f"exchanges {seed}")),
    )


def _exchanges(chance: random.Random) -> tuple[int, ...]:
    """Return the additional exchanges by driver; none for most jobs."""
    return (0,) if chance.random() < 0.7 else tuple(chance.randint(0, 2) for _ in range(chance.randint(1, 3)))


def _joining(pipeline: Pipeline, chance: random.Random) -> Pipeline:
    """Let a source join later in some pipelines, with the stages that read only that source."""
    sources = [(stage.name, stage.kind) for stage in pipeline.stages if isinstance(stage.kind, Source)]
    if len(sources) < 2 or chance.random() < 0.6:
        return pipeline
    name, source = chance.choice(sources)
    kind = replace(source, joins=chance.choice((1, 1, 2)))
    stages = tuple(replace(stage, kind=kind) if stage.name == name else stage for stage in pipeline.stages)
    joined = replace(pipeline, stages=stages)
    # A stage that exists from the beginning must not have a side input from a stage that joins later.
    there = {name for name, since in joined.since.items() if not since}
    needs = any(stage.name in there and side.stage not in there for stage in joined.stages for side in stage.sides)
    return pipeline if needs else joined


def _pipeline(seed: int, chance: random.Random) -> tuple[Pipeline, Sequence[int]]:
    """Return a pipeline, and suitable budgets."""
    match seed % HEAVY:
        case place if place == WAITING:
            return special.waiting(chance), (1,)
        case place if place == HEAVY - 1:
            return special.heavy(chance), (EVENTS // 2, EVENTS * 10)
        case _:
            return special.varied(pipeline_of(chance), random.Random(f"varied {seed}")), (1, 3, 8, 30, 1000)


def _faults(chance: random.Random) -> tuple[Fault, ...]:
    count = chance.choice((0, 1, 2, 4, 8))
    of_tasks = [
        Fault(
            chance.choice(_OF_TASKS),
            chance.randint(0, 150),
            chance.choice((0, 1, 3, 10, 30)),
        )
        for _ in range(count)
    ]
    others = [_fault(chance, chance.choice(_OF_COMMANDS)) for _ in range(chance.choice((0, 1, 1, 2, 4)))]
    return (*of_tasks, *others)


def _rare_faults(chance: random.Random) -> Iterator[Fault]:
    """Yield faults that end a job or come after its end, and in a few scenarios very many faults."""
    if chance.random() < 0.1:
        yield Fault(_AT_THE_END, 0, chance.choice((1, 1, 2)))
    if chance.random() < 0.07:
        yield Fault(FaultKind.USER_ERROR, chance.randint(0, 80))
    if chance.random() < 0.2:
        yield Fault(FaultKind.GIVEN_UP, chance.randint(0, 40))
    if chance.random() < 0.05:
        for _ in range(6):
            yield from _faults(chance)


def _stalls(chance: random.Random) -> Iterator[Fault]:
    if chance.random() < 0.15:
        yield Fault(FaultKind.STALLED, chance.randint(0, 40), chance.choice((1, 3, 20)))


def _deaths(chance: random.Random) -> Iterator[Fault]:
    """Yield runs of a micro-batch in which a worker dies: the job survives some in a row, but not many."""
    if chance.random() < 0.15:
        yield Fault(FaultKind.WORKERS_DIE, chance.randint(0, 40), chance.choice((1, 2, 2, 5)))


def _fault(chance: random.Random, kind: FaultKind) -> Fault:
    at = chance.choice((chance.randint(0, 20), chance.randint(0, 150)))
    if kind is FaultKind.UNCLEAR:
        often = (0.0, 0.1, 0.5)
        return Fault(kind, at, chance.choice((1, 3, 8)), _blob_faults(chance, often, chance.choice((0, 0.5)), 0.0, 0.1))
    if kind is not FaultKind.STORM:
        return Fault(kind, at, chance.choice((0, 1, 2, 5, 15)))
    # Never so many faults that the job makes no progress.
    level, lasts = chance.choice(((0.02, 60), (0.05, 60), (0.05, 20), (0.15, 20), (0.15, 8), (0.8, 3)))
    often = (0.0, 0.1 * level, 0.6 * level)
    stale, landing = chance.choice((0, 0.3)), chance.choice((0.05, 0.3))
    return Fault(kind, at, lasts, _blob_faults(chance, often, min(level, 0.1), stale, landing))


def _blob_faults(chance: random.Random, often: Sequence[float], unread: float, stale: float, landing: float) -> Faults:
    refused, lost, silent, late, repeated = (chance.choice(often) for _ in range(5))
    return Faults(refused, lost, silent, late, repeated, unread, stale, landing)


def _requests(chance: random.Random) -> tuple[Request, ...]:
    kinds = [kind for kind in RequestKind if kind is not RequestKind.RESCALE]
    found = [Request(chance.choice(kinds), chance.randint(0, 25)) for _ in range(chance.choice((0, 1, 2, 4)))]
    if found and chance.random() < 0.5:
        # Most kinds of requests need a savepoint.
        found.append(Request(RequestKind.SAVEPOINT, chance.randint(1, 8)))
    return tuple(found)


def _rescales(pipeline: Pipeline, chance: random.Random) -> Iterator[Request]:
    """Yield changes of the number of shards; none for most jobs.

    None if user code buffers by shard, not by key.
    """
    fits = not any(isinstance(stage.kind, Buffer) for stage in pipeline.stages)
    if chance.random() < 0.3 and fits:
        for _ in range(chance.choice((1, 2, 2, 4))):
            yield Request(RequestKind.RESCALE, chance.randint(0, 15), chance.choice((1, 2, 3, 5, 8)))
