"""What the engine's and the store's figures have in common: a value, its unit, its target, and how it is timed.

Owns clocks, best values and verdicts. Must not know what is measured.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

TIMES = "×"
"""The unit of a ratio: how many times as fast."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One value.

    Attributes:
        what: what was measured.
        value: in `unit`.
        target: the minimum of a rate or ratio, the maximum of anything else; None: it has no target.
    """

    what: str
    value: float
    unit: str
    target: float | None = None

    @property
    def is_rate(self) -> bool:
        return self.unit.endswith("/s") or self.unit == TIMES

    @property
    def met(self) -> bool | None:
        """Whether it meets its target; None if it has none."""
        if self.target is None:
            return None
        return self.value >= self.target if self.is_rate else self.value <= self.target

    def cells(self) -> list[str]:
        target = "-" if self.target is None else f"{'≥' if self.is_rate else '≤'} {self.target:g} {self.unit}"
        verdict = {None: "-", True: "met", False: "missed"}[self.met]
        return [self.what, f"{self.value:.3g} {self.unit}" if self.value < 1000 else f"{self.value:,.0f} {self.unit}",
                target, verdict]  # fmt: skip


def best(runs: Iterable[list[Figure]]) -> list[Figure]:
    """Return the best of several runs' figures: other loads only make them worse."""
    return [
        max(same, key=lambda figure: figure.value if figure.is_rate else -figure.value)
        for same in zip(*runs, strict=True)
    ]


def core_seconds(work: Callable[[], object]) -> float:
    """Return the processor time of this process for a piece of work, including the system's part.

    Python's garbage collector runs as usual, but does not examine objects that existed before.
    """
    gc.collect()
    gc.freeze()
    began = time.process_time()
    work()
    spent = time.process_time() - began
    gc.unfreeze()
    return spent


def wall_seconds(work: Callable[[], object]) -> float:
    """Return the elapsed time, for work that waits for a disk."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def per_second(what: str, count: int, seconds: float, target: float | None = None) -> Figure:
    """Return a rate in thousands."""
    return Figure(what, count / seconds / 1e3, "k/s", target)
