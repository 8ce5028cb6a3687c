"""Choose random pipelines.

Owns how often each stage is chosen, and its settings. Must not know how a pipeline is run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from arcbeam.engine.grouping.strategy import PaneTime
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.observers import Policy
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP
from simulator.scenario.kinds import (
    MAIN,
    OTHER,
    TRIGGERS,
    Buffer,
    Event,
    Expand,
    Group,
    Join,
    Keep,
    Kind,
    Pace,
    Pass,
    Source,
)
from simulator.scenario.plans import Pipeline, Stage
from simulator.scenario.windowings import CALENDAR, Windowing

_KEYS = (b"a", b"b", b"c", b"d", b"e")
_PAUSES = (0, 0, 700, 30_000, 2_000_000)
_HOUR = 3_600_000_000


def _evening(zone: str, *date: int) -> int:
    year, month, day = date
    return int(datetime(year, month, day, 20, tzinfo=ZoneInfo(zone)).timestamp()) * 1_000_000


@dataclass(frozen=True)
class _Times:
    """The scale of time in a pipeline.

    Attributes:
        unit: the distance of events; windows are multiples of it.
        starts: the possible times of a source's first event.
        zone: a time zone with a change of its clocks, or another peculiarity, at that time.
    """

    unit: int
    starts: tuple[int, ...]
    zone: str = "UTC"


_MICROSECONDS = _Times(1, (0, 0, 0, -50, -50, 1000, 1000, MIN_TIMESTAMP + 1, END_OF_GLOBAL_WINDOW - 200))
# Before year 1; a leap day; a night without midnight, one with two midnights, and a skipped day.
_EVENINGS = tuple(
    (zone, _evening(zone, *date))
    for zone, date in (
        ("Europe/Berlin", (1969, 12, 31)),
        ("UTC", (2000, 2, 28)),
        ("America/Sao_Paulo", (2018, 11, 3)),
        ("America/St_Johns", (2006, 10, 28)),
        ("Pacific/Apia", (2011, 12, 29)),
    )
)
ZONES = tuple(zone for zone, _ in _EVENINGS)


def _times(chance: random.Random) -> _Times:
    """Return a scale: some microseconds for most pipelines, and long enough for calendar windows for the others."""
    if chance.random() < 0.8:
        return _MICROSECONDS
    unit = chance.choice((_HOUR // 2, _HOUR // 2, 6 * _HOUR, 100 * _HOUR))
    zone, evening = chance.choice(_EVENINGS)
    starts = (evening, evening, evening, evening, MIN_TIMESTAMP + 1 + unit, END_OF_GLOBAL_WINDOW - 200 * unit)
    return _Times(unit, starts, zone)


def pipeline_of(chance: random.Random) -> Pipeline:
    """Return a random pipeline."""
    times = _times(chance)
    surprising = chance.random() < 0.4
    stages: list[Stage] = []
    for _ in range(chance.choice((1, 1, 2, 2, 3))):
        stages.append(_source(chance, times, len(stages) + 1, surprising and chance.random() < 0.7))
    for level in range(1, chance.choice((1, 2, 2, 3, 3, 4)) + 1):
        ports = _ports(stages, level)
        for _ in range(chance.choice((1, 1, 2, 3))):
            if ports:
                stages.append(_stage(chance, times, len(stages) + 1, level, ports, _ports(stages, 99)))
    levels = sorted({stage.level for stage in stages})
    return Pipeline(
        tuple(Stage(s.name, levels.index(s.level), s.kind, s.inputs, s.outputs, s.together) for s in stages),
        chance.choice((1, 2, 2, 3, 4)),
    )


def _ports(stages: Sequence[Stage], level: int) -> list[Port]:
    """Return the ports that a level may read. Accumulating groupings are excluded, because they repeat their atoms."""
    return [
        Port(stage.name, output)
        for stage in stages
        for output in stage.outputs
        if stage.level < level and not (isinstance(stage.kind, Group) and stage.kind.accumulating)
    ]


def _source(chance: random.Random, times: _Times, number: int, surprising: bool) -> Stage:
    outputs = (MAIN, OTHER) if chance.random() < 0.3 else (MAIN,)
    count, jitter, rate = chance.choice((3, 8, 20, 40)), chance.choice((0, 3, 10, 25)), chance.choice((1, 2, 5))
    start = chance.choice(times.starts)
    about = (0,) if times.unit == 1 else (-1, 0, 0, 1)
    events = tuple(
        Event(
            b"%c%d" % (ord("a") + number - 1, at),
            chance.choice(_KEYS),
            start + (at // rate + chance.randint(0, jitter)) * times.unit + chance.choice(about),
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


def _stage(
    chance: random.Random, times: _Times, number: int, level: int, ports: Sequence[Port], sides: Sequence[Port]
) -> Stage:
    # Most read the level right below, if there is one; some read two ports, or past a level.
    inputs = tuple(
        dict.fromkeys([ports[-1 - int(chance.random() ** 2 * len(ports))] for _ in range(chance.choice((1, 1, 1, 2)))])
    )
    kind = _kind(chance, times, [port for port in sides if port not in inputs] or list(sides))
    outputs = (MAIN, OTHER) if isinstance(kind, Pass) and chance.random() < 0.5 else (MAIN,)
    return Stage(f"{type(kind).__name__.lower()}-{number}", level, kind, inputs, outputs, chance.random() < 0.2)


def _kind(chance: random.Random, times: _Times, sides: Sequence[Port]) -> Kind:
    name = chance.choice(
        ("group", "group", "group", "keep", "keep", "keep", "join", "pass", "expand", "expand", "buffer")
    )
    match name:
        case "group":
            return Group(
                _windowing(chance, times),
                chance.choice(("watermark", *TRIGGERS)),
                chance.randint(1, 4),
                chance.choice((0, 0, 5, 20)) * times.unit,
                chance.random() < 0.3,
                chance.random() < 0.4,
                chance.choice((PaneTime.END_OF_WINDOW, PaneTime.END_OF_WINDOW, PaneTime.EARLIEST, PaneTime.LATEST)),
                chance.random() < 0.15,
                chance.random() < 0.3,
            )
        case "keep":
            way = chance.choice(("end", "expiration", "clock", "clock or expiration", "each", "drawers", "order"))
            delay = chance.choice((0, 1, 3, 30))
            return Keep(
                _windowing(chance, times, merge=False),
                way,
                delay * times.unit,
                chance.choice((0, 0, 5, 20)) * times.unit,
                delay * 1000,
                side=_side(chance, sides),
            )
        case "join":
            return Join(chance.choice(sides), _windowing(chance, times, merge=False))
        case "buffer":
            return Buffer(chance.choice((2, 5, 100)))
        case "pass":
            observer_delay = chance.choice((None, 0, 5))
            if observer_delay is None:
                return Pass()
            policy = chance.choice((Policy.MIN, Policy.MIN, Policy.MAX))
            return Pass(observer_delay * times.unit, policy, observer_delay * times.unit or None)
        case _:
            return Expand(
                chance.choice((1, 2, 3)),
                _pace(chance, chance.choice((0, 0, 1))),
                _side(chance, sides),
                Windowing(chance.choice(("fixed", "global")), chance.choice((1, 10, 30)) * times.unit),
            )


def _side(chance: random.Random, sides: Sequence[Port]) -> Port | None:
    return chance.choice(sides) if chance.random() < 0.3 else None


def _windowing(chance: random.Random, times: _Times, *, merge: bool = True) -> Windowing:
    calendar = ("days",) if times.unit == 1 else (*CALENDAR, *CALENDAR)
    names = ("fixed", "fixed", "sliding", "global", "lanes", *calendar)
    if merge:
        names += ("sessions", "sessions", "gaps", "clusters")
    name = chance.choice(names)
    if name in CALENDAR:
        return Windowing(
            name,
            chance.choice((1, 1, 1, 2, 5)),
            chance.choice((times.zone, times.zone, *ZONES)),
            chance.choice((1, 1, 15, 29, 31)),
        )
    return Windowing(name, chance.choice((1, 4, 10, 30)) * times.unit)
