"""The panes of a grouping of one key, computed only by the rules in Beam's documentation.

Owns a second computation of windows, lateness, panes and their times, without state, timers and trigger objects.
Must not import the engine. Times are microseconds.

The rules: a window holds start <= t < end; its last moment is end - 1. A watermark W has passed a moment t if W > t.
A window is over when its last moment is passed; it has expired when that moment plus the allowed lateness is passed.
Elements of an expired window are dropped. Sessions that overlap are merged; those that only touch are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Span = tuple[int, int]
END_OF_TIME = 9_223_372_036_854_775_000
GLOBAL: Span = (-END_OF_TIME, 9_223_371_950_454_775_000)
Trigger = Literal["each late", "once", "late pairs", "early pairs"]
"""The default one; the end of the window alone; then every two late elements; every two early, each late one."""
PaneTime = Literal["end", "earliest", "latest"]


class Pane(NamedTuple):
    window: Span
    values: tuple[int, ...]
    time: int
    timing: Literal["early", "on time", "late"]
    index: int
    is_last: bool


class Drop(NamedTuple):
    window: Span
    value: int
    reason: Literal["expired", "closed"]


@dataclass(frozen=True)
class Strategy:
    """How elements are grouped.

    Attributes:
        windows: of which kind.
        size: of a window, or the gap of sessions.
        period: of sliding windows.
        held_by: an element counts for a pane's time if it is not later than this: the output watermark, or the input's.
    """

    windows: Literal["fixed", "sliding", "sessions", "global"]
    size: int
    period: int
    lateness: int
    trigger: Trigger
    accumulating: bool
    pane_time: PaneTime
    empty_on_time: bool
    empty_last: bool
    held_by: Literal["output", "input"] = "output"

    def assigned(self, time: int) -> list[Span]:
        """The windows of a moment, before any are merged."""
        match self.windows:
            case "fixed":
                start = time - time % self.size
                return [(start, start + self.size)]
            case "sliding":
                starts = range(time - self.size + 1, time + 1)
                return [(start, start + self.size) for start in starts if start % self.period == 0]
            case "sessions":
                return [(time, time + self.size)]
            case "global":
                return [GLOBAL]

    def last(self, window: Span) -> int:
        """The last moment of a window."""
        return min(window[1], GLOBAL[1]) - 1

    def expiry(self, window: Span) -> int:
        """The moment with which a window expires, once it is passed."""
        return min(self.last(window) + self.lateness, GLOBAL[1] - 1)


@dataclass
class _Open:
    """A window that has not expired."""

    span: Span
    over: bool
    fresh: list[int] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    in_time: bool = False
    fired: bool = False
    index: int = 0
    after_end: int = 0
    closed: bool = False


class Key:
    """Everything that happens to a key.

    Attributes:
        panes, drops: in order.
        watermark, output: of the input, and the output.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.panes: list[Pane] = []
        self.drops: list[Drop] = []
        self.watermark = self.output = -END_OF_TIME
        self._open: dict[Span, _Open] = {}

    def windows(self) -> list[Span]:
        """Those that have not expired."""
        return list(self._open)

    def add(self, value: int, time: int) -> None:
        """An element comes."""
        for window in self.strategy.assigned(time):
            if self.watermark > self.strategy.expiry(window):
                self.drops.append(Drop(window, value, "expired"))
                continue
            found = self._joined(window)
            if found.closed:
                self.drops.append(Drop(window, value, "closed"))
                continue
            found.fresh.append(value)
            floor = self.output if self.strategy.held_by == "output" else self.watermark
            if not found.over and time >= floor:
                found.times.append(time)
            if len(found.fresh) >= self._enough(found):
                self._show(found, last=found.over and self.strategy.trigger == "once")

    def advance(self, watermark: int) -> None:
        """The input watermark moves."""
        strategy = self.strategy
        self.watermark = watermark
        for span in sorted(self._open, key=lambda span: (span[1], span[0])):
            window = self._open[span]
            expired = watermark > strategy.expiry(span)
            if not window.over and watermark > strategy.last(span):
                window.over = window.in_time = window.fired = True
                if window.fresh or strategy.empty_on_time:
                    self._show(window, last=expired or strategy.trigger == "once")
                elif strategy.trigger == "once":
                    window.closed = True
                elif strategy.expiry(span) > strategy.last(span):
                    window.in_time = False
            if expired:
                if not window.closed and (window.fresh or strategy.empty_last):
                    self._show(window, last=True)
                del self._open[span]
        self.output = max(self.output, min([watermark, *self._holds()]))

    def _holds(self) -> Iterator[int]:
        strategy = self.strategy
        for window in self._open.values():
            if window.closed:
                continue
            if window.over:
                if window.fresh or strategy.empty_last:
                    yield strategy.expiry(window.span)
            elif window.times and strategy.pane_time != "end":
                yield self._time(window)
            elif window.fresh or strategy.empty_on_time:
                yield strategy.last(window.span)
            elif strategy.empty_last:
                yield strategy.expiry(window.span)

    def _enough(self, window: _Open) -> int:
        """The number of elements that fire together, whatever the watermark does next."""
        trigger = self.strategy.trigger
        if not window.over:
            return 2 if trigger == "early pairs" else END_OF_TIME
        # A window that is opened after its end does not wait: the first element fires at once.
        return 2 if trigger == "late pairs" and window.fired else 1

    def _joined(self, window: Span) -> _Open:
        """The window that an element's window is part of now."""
        strategy, near = self.strategy, []
        if strategy.windows == "sessions":
            near = [span for span in sorted(self._open) if span[0] < window[1] and window[0] < span[1]]
        span = (min([window, *near])[0], max(end for _, end in [window, *near]))
        if span not in self._open:
            grown = _Open(span, self.watermark > strategy.last(span))
            for part in (self._open.pop(each) for each in near):
                grown.fresh += part.fresh
                grown.shown += part.shown
                grown.times += part.times
                grown.in_time |= part.in_time and grown.over
            self._open[span] = grown
        return self._open[span]

    def _time(self, window: _Open) -> int:
        end = self.strategy.last(window.span)
        match self.strategy.pane_time:
            case "earliest":
                return min(window.times, default=end)
            case "latest":
                return max(window.times, default=end)
            case "end":
                return end

    def _show(self, window: _Open, *, last: bool) -> None:
        strategy = self.strategy
        timing: Literal["early", "on time", "late"] = "early"
        if window.over:
            timing = "on time" if window.in_time and not window.after_end else "late"
            window.after_end += 1
        values = [*window.shown, *window.fresh] if strategy.accumulating else window.fresh
        self.panes.append(Pane(window.span, tuple(sorted(values)), self._time(window), timing, window.index, last))
        window.index += 1
        if strategy.accumulating:
            window.shown = values
        if window.over or not strategy.accumulating:
            # Until the end of the window, an accumulating pane has the times of all its elements.
            window.times = []
        window.fresh = []
        window.in_time = False
        window.fired = window.over
        window.closed = last
