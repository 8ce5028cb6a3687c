"""Scenarios from seeds.

Owns how often what is chosen. The same seed gives the same scenario, always. Must not know how it is played.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from arcbeam.engine.clocks import Port
from arcbeam.engine.strategy import PaneTime
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP
from arcbeam.testing.faults import Faults
from arcbeam.testing.simulate.kinds import (
    MAIN,
    OTHER,
    TRIGGERS,
    Event,
    Expand,
    Group,
    Join,
    Keep,
    Kind,
    Pace,
    Pass,
    Source,
    Windowing,
)
from arcbeam.testing.simulate.plans import Pipeline, Stage
from arcbeam.testing.simulate.scenarios import OF_TASKS, Fault, FaultKind, Request, RequestKind, Scenario

_KEYS = (b"a", b"b", b"c", b"d", b"e")
_PAUSES = (0, 0, 700, 30_000, 2_000_000)
_OF_TASKS = sorted(OF_TASKS - {FaultKind.USER_ERROR}, key=lambda kind: kind.name)
_AT_THE_END = FaultKind.DRIVER_DIES_AT_THE_END
_OF_COMMANDS = [kind for kind in FaultKind if kind not in OF_TASKS and kind is not _AT_THE_END]


def scenario_of(seed: int) -> Scenario:
    """The scenario of a seed."""
    chance = random.Random(f"scenario {seed}")
    pipeline = _pipeline(chance)
    tasks = tuple(
        tuple(chance.randint(1, pipeline.shards) for _ in range(pipeline.levels)) for _ in range(chance.randint(1, 3))
    )
    return Scenario(
        seed,
        pipeline,
        tasks,
        hosts=chance.randint(1, 3),
        looks=chance.choice((1, 3, 8, 30, 1000)),
        keep=chance.choice((1, 3, 10)),
        real_cache=chance.random() < 0.05,
        faults=(*_faults(chance), *_rare_faults(random.Random(f"rare {seed}"))),
        requests=_requests(chance),
    )


def _pipeline(chance: random.Random) -> Pipeline:
    surprising = chance.random() < 0.4
    stages: list[Stage] = []
    for _ in range(chance.choice((1, 1, 2, 2, 3))):
        stages.append(_source(chance, len(stages) + 1, surprising and chance.random() < 0.7))
    for level in range(1, chance.choice((1, 2, 2, 3, 3, 4)) + 1):
        ports = _ports(stages, level)
        for _ in range(chance.choice((1, 1, 2, 3))):
            if ports:
                stages.append(_stage(chance, len(stages) + 1, level, ports, _ports(stages, 99)))
    levels = sorted({stage.level for stage in stages})
    return Pipeline(
        tuple(Stage(s.name, levels.index(s.level), s.kind, s.inputs, s.outputs, s.together) for s in stages),
        chance.choice((1, 2, 2, 3, 4)),
    )


def _ports(stages: Sequence[Stage], level: int) -> list[Port]:
    """What stages of a level may read: what accumulates is read by nobody, because its atoms come again and again."""
    return [
        Port(stage.name, output)
        for stage in stages
        for output in stage.outputs
        if stage.level < level and not (isinstance(stage.kind, Group) and stage.kind.accumulating)
    ]


def _source(chance: random.Random, number: int, surprising: bool) -> Stage:
    outputs = (MAIN, OTHER) if chance.random() < 0.3 else (MAIN,)
    count, jitter, rate = chance.choice((3, 8, 20, 40)), chance.choice((0, 3, 10, 25)), chance.choice((1, 2, 5))
    start = chance.choice((0, 0, 0, -50, -50, 1000, 1000, MIN_TIMESTAMP + 1, END_OF_GLOBAL_WINDOW - 200))
    events = tuple(
        Event(
            b"%c%d" % (ord("a") + number - 1, at),
            chance.choice(_KEYS),
            start + at // rate + chance.randint(0, jitter),
            chance.choice(outputs),
            surprising and chance.random() < 0.3,
        )
        for at in range(count)
    )
    bounded = chance.random() < 0.3
    return Stage(
        f"source-{number}",
        0,
        Source(
            events, _pace(chance, polls=0 if bounded else chance.choice((0, 0, 1, 3))), chance.randint(1, 3), bounded
        ),
        outputs=outputs,
    )


def _pace(chance: random.Random, polls: int) -> Pace:
    return Pace(
        piece=chance.choice((1, 2, 4, 10)),
        every=chance.choice((1, 3, 5)),
        pause=chance.choice(_PAUSES),
        polls=polls,
        splits=chance.choice((0, 0.1, 0.5)),
        silent=chance.random() < 0.2,
    )


def _stage(chance: random.Random, number: int, level: int, ports: Sequence[Port], sides: Sequence[Port]) -> Stage:
    # Most read the level right below, if there is one; some read two ports, or past a level.
    inputs = tuple(
        dict.fromkeys([ports[-1 - int(chance.random() ** 2 * len(ports))] for _ in range(chance.choice((1, 1, 1, 2)))])
    )
    kind = _kind(chance, [port for port in sides if port not in inputs] or list(sides))
    outputs = (MAIN, OTHER) if isinstance(kind, Pass) and chance.random() < 0.5 else (MAIN,)
    return Stage(f"{type(kind).__name__.lower()}-{number}", level, kind, inputs, outputs, chance.random() < 0.2)


def _kind(chance: random.Random, sides: Sequence[Port]) -> Kind:
    name = chance.choice(("group", "group", "group", "keep", "keep", "keep", "join", "pass", "expand"))
    match name:
        case "group":
            windowing = _windowing(chance)
            return Group(
                windowing,
                chance.choice(("watermark", *TRIGGERS)),
                chance.randint(1, 4),
                chance.choice((0, 0, 5, 20)),
                chance.random() < 0.3,
                chance.random() < 0.4,
                chance.choice((PaneTime.END_OF_WINDOW, PaneTime.END_OF_WINDOW, PaneTime.EARLIEST, PaneTime.LATEST)),
                chance.random() < 0.15,
            )
        case "keep":
            windowing = _windowing(chance)
            if windowing.name == "sessions":
                windowing = Windowing("fixed", windowing.size)
            way = chance.choice(("end", "expiration", "clock", "clock or expiration", "each", "order"))
            return Keep(windowing, way, chance.choice((0, 1, 3, 30)), chance.choice((0, 0, 5, 20)))
        case "join":
            return Join(
                chance.choice(sides), Windowing(chance.choice(("fixed", "global", "sliding")), chance.choice((5, 20)))
            )
        case "pass":
            return Pass(chance.choice((0, 0, 5)))
        case _:
            return Expand(chance.choice((1, 2, 3)), _pace(chance, chance.choice((0, 0, 1))))


def _windowing(chance: random.Random) -> Windowing:
    return Windowing(chance.choice(("fixed", "fixed", "sliding", "sessions", "global")), chance.choice((1, 4, 10, 30)))


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
    """Those that end a job, or come when it has ended; and now and then very many."""
    if chance.random() < 0.1:
        yield Fault(_AT_THE_END, 0, chance.choice((1, 1, 2)))
    if chance.random() < 0.07:
        yield Fault(FaultKind.USER_ERROR, chance.randint(0, 80))
    if chance.random() < 0.05:
        for _ in range(6):
            yield from _faults(chance)


def _fault(chance: random.Random, kind: FaultKind) -> Fault:
    at = chance.choice((chance.randint(0, 20), chance.randint(0, 150)))
    if kind is FaultKind.UNCLEAR:
        often = (0.0, 0.1, 0.5)
        return Fault(kind, at, chance.choice((1, 3, 8)), _blob_faults(chance, often, chance.choice((0, 0.5)), 0.0, 0.1))
    if kind is not FaultKind.STORM:
        return Fault(kind, at, chance.choice((0, 1, 2, 5, 15)))
    # Never so much that nothing gets on.
    level, lasts = chance.choice(((0.02, 60), (0.05, 60), (0.05, 20), (0.15, 20), (0.15, 8), (0.8, 3)))
    often = (0.0, 0.1 * level, 0.6 * level)
    stale, landing = chance.choice((0, 0.3)), chance.choice((0.05, 0.3))
    return Fault(kind, at, lasts, _blob_faults(chance, often, min(level, 0.1), stale, landing))


def _blob_faults(chance: random.Random, often: Sequence[float], unread: float, stale: float, landing: float) -> Faults:
    refused, lost, silent, late, repeated = (chance.choice(often) for _ in range(5))
    return Faults(refused, lost, silent, late, repeated, unread, stale, landing)


def _requests(chance: random.Random) -> tuple[Request, ...]:
    kinds = list(RequestKind)
    found = [Request(chance.choice(kinds), chance.randint(0, 25)) for _ in range(chance.choice((0, 1, 2, 4)))]
    if found and chance.random() < 0.5:
        # Most that can be asked for is about savepoints.
        found.append(Request(RequestKind.SAVEPOINT, chance.randint(1, 8)))
    return tuple(found)
