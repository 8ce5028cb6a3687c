"""What the engine's and the store's figures have in common: a value, its unit, what it should be, and how it is timed.

Owns clocks, bests and verdicts. Knows nothing of what is measured.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One value.

    Attributes:
        what: was measured.
        value: in `unit`.
        target: at least so much of a rate, at most so much of anything else; None: it is only told.
    """

    what: str
    value: float
    unit: str
    target: float | None = None

    @property
    def is_rate(self) -> bool:
        return self.unit.endswith("/s")

    @property
    def met(self) -> bool | None:
        """Whether it is what it should be; None if nothing was asked of it."""
        if self.target is None:
            return None
        return self.value >= self.target if self.is_rate else self.value <= self.target

    def cells(self) -> list[str]:
        target = "-" if self.target is None else f"{'≥' if self.is_rate else '≤'} {self.target:g} {self.unit}"
        verdict = {None: "-", True: "met", False: "missed"}[self.met]
        return [self.what, f"{self.value:.3g} {self.unit}" if self.value < 1000 else f"{self.value:,.0f} {self.unit}",
                target, verdict]  # fmt: skip


def best(runs: Iterable[list[Figure]]) -> list[Figure]:
    """The best of each of several runs' figures: other loads only make them worse."""
    return [
        max(same, key=lambda figure: figure.value if figure.is_rate else -figure.value)
        for same in zip(*runs, strict=True)
    ]


def core_seconds(work: Callable[[], object]) -> float:
    """Processor time of this process for a piece of work, the system's part included.

    Python's collection of cycles runs within it as it would; what was there before is not looked at again and again.
    """
    gc.collect()
    gc.freeze()
    began = time.process_time()
    work()
    spent = time.process_time() - began
    gc.unfreeze()
    return spent


def wall_seconds(work: Callable[[], object]) -> float:
    """Time that passes meanwhile, for what waits for a disk."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def per_second(what: str, count: int, seconds: float, target: float | None = None) -> Figure:
    """A rate in thousands."""
    return Figure(what, count / seconds / 1e3, "k/s", target)
