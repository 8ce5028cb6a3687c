"""The seeds that tests replay: few and small pipelines that together contain everything expressible.

Owns what can be expressed. Must not know how it is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from arcbeam.engine.grouping.strategy import PaneTime
from simulator.scenario.kinds import TRIGGERS, Expand, Group, Join, Keep, Kind, Pass, Source
from simulator.scenario.plans import Stage
from simulator.scenario.special import HEAVY, WAITING
from simulator.scenario.windowings import CALENDAR, MERGING, WINDOWINGS
from tests.spark.streaming.replay.running import cancelled_behind, chosen, dies_behind

AMONG = range(200)
"""The candidates."""
HOW_MANY = 20
FEW = 15
"""The number of first ones that contain everything that can be expressed."""
WAYS = ("end", "expiration", "clock", "clock or expiration", "each", "drawers", "order")
"""Ways to keep elements that the SDK can express."""
THERE_IS: Sequence[object] = (
    *(Source, Pass, Expand, Join, Keep, Group, *PaneTime),
    *(("trigger", trigger) for trigger in TRIGGERS),
    *(("way", way) for way in WAYS),
    *(("group", name) for name in WINDOWINGS),
    *(("keep", name) for name in WINDOWINGS if name not in (*MERGING, *CALENDAR)),
    *(("join", name) for name in ("fixed", "sliding", "global", "lanes")),
    *((name, "side", yes) for name in ("keep", "expand") for yes in (True, False)),
    *(("accumulating", a, "combined", c) for a in (True, False) for c in (True, False)),
    *(
        (name, yes)
        for name in ("closes", "quiet", "late", "bounded", "surprising", "together")
        for yes in (True, False)
    ),
    *((name, yes) for name in ("paused", "polled", "cancelled", "died") for yes in (True, False)),
    *((name, n) for name in ("inputs", "outputs") for n in (1, 2)),
    *(("shards", n) for n in (1, 2, 3, 4)),
)
"""Everything that can be expressed."""


def seeds() -> tuple[int, ...]:
    """Return the seeds that are replayed: those of `best_seeds`, which takes seconds."""
    return (120, 164, 158, 60, 64, 130, 4, 110, 81, 10, 105, 121, 152, 90, 57, 5, 58, 113, 40, 21)


def best_seeds() -> tuple[int, ...]:
    """Return seeds, each adding the most to the ones before by its cost; what occurs twice adds nothing."""
    left = {seed: frozenset(has(seed)) for seed in AMONG if seed % HEAVY not in (WAITING, HEAVY - 1)}
    wanted = dict.fromkeys(THERE_IS, 2)
    found: list[int] = []
    while len(found) < HOW_MANY:
        worth = {seed: sum(wanted.get(what, 0) for what in of) / _cost(seed) for seed, of in left.items()}
        best = max(worth, key=lambda seed: (worth[seed], -seed))
        found.append(best)
        for what in left.pop(best):
            wanted[what] = max(0, wanted.get(what, 0) - 1)
    return tuple(found)


def has(seed: int) -> Iterator[object]:
    """Yield the expressible features of a seed."""
    pipeline = chosen(seed).pipeline
    yield from (("shards", pipeline.shards), ("cancelled", cancelled_behind(seed) > 0), ("died", dies_behind(seed) > 0))
    for stage in pipeline.stages:
        yield from _of_a_stage(stage)


def _of_a_stage(stage: Stage) -> Iterator[object]:
    yield from (("inputs", len(stage.inputs)), ("outputs", len(stage.outputs)), ("together", stage.together))
    yield from _of_a_kind(stage.kind)


def _of_a_kind(kind: Kind) -> Iterator[object]:
    yield type(kind)
    match kind:
        case Group():
            yield from (("trigger", kind.trigger), ("group", kind.windowing.name), kind.pane_time)
            yield ("accumulating", kind.accumulating, "combined", kind.combined)
            yield from (("closes", kind.closes), ("quiet", kind.quiet), ("late", kind.lateness > 0))
        case Keep():
            yield from (("way", kind.way), ("keep", kind.windowing.name), ("keep", "side", kind.side is not None))
        case Expand():
            yield ("expand", "side", kind.side is not None)
        case Join():
            yield ("join", kind.windowing.name)
        case Source():
            yield from (("bounded", kind.bounded), ("surprising", any(event.surprising for event in kind.events)))
            yield from (("paused", kind.pace.pause > 0), ("polled", kind.pace.polls > 0))


def _cost(seed: int) -> int:
    """Return about how long it takes: each stage is a level of a micro-batch or two."""
    return 2 + len(chosen(seed).pipeline.stages)


def counted(of: Sequence[int]) -> Mapping[str, int]:
    """Return how often features of these seeds were left out."""
    found: dict[str, int] = {}
    for seed in of:
        for what, count in chosen(seed).left_out.items():
            found[what] = found.get(what, 0) + count
    return found
