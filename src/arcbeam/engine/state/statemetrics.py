"""How much a stage keeps: keys, timers, elements that wait.

Owns the figures and their sum. They are for people: nothing is decided by them. Who puts rows there and takes them away
counts as it does so, and looks at nothing for it. Must not know rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

_NONE: Final[Mapping[str, int]] = {}
"""Nobody adds to it."""


@dataclass(frozen=True, slots=True)
class StateMetrics:
    """What there is; or by how much it has become more, which may be less.

    Attributes:
        windows: keys of which there is something in the state, each once for each of its windows that end. Of elements
            that are gathered until their window ends, a key once for each run of them.
        cells: in the global window, which nothing ends: in how many keys a state has something, by its name. Ordered
            lists are not counted.
        event_timers: that wait for the watermark; ends of windows that a grouping waits for, too.
        clock_timers: that wait for the clock.
        parked: elements that wait for a side input, or for the commit that makes them real.
        ordered: elements that wait for their turn in order of time.
        waiting_bytes: of these elements.
    """

    windows: int = 0
    cells: Mapping[str, int] = field(default_factory=lambda: _NONE)
    event_timers: int = 0
    clock_timers: int = 0
    parked: int = 0
    ordered: int = 0
    waiting_bytes: int = 0

    @property
    def keys(self) -> int:
        """With state, each once for each of its windows. In the global window those of the state that most have."""
        return self.windows + max(self.cells.values(), default=0)

    def __add__(self, more: StateMetrics) -> StateMetrics:
        """Both together."""
        return together((self, more))


NO_STATE: Final = StateMetrics()
_PLAIN: Final = attrgetter("windows", "event_timers", "clock_timers", "parked", "ordered", "waiting_bytes")


def together(all: Iterable[StateMetrics]) -> StateMetrics:
    """All of them; there is one at least."""
    all = tuple(all)
    windows, *others = map(sum, zip(*map(_PLAIN, all), strict=True))
    cells: dict[str, int] = {}
    for each in all:
        if each.cells:
            for name, keys in each.cells.items():
                cells[name] = cells.get(name, 0) + keys
    return StateMetrics(windows, cells or _NONE, *others)
