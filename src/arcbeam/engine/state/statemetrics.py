"""The size of a stage's state: keys, timers, waiting elements.

Owns the figures and their sum. They are for people; no decision depends on them. Code that adds or removes rows counts
them at once, without extra reads. Must not know rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from arcbeam.pickling import QuickPickle

_NONE: Final[Mapping[str, int]] = {}
"""No code adds to it."""


@dataclass(frozen=True, slots=True)
class StateMetrics(QuickPickle):
    """The size of a state, or its change, which may be negative.

    Attributes:
        windows: keys with state, each once for each of its windows that end. For buffered windows: each key once for
            each run that contains it.
        cells: in the global window, which never ends: the number of keys with something in a state, by its name.
            Ordered lists are not counted.
        event_timers: timers that wait for the watermark, including ends of windows that a grouping waits for.
        clock_timers: timers that wait for the clock.
        blocked: elements blocked by a side input or a commit.
        ordered: elements that wait in order of time.
        waiting_bytes: the size of these elements.
    """

    windows: int = 0
    cells: Mapping[str, int] = field(default_factory=lambda: _NONE)
    event_timers: int = 0
    clock_timers: int = 0
    blocked: int = 0
    ordered: int = 0
    waiting_bytes: int = 0

    @property
    def keys(self) -> int:
        """Keys with state, each once for each of its windows; in the global window, the maximum over all states."""
        return self.windows + max(self.cells.values(), default=0)

    def __add__(self, more: StateMetrics) -> StateMetrics:
        """Return the sum of both."""
        return together((self, more))


NO_STATE: Final = StateMetrics()
_PLAIN: Final = attrgetter("windows", "event_timers", "clock_timers", "blocked", "ordered", "waiting_bytes")


def together(all: Iterable[StateMetrics]) -> StateMetrics:
    """Return the sum of all, of which there is at least one."""
    all = tuple(all)
    windows, *others = map(sum, zip(*map(_PLAIN, all), strict=True))
    cells: dict[str, int] = {}
    for each in all:
        if each.cells:
            for name, keys in each.cells.items():
                cells[name] = cells.get(name, 0) + keys
    return StateMetrics(windows, cells or _NONE, *others)
