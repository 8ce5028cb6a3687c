"""Drives a grouping over a view in memory, as a shard does: keeps its holds and timers, fires them in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from arcbeam.engine.grouping.contents import EncodedPaneValues
from arcbeam.engine.grouping.effects import (
    ClearHold,
    ClearTimer,
    DropHeld,
    DropLate,
    Effect,
    EmitPane,
    SetHold,
    SetTimer,
)
from arcbeam.engine.grouping.groupings import Clocks, Grouping
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import NO_PANE
from arcbeam.testing.views import MemoryView
from arcbeam.testing.windowfns import WindowFn

EVENT, PROCESSING = TimeDomain.EVENT, TimeDomain.PROCESSING


@dataclass
class Shard:
    """The environment of a grouping. The output watermark moves when the input watermark or the clock does: with a
    micro-batch.

    Attributes:
        holds: by (key, window).
        timers: by (key, window, domain).
        panes: that are out, in order; the reader takes them away.
        drops: the same.
    """

    strategy: Strategy
    windowfn: WindowFn
    view: MemoryView = field(default_factory=MemoryView)
    watermark: Timestamp = MIN_TIMESTAMP
    output: Timestamp = MIN_TIMESTAMP
    now: Timestamp = Timestamp(0)  # noqa: RUF009
    holds: dict[Any, Timestamp] = field(default_factory=dict)
    timers: dict[Any, Timestamp] = field(default_factory=dict)
    panes: list[EmitPane] = field(default_factory=list)
    drops: list[DropLate | DropHeld] = field(default_factory=list)

    @property
    def grouping(self) -> Grouping:
        # A new one each time: its whole state is in the view.
        return Grouping(self.strategy, self.view, b"g")

    def clocks(self) -> Clocks:
        return Clocks(self.now, self.watermark, self.output)

    def add(self, times: Iterable[int], key: bytes = b"k", values: Iterable[Any] | None = None) -> None:
        """Add elements, each in the windows of its time; all in one call."""
        times = list(times)
        values = [str(time).encode() for time in times] if values is None else list(values)
        elements = [
            (value, Timestamp(time), self.windowfn.assign(Timestamp(time)), NO_PANE)
            for value, time in zip(values, times, strict=True)
        ]
        self.carry_out(self.grouping.add(key, elements, self.clocks()))
        self._fire(PROCESSING, lambda at: at <= self.now)

    def advance(self, watermark: int) -> None:
        """Move the input watermark to that time; due timers fire, in order."""
        assert watermark >= self.watermark
        self.watermark = Timestamp(watermark)
        self._fire(EVENT, lambda at: at < self.watermark)
        self._settle()

    def tick(self, now: int) -> None:
        """Move the clock to that time; due timers fire, in order."""
        assert now >= self.now
        self.now = Timestamp(now)
        self._fire(PROCESSING, lambda at: at <= self.now)
        self._settle()

    def finish(self) -> None:
        """Move the watermark to the end of time."""
        self.advance(MAX_TIMESTAMP)

    def _fire(self, domain: TimeDomain, due: Any) -> None:
        fired = 0
        while ready := [(at, repr(name), name) for name, at in self.timers.items() if name[2] is domain and due(at)]:
            _, _, name = min(ready)
            key, window, _ = name
            del self.timers[name]
            self.carry_out(self.grouping.fire(key, window, domain, self.clocks()))
            fired += 1
            assert fired < 1000, "fires forever"

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SetHold(key, window, at):
                    assert at >= self.output, "a hold earlier than the output watermark has no effect"
                    self.holds[key, window] = at
                case ClearHold(key, window):
                    del self.holds[key, window]
                case SetTimer(key, window, domain, at):
                    self.timers[key, window, domain] = at
                case ClearTimer(key, window, domain):
                    self.timers.pop((key, window, domain), None)
                case EmitPane():
                    if isinstance(effect.contents, EncodedPaneValues) and effect.contents.lent is not None:
                        effect.contents.lent.held()
                    self.panes.append(effect)
                case DropLate() | DropHeld():
                    self.drops.append(effect)

    def _settle(self) -> None:
        self.output = max(self.output, min([self.watermark, *self.holds.values()]))
        assert all(hold >= self.output for hold in self.holds.values())

    def taken(self) -> list[EmitPane]:
        panes, self.panes = self.panes, []
        return panes

    def dropped(self) -> list[DropLate | DropHeld]:
        drops, self.drops = self.drops, []
        return drops
