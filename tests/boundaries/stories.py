"""Random stories whose watermarks and elements are exactly at decisive moments, or one microsecond beside.

Owns which moments these are. One microsecond is the least that counts, in the SDK as in the engine.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.boundaries.rules import END_OF_TIME, GLOBAL, Key, Span, Strategy


class MicroBatch(NamedTuple):
    """Elements arrive, by number and time; then the watermark moves."""

    elements: list[tuple[int, int]]
    watermark: int


def strategy_of(chance: random.Random) -> Strategy:
    """Return a strategy; times are small, so that moments of several kinds coincide."""
    windows = chance.choice(["fixed", "sliding", "sessions", "global"])
    trigger = chance.choice(["each late", "each late", "once", "late pairs", "early pairs"])
    if windows == "sessions":
        # Beam does not define a trigger's state if it has fired in one of two windows that merge.
        trigger = "each late"
    return Strategy(
        windows,
        size=chance.choice([1, 4, 10]),
        period=chance.choice([1, 3, 5, 12]),
        lateness=chance.choice([0, 0, 1, 4, 15]),
        trigger=trigger,
        accumulating=chance.random() < 0.4,
        pane_time=chance.choice(["end", "end", "earliest", "latest"]),
        empty_on_time=chance.random() < 0.7,
        empty_last=chance.random() < 0.3,
    )


def beside(moment: int, chance: random.Random) -> int:
    """The moment, or the one before or after it."""
    return moment + chance.choice([-1, 0, 0, 1])


def event_log(strategy: Strategy, chance: random.Random, micro_batches: int = 7) -> list[MicroBatch]:
    """Return micro-batches, the last of which is the end of time.

    A reference plays along, for the windows that there are.
    """
    key, made, number = Key(strategy), list[MicroBatch](), 0
    now = chance.randrange(-5, 25)
    known: list[Span] = []
    for _ in range(micro_batches):
        elements = []
        for _ in range(chance.choice([0, 1, 1, 2, 4])):
            edges = [edge for window in known for edge in window if abs(edge) != abs(GLOBAL[0])]
            near = [now, now - strategy.lateness, *edges[-12:]]
            time = beside(chance.choice(near), chance) if chance.random() < 0.6 else now + chance.randrange(-15, 20)
            time = min(time, strategy.last(GLOBAL))
            elements.append((number, time))
            key.add(number, time)
            known += [window for window in strategy.assigned(time) if window not in known]
            number += 1
        moments = [time for _, time in elements]
        for window in {*known, *key.windows()} - {GLOBAL}:
            moments += [strategy.last(window), strategy.expiry(window), window[0], window[1]]
        ahead = sorted({moment for moment in moments if moment > now})[:4]
        now = max(now, beside(chance.choice(ahead), chance)) if ahead else now + 1
        key.advance(now)
        made.append(MicroBatch(elements, now))
    return [*made, MicroBatch([], END_OF_TIME)]
