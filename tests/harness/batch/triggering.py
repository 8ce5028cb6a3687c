"""Panes of a windowing strategy, without a pipeline around them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from apache_beam.runners.pipeline_context import PipelineContext
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.trigger import (
    AccumulationMode,
)
from apache_beam.transforms.window import (
    TimestampCombiner,
)
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PaneInfoTiming, WindowedValue

from arcbeam.engine.grouping.contents import InMemory
from arcbeam.engine.grouping.effects import DropHeld, DropLate, DropReason, EmitPane
from arcbeam.engine.grouping.keywindows import KeyWindows
from arcbeam.engine.grouping.openwindow import Clocks, Rules
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.harness.batch.triggered import arrivals_of, bounded_strategy_of, columns_of
from arcbeam.harness.bundle.windows import Windows, their_pane, their_time
from arcbeam.harness.encoding.blocks import Block
from arcbeam.model import timestamps as model

DISCARDING, ACCUMULATING = AccumulationMode.DISCARDING, AccumulationMode.ACCUMULATING
EOW, EARLIEST, LATEST = (
    TimestampCombiner.OUTPUT_AT_EOW,
    TimestampCombiner.OUTPUT_AT_EARLIEST,
    TimestampCombiner.OUTPUT_AT_LATEST,
)
EARLY, ON_TIME, LATE = PaneInfoTiming.EARLY, PaneInfoTiming.ON_TIME, PaneInfoTiming.LATE


def proto_of(windowing: Windowing) -> Any:
    context = PipelineContext()
    context.default_environment_id = lambda: ""  # type: ignore[method-assign]
    return windowing.to_runner_api(context)


class Pane(NamedTuple):
    """A pane, with the SDK's parts."""

    window: Any
    values: list[Any]
    timestamp: Timestamp
    info: Any


class Panes:
    """The windows of one key: takes the SDK's elements, and returns the SDK's panes.

    Attributes:
        out: panes that are due; the reader removes them.
        drops: what was dropped.
        dropped_closed: elements that were dropped because the trigger of their window had finished, once per window.
        dropped_late: elements whose window had expired.
    """

    def __init__(self, strategy: Strategy, forms: Windows) -> None:
        self._forms, self._merges = forms, strategy.merging is not None
        self._watermark = model.MIN_TIMESTAMP
        self._windows = KeyWindows(Rules(strategy), b"k", self._clocks(0), lambda window: InMemory())
        self.out: list[Pane] = []
        self.drops: list[DropLate | DropHeld] = []
        self.dropped_closed = self.dropped_late = 0

    def add(self, elements: list[WindowedValue], now: int) -> None:
        """Add elements; the clock does not advance."""
        if elements:
            block = Block.of(elements)
            if self._merges:
                self._windows.add_merging(arrivals_of(block, self._forms))
            else:
                self._windows.add(columns_of(block, self._forms))
            self._take()

    def tick(self, now: int) -> None:
        """Advance the clock."""
        self._windows.advance(self._clocks(now), ticked=True)
        self._take()

    def advance(self, watermark: Timestamp, now: int) -> None:
        """Advance the watermark."""
        self._watermark = model.Timestamp(watermark.micros)
        self._windows.advance(self._clocks(now))
        self._take()

    def finish(self, now: int) -> None:
        """Advance the watermark to the end."""
        self._watermark = model.MAX_TIMESTAMP
        self._windows.advance(self._clocks(now))
        assert not list(self._windows.contents())
        self._take()

    def _clocks(self, now: int) -> Clocks:
        return Clocks(model.Timestamp(now), self._watermark, self._watermark)

    def _take(self) -> None:
        for effect in self._windows.out:
            match effect:
                case EmitPane(_, window, values, timestamp, info):
                    theirs = self._forms.theirs(window)
                    self.out.append(Pane(theirs, values, their_time(timestamp), their_pane(info)))
                case DropLate(reason=DropReason.EXPIRED):
                    self.dropped_late += 1
                    self.drops.append(effect)
                case DropLate():
                    self.dropped_closed += 1
                    self.drops.append(effect)
                case DropHeld():
                    self.dropped_closed += effect.count
                    self.drops.append(effect)
                case _:
                    raise AssertionError(f"not asked for of windows in memory: {effect}")
        self._windows.out.clear()


def panes_of(windowing: Windowing, proto: Any = None) -> Panes:
    """Return the windows of a key.

    Args:
        windowing: windowing of the grouping.
        proto: the same, changed.
    """
    forms = Windows(windowing.windowfn.get_window_coder())
    return Panes(bounded_strategy_of(proto or proto_of(windowing), windowing.windowfn, forms), forms)


def assigned(windowfn: Any, times: Iterable[float]) -> list[WindowedValue]:
    """Return numbered elements with these timestamps."""
    return [
        WindowedValue((n, time), Timestamp(time), tuple(windowfn.assign(windowfn.AssignContext(Timestamp(time)))))
        for n, time in enumerate(times)
    ]


def taken(panes: Panes) -> list[Pane]:
    out, panes.out = panes.out, []
    return out
